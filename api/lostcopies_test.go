package api

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	raftpeer "zamok/raftnode/peer"
	"zamok/session"
)

// TestACopyOfWhatALeaderLostIsInDoubt: an acquisition is in the log of a leader that is deposed, and its successor may grant it. A
// copy that waited in the queue behind it is refused after the first has its answer, which is "unknown", and the state machine of
// the deposed leader has no such ticket. The next epoch here begins with everything of earlier terms.
func TestACopyOfWhatALeaderLostIsInDoubt(t *testing.T) {
	t.Parallel()
	n := startAlone(t)
	s, ref, secret := n.server, fsm.TicketRef{Session: 1, Ticket: 7}, newSecret()
	first := s.acquisitions.until(func(raftnode.Answer, error) {}, ref)
	opening := s.openings.until(func(raftnode.Answer, error) {}, access.Hash(secret))
	first(raftnode.Answer{}, raftnode.ErrUnknown)
	opening(raftnode.Answer{}, raftnode.ErrUnknown)
	copied := s.acquisitions.until(func(_ raftnode.Answer, err error) {
		assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, s.refusedCopy(err, ref).Info.Outcome)
	}, ref)
	copied(raftnode.Answer{}, &raftnode.NotLeaderError{})
	assert.True(t, s.knowsSecret(secret))

	for _, leads := range []bool{false, true} {
		s.acquisitions.SetLeading(leads)
		s.openings.SetLeading(leads)
	}
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, s.refusedCopy(raftnode.ErrOverloaded, ref).Info.Outcome)
	assert.False(t, s.knowsSecret(secret))
}

// TestAnAcquisitionThatIsNotPassedOnIsInDoubt: for whatever reason that a relay refuses it, the leader may have granted an earlier
// copy. What can't have one is not done.
func TestAnAcquisitionThatIsNotPassedOnIsInDoubt(t *testing.T) {
	t.Parallel()
	set, err := limits.Parse([]string{"relayed-bytes-per-identity=1"})
	require.NoError(t, err)
	c := startCluster(t, 2, func(cfg *NodeConfig) { cfg.Limits = set })
	leader, n := c.leader(), c.follower()
	outcomes := func(call func(method string, request any) error) {
		t.Helper()
		for method, request := range map[string]any{
			zamokpb.Zamok_Acquire_FullMethodName: &zamokpb.AcquireRequest{Session: 1, Secret: newSecret(), Acquire: exclusive(1, "x", 0).GetAcquire()},
			zamokpb.Zamok_Drop_FullMethodName:    &zamokpb.DropRequest{Session: 1, Secret: newSecret(), Ticket: 1},
		} {
			want := zamokpb.Outcome_OUTCOME_NOT_DONE
			if method == zamokpb.Zamok_Acquire_FullMethodName {
				want = zamokpb.Outcome_OUTCOME_UNKNOWN
			}
			assert.Equal(t, want, wire.Explain(call(method, request)).Info.Outcome, method)
		}
	}
	outcomes(func(method string, _ any) error { // the relay was removed
		_, _, err := leader.server.route(relayedFor(t.Context(), "removed"), method, func(metadata.MD) error { return nil })
		return err
	})
	to := call(t, n)
	outcomes(func(method string, request any) error { // it would pass on too many bytes
		ctx := relaying(soon(t))
		if method == zamokpb.Zamok_Acquire_FullMethodName {
			_, err := to.Acquire(ctx, request.(*zamokpb.AcquireRequest))
			return overBytes(t, err)
		}
		_, err := to.Drop(ctx, request.(*zamokpb.DropRequest))
		return overBytes(t, err)
	})
}

// TestALimitAwayFromTheLeaderLeavesDoubt: a node that does not lead, and finds no leader to pass an acquisition on to, may be behind
// what the last one has granted.
func TestALimitAwayFromTheLeaderLeavesDoubt(t *testing.T) {
	t.Parallel()
	set, err := limits.Parse([]string{"held-calls=1"})
	require.NoError(t, err)
	c := startCluster(t, 2, func(cfg *NodeConfig) { cfg.Limits = set })
	for n, want := range map[*Node]zamokpb.Outcome{
		c.leader(): zamokpb.Outcome_OUTCOME_NOT_DONE, c.follower(): zamokpb.Outcome_OUTCOME_UNKNOWN,
	} {
		request := &zamokpb.AcquireRequest{Session: 1, Secret: newSecret(), Acquire: exclusive(1, "x", 0).GetAcquire()}
		end, err := n.server.admit(t.Context(), request)
		require.NoError(t, err)
		_, err = n.server.admit(t.Context(), request)
		info := wire.Explain(err).Info
		assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED, info.Code)
		assert.Equal(t, want, info.Outcome)
		end()
	}
}

// overBytes is a call's error as the server made it, which refused it by the bound of relayed bytes.
func overBytes(t *testing.T, err error) error {
	return &wire.Error{Info: limitedBy(t, err, "relayed-bytes-per-identity")}
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
	require.Eventually(t, func() bool { return n.server.acquisitions.has(ref) }, patience, clock.Millisecond.Duration())
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
