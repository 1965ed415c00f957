package api

import (
	"cmp"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// TestACopyUnderWayIsNotRefused: a rate refuses no copy of a request whose first copy is in the log and not applied yet, since
// "not done" would be false, even if the connection of the first has broken. A new request is refused.
func TestACopyUnderWayIsNotRefused(t *testing.T) {
	t.Parallel()
	set, err := limits.Parse([]string{"requests-per-identity=10/s"})
	require.NoError(t, err)
	// applying, if it is set, receives the state machine after each entry, and its end is waited for.
	var applying atomic.Pointer[func(*fsm.Machine)]
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Limits = set
		cfg.Applied = func(m *fsm.Machine, _ fsm.Applied) {
			if f := applying.Load(); f != nil {
				(*f)(m)
			}
		}
	})
	ctx, n := soon(t), c.leader()
	to, flooding := call(t, n), access.NewContext(ctx, access.Caller{Identity: "flood"})
	flood := func() {
		for n.server.limits.Ask(limits.Requests, "flood") == nil {
		}
	}
	limit := func(request any) func() error {
		return func() error {
			end, err := n.server.limit(flooding, request)
			if err == nil {
				end()
			}
			return err
		}
	}
	// underWay makes a request whose connection breaks. Its entry is not applied completely before a copy has been admitted:
	// the state machine can't be asked during that time.
	underWay := func(first func(context.Context), applied func(*fsm.Machine) bool, admit func() error) {
		t.Helper()
		reached, admitted, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		stop := func(m *fsm.Machine) {
			if applied(m) {
				applying.Store(nil)
				close(reached)
				<-admitted
			}
		}
		applying.Store(&stop)
		breaks, hangUp := context.WithCancel(ctx)
		defer hangUp()
		go func() {
			defer close(done)
			first(breaks)
		}()
		<-reached
		hangUp()
		<-done
		refused := make(chan error, 1)
		go func() {
			flood()
			refused <- admit()
		}()
		select {
		case err := <-refused:
			assert.NoError(t, err)
		case <-time.After(5 * time.Second):
			assert.Fail(t, "only the state machine is asked, which does not know the request yet")
		}
		close(admitted)
	}
	opened := func(secret []byte) func(*fsm.Machine) bool {
		return func(m *fsm.Machine) bool { _, yes := m.SessionBySecret(access.Hash(secret)); return yes }
	}
	requested := func(id uint64) (fsm.TicketRef, func(*fsm.Machine) bool) {
		ref := fsm.TicketRef{Session: session.ID(id), Ticket: 1}
		return ref, func(m *fsm.Machine) bool { _, yes := m.Ticket(ref); return yes }
	}

	open := &zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(clock.Minute)}
	underWay(func(ctx context.Context) { _, _ = to.OpenSession(ctx, open) }, opened(open.Secret), limit(open))
	own := once("own session", clock.Minute, 0)
	underWay(func(ctx context.Context) { _, _ = to.Acquire(ctx, own) }, opened(own.Secret), limit(own))
	s := openSession(t, ctx, to)
	acquire := s.next("lock", fsm.Forever)
	_, applied := requested(s.id)
	underWay(func(ctx context.Context) { _, _ = s.Acquire(ctx, acquire) }, applied, limit(acquire))
	w := openStream(t, to, settings(clock.Minute))
	ref, applied := requested(w.id)
	underWay(func(context.Context) { w.send(exclusive(1, "stream", int64(clock.Minute))) }, applied, func() error {
		now := time.Now()
		n.server.limitMet.Store(&now) // so that quotas are checked, too
		return cmp.Or(n.server.limitAcquire(flooding, ref), n.server.checkRoom(&fsm.Acquire{Session: ref.Session, Ticket: ref.Ticket}))
	})

	for _, another := range []any{s.next("another", 0), once("another", clock.Minute, 0),
		&zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(clock.Minute)}} {
		flood()
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, limitedBy(t, limit(another)(), "requests-per-identity").Outcome)
	}
	flood()
	limitedBy(t, n.server.limitAcquire(flooding, fsm.TicketRef{Session: ref.Session, Ticket: 2}), "requests-per-identity")
}

// TestACopyOfWhatIsDoneIsInDoubt: a node that does not propose a copy of a request that took effect does not say "not done".
func TestACopyOfWhatIsDoneIsInDoubt(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, nil)
	ctx, leader := soon(t), c.leader()
	follower := c.nodes[0]
	if follower == leader {
		follower = c.nodes[1]
	}
	outcome := func(_ any, err error) zamokpb.Outcome {
		e := (*wire.Error)(nil)
		require.ErrorAs(t, err, &e)
		require.Equal(t, zamokpb.Code_CODE_NOT_LEADER, e.Code())
		return e.Info.Outcome
	}
	to, at := call(t, leader), follower.server
	open := &zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(clock.Minute)}
	_, err := to.OpenSession(ctx, open)
	require.NoError(t, err)
	s := openSession(t, ctx, to)
	held := s.next("x", 0)
	_, err = s.Acquire(ctx, held)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return at.knowsSecret(open.Secret) && at.knowsTicket(fsm.TicketRef{Session: session.ID(s.id), Ticket: held.Acquire.Ticket})
	}, patience, clock.Millisecond.Duration())

	another := &zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(clock.Minute)}
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, outcome(at.OpenSession(ctx, open)))
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, outcome(at.OpenSession(ctx, another)))
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, outcome(at.Acquire(ctx, held)))
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, outcome(at.Acquire(ctx, s.next("y", 0))))
}
