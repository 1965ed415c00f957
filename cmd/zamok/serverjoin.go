package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"zamok/api"
	"zamok/client"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

const (
	// joinTimeout is how long a running cluster may take to answer a node that wants to join it.
	joinTimeout = 10 * time.Second
	// joinRetryInterval is between two attempts to be taken in.
	joinRetryInterval = 5 * time.Second
)

// learnCluster asks the cluster of --join for its id and its members, which a node needs before it can be added. A
// node that is a member does not ask: the cluster may have no leader because it waits for this very node.
// With --cluster the peers answer that, if the cluster has begun.
func (v *serverCommand) learnCluster(ctx context.Context, cfg *raftnode.Config) error {
	if v.join == "" || v.cluster != "" || store.IsMember(v.data) {
		return nil
	}
	c, err := v.joinClient()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	members, cluster, err := c.Members(ctx)
	switch {
	case errors.Is(err, client.ErrDenied):
		return fmt.Errorf("--join %s: %w; nothing was started: let the rules of the cluster allow this node's --tls-cert to operate, "+
			"or start it with --cluster, too, and have an operator add it (zamok join)", v.join, err)
	case err != nil:
		return fmt.Errorf("--join %s: %w; nothing was started", v.join, err)
	}
	cfg.JoinMembers = namesOf(members)
	return cfg.JoinCluster.UnmarshalText([]byte(cluster.ID))
}

// joinUntilVoter asks the cluster to take this node in until it has a vote. It returns an error when the
// cluster refuses a newcomer for good. A joining that broke off, because the leader changed or this node
// ended in its midst, continues where it stood.
//
// It asks this node, too, which relays the request to the leader: the node named by --join may no longer exist.
func (v *serverCommand) joinUntilVoter(ctx context.Context, node *api.Node) error {
	lastReason := ""
	retry := time.NewTicker(joinRetryInterval)
	defer retry.Stop()
	for !node.Raft().Voter() {
		err := v.requestJoin(ctx, node)
		switch {
		case err == nil:
			v.app.logger().Info("joined the cluster", "id", v.id, "peer", node.Peer())
		case (errors.Is(err, client.ErrRefused) || errors.Is(err, errNameTaken)) && !store.IsMember(v.data):
			return err
		case ctx.Err() == nil && err.Error() != lastReason:
			lastReason = err.Error()
			message := "not a voter yet; retrying"
			if errors.Is(err, client.ErrDenied) {
				message = "not a voter yet; let the rules allow this node's --tls-cert to operate, or have an operator add it (zamok join); retrying"
			}
			v.app.logger().Warn(message, "reason", lastReason)
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func namesOf(members []client.Member) (names []string) {
	for _, m := range members {
		names = append(names, m.ID)
	}
	return names
}

// requestJoin has the cluster take this node in. It notes the members before: one that has joined since this node started
// may lead by now.
func (v *serverCommand) requestJoin(ctx context.Context, node *api.Node) error {
	c, err := v.joinClient(node.Client())
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	members, _, err := c.Members(ctx)
	if err == nil {
		node.Raft().NoteMembers(namesOf(members))
	}
	if err := c.Join(ctx, v.id, node.Peer()); err != nil {
		return fmt.Errorf("--join %s: %w", v.join, err)
	}
	if members, _, err = c.Members(ctx); err != nil {
		return err
	}
	for _, m := range members {
		if incarnation := node.Raft().Status().Incarnation.String(); m.ID == v.id && m.Incarnation != incarnation {
			return fmt.Errorf("--join %s: %w: the one at %s has incarnation %s, and this one %s; give this machine a name of its own",
				v.join, errNameTaken, m.Peer, m.Incarnation, incarnation)
		}
	}
	return nil
}

// errNameTaken: the cluster asked at the address of this node, and another machine answered.
var errNameTaken = errors.New("another machine is the member of this name")

// joinClient talks to the cluster that this node joins, as a client with this node's certificate.
func (v *serverCommand) joinClient(extra ...string) (*client.Client, error) {
	endpoints := append(strings.Split(v.join, ","), extra...)
	cfg := client.Config{Endpoints: endpoints, Logger: v.app.logger(), RequestTimeout: joinTimeout}
	files := tlsFiles{ca: v.joinCA, cert: v.clientTLS.cert, key: v.clientTLS.key}
	if files != (tlsFiles{}) {
		current, err := files.reload(v.app.logger(), "TLS of --join", tls.VersionTLS12)
		if err != nil {
			return nil, err
		}
		cfg.GetTLS = func() *tls.Config { return current.get().config }
	}
	return client.New(cfg)
}
