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

// joinRetryInterval is between two requests to be added to the cluster.
const joinRetryInterval = 2 * time.Second

// joinUntilVoter asks the cluster to add this node until it has a vote. It returns an error when the
// cluster refuses a newcomer for good. A joining that broke off, because the leader changed or this node
// ended in its midst, continues where it stood.
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
