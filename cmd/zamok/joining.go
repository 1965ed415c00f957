package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"zamok/client"
)

// joinPatience is how long a running cluster may take to answer a node that wants to join it.
const joinPatience = 30 * time.Second

// againPatience is how long it may take to answer one that has data, and so was taken in before, most probably.
// The cluster may have no leader because it waits for this very node.
const againPatience = 3 * time.Second

// finishPause is between two attempts to learn whether a node that was taken in has its vote.
const finishPause = 5 * time.Second

// joining is what a node has to do that was started with --join.
type joining struct {
	cluster string // its id; "" = nothing to join, or not known
	ask     bool   // to be taken in
}

// target asks the cluster that is to be joined who it is. A node that has been taken in before may start
// without an answer.
func (v *serverVerb) target(ctx context.Context) (joining, error) {
	if v.join == "" {
		return joining{}, nil
	}
	c, err := v.joinClient()
	if err != nil {
		return joining{}, err
	}
	defer c.Close()
	entries, err := os.ReadDir(v.data)
	began, patience := err == nil && len(entries) > 0, joinPatience
	if began {
		patience = againPatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	members, cluster, err := c.Members(ctx)
	if err != nil {
		if began {
			v.app.logger().Warn("the cluster to join does not answer; starting with the data that is here", "error", err)
			return joining{}, nil
		}
		return joining{}, fmt.Errorf("--join %s: %w; nothing was started", v.join, err)
	}
	for _, m := range members {
		if m.ID == v.id {
			return joining{cluster: cluster}, nil
		}
	}
	return joining{cluster: cluster, ask: true}, nil
}

// finish asks for a vote until this node has one, or is no member. A joining that broke off, because the leader
// changed or this node ended in its midst, leaves a member without a vote.
//
// It asks this node, too, which passes that on to the leader: who was to be joined once may be gone.
func (v *serverVerb) finish(ctx context.Context, self, peer string) {
	pause := time.NewTicker(finishPause)
	defer pause.Stop()
	for {
		votes, err := v.votes(ctx, self)
		if err == nil && !votes {
			err = v.ask(ctx, peer, self)
		}
		if err == nil {
			return
		}
		v.app.logger().Warn("it is not known yet whether this node has a vote; asking again", "error", err)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

// votes tells whether nothing is missing for this node to have a vote: one that was taken out gets none.
func (v *serverVerb) votes(ctx context.Context, also ...string) (bool, error) {
	c, err := v.joinClient(also...)
	if err != nil {
		return false, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	members, _, err := c.Members(ctx)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(members, func(m client.Member) bool { return m.ID == v.id })
	return i < 0 || members[i].Voter, nil
}

// ask has the cluster take this node in.
func (v *serverVerb) ask(ctx context.Context, address string, also ...string) error {
	c, err := v.joinClient(also...)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	if err := c.Join(ctx, v.id, address); err != nil {
		return fmt.Errorf("--join %s: %w", v.join, err)
	}
	v.app.logger().Info("taken into the cluster", "id", v.id, "peer", address)
	return nil
}

// joinClient talks to the cluster as this node would pass calls on.
func (v *serverVerb) joinClient(also ...string) (*client.Client, error) {
	cfg := client.Config{Endpoints: append([]string{v.join}, also...), Logger: v.app.logger(), RequestTimeout: joinPatience}
	if v.clients.cert != "" || v.clients.ca != "" {
		var err error
		if cfg.TLS, err = (tlsFiles{ca: v.clients.ca, cert: v.clients.cert, key: v.clients.key}).load(); err != nil {
			return nil, err
		}
	}
	return client.New(cfg)
}
