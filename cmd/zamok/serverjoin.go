package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zamok/api"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

// joinRetryInterval is the time between two requests to be added to the cluster.
const joinRetryInterval = 2 * time.Second

// joinUntilVoter requests to be added to the cluster until this node is a voter. It returns an
// error if the cluster refuses a node that was never a member. A join that was interrupted, by a
// change of the leader or the end of this node, continues.
func (v *serverCommand) joinUntilVoter(ctx context.Context, node *api.Node) error {
	if node.Raft().Voter() {
		return nil
	}
	lastReason := ""
	retry := time.NewTicker(joinRetryInterval)
	defer retry.Stop()
	for !node.Raft().Voter() {
		err := node.Raft().RequestJoin(ctx)
		switch {
		case err == nil:
		case errors.Is(err, raftnode.ErrRefused) && !store.IsMember(v.data):
			return fmt.Errorf("--join %s: %w", v.join, err)
		case ctx.Err() == nil && err.Error() != lastReason:
			lastReason = err.Error()
			v.app.logger().Warn("not a voter yet; retrying", "reason", lastReason)
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil
		}
	}
	v.app.logger().Info("joined the cluster", "id", v.id, "peer", node.Peer())
	return nil
}
