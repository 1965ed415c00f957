package api

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/gate"
	"zamok/api/gate/limits"
	"zamok/api/zamokpb"
)

// TestAnAcquisitionThatIsNotPassedOnIsInDoubt: for whatever reason that a relay refuses it, the
// leader may have granted an earlier transmission. The first transmission is not done.
func TestAnAcquisitionThatIsNotPassedOnIsInDoubt(t *testing.T) {
	t.Parallel()
	set, err := limits.Parse([]string{"relayed-bytes-per-identity=1"})
	require.NoError(t, err)
	to := call(t, startCluster(t, 2, func(cfg *NodeConfig) { cfg.Limits = set }).follower())
	ctx := relaying(soon(t))
	acquire := func(ctx context.Context) error {
		_, err := to.Acquire(ctx,
			&zamokpb.AcquireRequest{Session: 1, Secret: newSecret(),
				Acquire: exclusive(1, "x", 0).GetAcquire()})
		return err
	}
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, overBytes(t, acquire(ctx)))
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, overBytes(t, acquire(asFirst(ctx))))
	_, err = to.Drop(ctx, &zamokpb.DropRequest{Session: 1, Secret: newSecret(), Ticket: 1})
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, overBytes(t, err))
}

// overBytes is the outcome of a call that was refused by the bound of relayed bytes.
func overBytes(t *testing.T, err error) zamokpb.Outcome {
	return refusedBy(t, err, "relayed-bytes-per-identity").Outcome
}

// TestARelayPassesOnThatACallIsTheFirst: the leader refuses it as not done, and leaves a
// retransmission in doubt.
func TestARelayPassesOnThatACallIsTheFirst(t *testing.T) {
	t.Parallel()
	set, err := limits.Parse([]string{"held-calls-per-identity=1"})
	require.NoError(t, err)
	c := startCluster(t, 2, func(cfg *NodeConfig) { cfg.Limits = set })
	ctx, to := relaying(soon(t)), call(t, c.follower())
	s := openSession(t, ctx, to)
	end, err := c.leader().server.limits.Open(limits.HeldCalls,
		gate.Caller{Address: "127.0.0.1:1"}.Principal())
	require.NoError(t, err)
	defer end()
	for want, ctx := range map[zamokpb.Outcome]context.Context{
		zamokpb.Outcome_OUTCOME_UNKNOWN: ctx, zamokpb.Outcome_OUTCOME_NOT_DONE: asFirst(ctx),
	} {
		_, err := to.Acquire(ctx, s.next("x", 0))
		assert.Equal(t, want, refusedBy(t, err, "held-calls-per-identity").Outcome)
	}
}
