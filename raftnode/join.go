package raftnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// A node that is no member yet requests over the peer port to be added. Its certificate proves its
// name, and with TLS package peer passes the request on only if the called node knows that name, or
// its operator allows it.

const (
	// learnTimeout is how long the members may take to name their cluster to a node that joins it.
	learnTimeout = 10 * time.Second
	// relearnTimeout is the same for a node that has learned it before.
	relearnTimeout = 2 * time.Second
	// addTimeout bounds one attempt of a leader to add a node that requested it. The node requests
	// it again.
	addTimeout = 10 * time.Second
	// addWait is how long a reply waits for that: a call has nodeCallTimeout, and on slow lines its
	// handshake takes most of it.
	addWait = 500 * time.Millisecond
)

// learnCluster asks the nodes of Config.Join for their cluster, until one of them answers. If none
// does, a node that waited for a cluster before waits for the same.
func (a *admission) learnCluster(ctx context.Context, before store.ID) (store.ID, error) {
	if a.cfg.Join == (peer.List{}) {
		return before, nil
	}
	timeout := learnTimeout
	if before != (store.ID{}) {
		timeout = relearnTimeout
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var reason error
	for {
		cluster, failed := a.askCluster(bounded)
		if cluster != (store.ID{}) {
			return cluster, nil
		}
		if reason == nil || bounded.Err() == nil { // else this round was cut off
			reason = failed
		}
		switch ended := sleep(bounded, askEvery); {
		case ended == nil:
		case before != (store.ID{}) && ctx.Err() == nil:
			a.log.Warn("no node of --join answers; waiting to be added to the same cluster "+
				"as before", "cluster", before, "reason", reason)
			return before, nil
		default:
			return store.ID{}, fmt.Errorf(
				"raftnode: no node of --join has named its cluster: %w; nothing was started",
				reason)
		}
	}
}

// askCluster asks once. The zero cluster is none, for the reason in the error.
func (a *admission) askCluster(ctx context.Context) (cluster store.ID, failed error) {
	failed = errors.New("the list names no node but this one")
	replies := a.network.AskAll(ctx, a.cfg.Join.Nodes())
	for _, reply := range replies {
		theirs := store.ID(reply.Answer.Cluster)
		switch {
		case reply.Err != nil:
			failed = reply.Err
		case !isMember(reply) || theirs == (store.ID{}):
			failed = fmt.Errorf("%s at %s is no member of a cluster that has begun", reply.Node.ID,
				reply.Node.Address)
		case cluster != (store.ID{}) && cluster != theirs:
			return store.ID{}, fmt.Errorf("they are nodes of two clusters, %v and %v",
				cluster, theirs)
		default:
			cluster = theirs
		}
	}
	if cluster != (store.ID{}) {
		a.roster.learnMembers(slices.DeleteFunc(replies,
			func(r peer.Reply) bool { return !isMember(r) }))
	}
	return cluster, failed
}

// isMember reports whether a reply is of the node that was asked, and that is a member of its
// cluster.
func isMember(reply peer.Reply) bool {
	return reply.Err == nil && reply.Answer.Member &&
		reply.Answer.Name == peer.NameOf(raft.ServerID(reply.Node.ID))
}

// requestAll is Node.RequestJoin.
func (a *admission) requestAll(ctx context.Context) error {
	targets := a.roster.others(a.runs.latest.Load())
	for _, node := range a.cfg.Join.Nodes() {
		if !slices.ContainsFunc(targets,
			func(other peer.Node) bool { return other.Address == node.Address }) {
			targets = append(targets, node)
		}
	}
	cluster := a.network.Mine().Cluster
	replies := slices.DeleteFunc(a.network.AskAll(ctx, targets), func(r peer.Reply) bool {
		return r.Err == nil && (!isMember(r) || r.Answer.Cluster != cluster)
	})
	a.roster.learnMembers(replies)
	var silent, declined error
	for _, reply := range replies {
		if reply.Err != nil {
			silent = cmp.Or(silent, reply.Err)
			continue
		}
		err := a.requestJoin(ctx, reply)
		if err == nil || errors.Is(err, ErrRefused) {
			return err
		}
		declined = cmp.Or(declined, err)
	}
	return cmp.Or(declined, silent, errors.New("raftnode: no other node of the cluster is known"))
}

// requestJoin sends the request to one member, and to the leader if that is another.
func (a *admission) requestJoin(ctx context.Context, member peer.Reply) error {
	request := nodeRequest{Join: a.network.Addr().String()}
	_, err := a.call(ctx, member.Answer.ID(), raft.ServerAddress(member.Node.Address), request)
	if e, ok := errors.AsType[*nodeError](err); ok && e.Leader != (peer.Node{}) {
		_, err = a.call(ctx, raft.ServerID(e.Leader.ID), raft.ServerAddress(e.Leader.Address),
			request)
	}
	return err
}
