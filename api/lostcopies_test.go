package api

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	raftpeer "zamok/raftnode/peer"
	"zamok/session"
)

// TestAnAcquisitionThatIsNotPassedOnIsInDoubt: for whatever reason that a relay refuses it, the leader may have granted an earlier
// copy. What can't have one is not done.
func TestAnAcquisitionThatIsNotPassedOnIsInDoubt(t *testing.T) {
	t.Parallel()
	set, err := limits.Parse([]string{"relayed-bytes-per-identity=1"})
	require.NoError(t, err)
	to := call(t, startCluster(t, 2, func(cfg *NodeConfig) { cfg.Limits = set }).follower())
	ctx := relaying(soon(t))
	acquire := func(ctx context.Context) error {
		_, err := to.Acquire(ctx, &zamokpb.AcquireRequest{Session: 1, Secret: newSecret(), Acquire: exclusive(1, "x", 0).GetAcquire()})
		return err
	}
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, overBytes(t, acquire(ctx)))
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, overBytes(t, acquire(asFirst(ctx))))
	_, err = to.Drop(ctx, &zamokpb.DropRequest{Session: 1, Secret: newSecret(), Ticket: 1})
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, overBytes(t, err))
}

// overBytes is the outcome of a call that was refused by the bound of relayed bytes.
func overBytes(t *testing.T, err error) zamokpb.Outcome {
	return limitedBy(t, err, "relayed-bytes-per-identity").Outcome
}

// TestARelayPassesOnThatACallIsTheFirst: the leader refuses it as not done, and a copy of it not.
func TestARelayPassesOnThatACallIsTheFirst(t *testing.T) {
	t.Parallel()
	set, err := limits.Parse([]string{"held-calls-per-identity=1"})
	require.NoError(t, err)
	c := startCluster(t, 2, func(cfg *NodeConfig) { cfg.Limits = set })
	ctx, to := relaying(soon(t)), call(t, c.follower())
	s := openSession(t, ctx, to)
	end, err := c.leader().server.limits.Open(limits.HeldCalls, access.Caller{Address: "127.0.0.1:1"}.Account())
	require.NoError(t, err)
	defer end()
	for want, ctx := range map[zamokpb.Outcome]context.Context{
		zamokpb.Outcome_OUTCOME_UNKNOWN: ctx, zamokpb.Outcome_OUTCOME_NOT_DONE: asFirst(ctx),
	} {
		_, err := to.Acquire(ctx, s.next("x", 0))
		assert.Equal(t, want, limitedBy(t, err, "held-calls-per-identity").Outcome)
	}
}

// relayedFor is the context of a call that a node relays.
func relayedFor(ctx context.Context, name string) context.Context {
	return peer.NewContext(ctx, &peer.Peer{AuthInfo: relayInfo{from: raftpeer.Server{Name: name}}})
}

// TestAnAcquisitionOutlivesTheNodeThatRelaysIt: a node that was removed, and ends, breaks a call while its acquisition is on its way
// through the log. That is not its caller's doing, who asks another node for the same ticket.
func TestAnAcquisitionOutlivesTheNodeThatRelaysIt(t *testing.T) {
	t.Parallel()
	n := startAlone(t)
	ctx, cancel := context.WithCancel(relayedFor(t.Context(), "removed"))
	secret := newSecret()
	opened, err := n.server.OpenSession(ctx, &zamokpb.OpenSessionRequest{Secret: secret, Settings: settings(clock.Minute)})
	require.NoError(t, err)
	ref := fsm.TicketRef{Session: session.ID(opened.Session), Ticket: 1}
	release, done := stall(t, n), make(chan error)
	go func() {
		_, err := n.server.Acquire(ctx, &zamokpb.AcquireRequest{Session: opened.Session, Secret: secret, Acquire: exclusive(1, "x", -1).GetAcquire()})
		done <- err
	}()
	require.Eventually(t, func() bool { return n.server.hub.Counts().Calls == 1 }, patience, clock.Millisecond.Duration())
	cancel()
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, wire.Explain(<-done).Info.Outcome)
	release()
	_, _, err = n.Raft().ReadBarrier(soon(t)) // behind a drop, if there was one
	require.NoError(t, err)
	n.Raft().View(func(m *fsm.Machine) {
		ticket, _ := m.Ticket(ref)
		assert.Equal(t, fsm.Granted, ticket.State)
	})
}
