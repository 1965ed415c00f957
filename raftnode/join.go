package raftnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// A node that is no member yet asks the members over the peer port to be added. Its certificate proves its name, and with
// TLS package peer passes the request on only if the node that is asked knows that name, or its operator allows it.

const (
	// learnTimeout is how long the members may take to name their cluster to a node that joins it.
	learnTimeout = 10 * time.Second
	// relearnTimeout is the same for a node that has learned it before.
	relearnTimeout = 2 * time.Second
	// addTimeout bounds one attempt of a leader to add a node that asked for it. The node asks again.
	addTimeout = 10 * time.Second
	// addWait is how long a reply waits for that: a call has nodeCallTimeout, and on slow lines its handshake takes most
	// of it.
	addWait = 500 * time.Millisecond
)

// learnCluster asks the nodes of Config.Join for their cluster, until one of them answers. If none does, a node that waited
// for a cluster before waits for the same.
func (n *Node) learnCluster(ctx context.Context, before store.ID) (store.ID, error) {
	if n.cfg.Join == (peer.List{}) {
		return before, nil
	}
	timeout := learnTimeout
	if before != (store.ID{}) {
		timeout = relearnTimeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var reason error
	for {
		cluster, failed := n.askCluster(limited)
		if cluster != (store.ID{}) {
			return cluster, nil
		}
		if reason == nil || limited.Err() == nil { // else this round was cut off
			reason = failed
		}
		switch ended := pause(limited, askEvery); {
		case ended == nil:
		case before != (store.ID{}) && ctx.Err() == nil:
			n.log.Warn("no node of --join answers; waiting to be added to the same cluster as before", "cluster", before, "reason", reason)
			return before, nil
		default:
			return store.ID{}, fmt.Errorf("raftnode: no node of --join has named its cluster: %w; nothing was started", reason)
		}
	}
}

// askCluster asks once. The zero cluster is none, for the reason in the error.
func (n *Node) askCluster(ctx context.Context) (cluster store.ID, failed error) {
	failed = errors.New("the list names no node but this one")
	replies := n.network.AskAll(ctx, n.cfg.Join.Nodes())
	for _, reply := range replies {
		theirs := store.ID(reply.Answer.Cluster)
		switch {
		case reply.Err != nil:
			failed = reply.Err
		case !isMember(reply) || theirs == (store.ID{}):
			failed = fmt.Errorf("%s at %s is no member of a cluster that has begun", reply.Node.ID, reply.Node.Address)
		case cluster != (store.ID{}) && cluster != theirs:
			return store.ID{}, fmt.Errorf("they are nodes of two clusters, %v and %v", cluster, theirs)
		default:
			cluster = theirs
		}
	}
	if cluster != (store.ID{}) {
		n.noteCluster(slices.DeleteFunc(replies, func(r peer.Reply) bool { return !isMember(r) }))
	}
	return cluster, failed
}

// isMember reports whether a reply is of the node that was asked, and that is a member of its cluster.
func isMember(reply peer.Reply) bool {
	return reply.Err == nil && reply.Answer.Member && reply.Answer.Name == peer.NameOf(raft.ServerID(reply.Node.ID))
}

// RequestJoin asks the members of Config.Join, and those that this node knows of, once to add it to the cluster. It returns
// nil when the leader has given this node a vote. An error that is no ErrRefused may end with another attempt: the members may not be
// reached, this node may be catching up, or an operator has to allow it.
func (n *Node) RequestJoin(ctx context.Context) error {
	targets := n.others(n.instance.Load())
	for _, node := range n.cfg.Join.Nodes() {
		if !slices.ContainsFunc(targets, func(other peer.Node) bool { return other.Address == node.Address }) {
			targets = append(targets, node)
		}
	}
	cluster := n.network.Mine().Cluster
	replies := slices.DeleteFunc(n.network.AskAll(ctx, targets), func(r peer.Reply) bool {
		return r.Err == nil && (!isMember(r) || r.Answer.Cluster != cluster)
	})
	n.noteCluster(replies)
	var silent, refused error
	for _, reply := range replies {
		if reply.Err != nil {
			silent = cmp.Or(silent, reply.Err)
			continue
		}
		err := n.requestJoin(ctx, reply)
		if err == nil || errors.Is(err, ErrRefused) {
			return err
		}
		refused = cmp.Or(refused, err)
	}
	return cmp.Or(refused, silent, errors.New("raftnode: no other node of the cluster is known"))
}

// requestJoin asks one member, and the leader if that is another.
func (n *Node) requestJoin(ctx context.Context, member peer.Reply) error {
	request := call{Join: n.network.Addr().String()}
	err := n.callNode(ctx, member.Answer.ID(), raft.ServerAddress(member.Node.Address), request)
	if r, ok := errors.AsType[*refusal](err); ok && r.Leader != (peer.Node{}) {
		err = n.callNode(ctx, raft.ServerID(r.Leader.ID), raft.ServerAddress(r.Leader.Address), request)
	}
	return err
}

// noteCluster notes the members of the cluster that this node waits for: with TLS, only they may call it until it has a
// configuration. They are those of the latest configuration that a member reports.
func (n *Node) noteCluster(replies []peer.Reply) {
	latest := peer.Answer{}
	for _, reply := range replies {
		if reply.Err == nil && reply.Answer.Configuration > latest.Configuration {
			latest = reply.Answer
		}
	}
	if latest.Names != nil {
		n.joins.Store(&latest.Names)
	}
}

// waitsFor reports whether the cluster that this node waits for has a member of that name.
func (n *Node) waitsFor(name string) bool {
	names := n.joins.Load()
	return names != nil && slices.Contains(*names, name)
}

// handleJoin adds the node that asks, and no other: under the name that its certificate proves, and at an address at
// which the same data directory answers.
func (n *Node) handleJoin(ctx context.Context, in *instance, from peer.Server, address string) error {
	if _, err := n.leading(); err != nil {
		refused := &refusal{Reason: err.Error()}
		if at, id := in.raft.LeaderWithID(); id != "" && id != n.self.ID() {
			refused.Leader = peer.Node{ID: string(id), Address: string(at)}
		}
		return refused
	}
	list, err := peer.ParseList(from.Name + "=" + address)
	if err != nil {
		return fmt.Errorf("%w; %w", err, ErrRefused)
	}
	if _, under := n.joining.LoadOrStore(from.Name, true); under {
		return fmt.Errorf("%s is being added; ask again", from.Name)
	}
	added := make(chan error, 1)
	n.untilClose(func() {
		ctx, cancel := context.WithTimeout(n.life, addTimeout)
		defer cancel()
		err := n.join(ctx, list.Nodes()[0], from)
		if err != nil {
			n.limitedLog.Log(slog.LevelInfo, "join "+from.Name, "a node that asks to join has no vote yet",
				"id", from.Name, "incarnation", from.Incarnation, "peer", address, "reason", err)
		}
		n.joining.Delete(from.Name) // before the answer: the node may ask again at once
		added <- err
	})
	ctx, cancel := context.WithTimeout(ctx, addWait)
	defer cancel()
	select {
	case err := <-added:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s is being added; ask again", from.Name)
	}
}
