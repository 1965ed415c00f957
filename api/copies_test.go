package api

import (
	"cmp"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/access/rules"
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
	c := startCluster(t, 1, func(cfg *NodeConfig) { cfg.Limits = set })
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
	// underWay makes a request whose connection breaks. A copy of it is admitted before its entry is applied.
	underWay := func(first func(context.Context), submitted func() bool, admit func() error) {
		t.Helper()
		release, done := stall(t, n), make(chan struct{})
		breaks, hangUp := context.WithCancel(ctx)
		defer hangUp()
		go func() {
			defer close(done)
			first(breaks)
		}()
		require.Eventually(t, submitted, patience, clock.Millisecond.Duration())
		hangUp()
		<-done
		flood()
		assert.NoError(t, admit())
		release()
	}
	opened := func(secret []byte) func() bool {
		return func() bool { return n.server.openings.has(access.Hash(secret)) }
	}
	requested := func(id uint64) (fsm.TicketRef, func() bool) {
		ref := fsm.TicketRef{Session: session.ID(id), Ticket: 1}
		return ref, func() bool { return n.server.acquisitions.has(ref) }
	}

	open := &zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(clock.Minute)}
	underWay(func(ctx context.Context) { _, _ = to.OpenSession(ctx, open) }, opened(open.Secret), limit(open))
	own := once("own session", clock.Minute, 0)
	underWay(func(ctx context.Context) { _, _ = to.Acquire(ctx, own) }, opened(own.Secret), limit(own))
	s := openSession(t, ctx, to)
	acquire := s.next("lock", fsm.Forever)
	_, submitted := requested(s.id)
	underWay(func(ctx context.Context) { _, _ = s.Acquire(ctx, acquire) }, submitted, limit(acquire))
	s.hold("all that the quota allows")
	_, err = to.admin.Settings(ctx, &zamokpb.SettingsRequest{Quotas: &zamokpb.Quotas{Tickets: 1}})
	require.NoError(t, err)
	w := openStream(t, to, settings(clock.Minute))
	ref, submitted := requested(w.id)
	checkRoom := func(ref fsm.TicketRef) error {
		now := time.Now()
		n.server.limitMet.Store(&now) // so that quotas are checked
		return n.server.checkRoom(&fsm.Acquire{Session: ref.Session, Ticket: ref.Ticket})
	}
	underWay(func(context.Context) { w.send(exclusive(1, "stream", int64(clock.Minute))) }, submitted, func() error {
		return cmp.Or(n.server.limitAcquire(flooding, ref), checkRoom(ref))
	})

	for _, another := range []any{s.next("another", 0), once("another", clock.Minute, 0),
		&zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(clock.Minute)}} {
		flood()
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, limitedBy(t, limit(another)(), "requests-per-identity").Outcome)
	}
	flood()
	ref.Ticket++
	limitedBy(t, n.server.limitAcquire(flooding, ref), "requests-per-identity")
	assert.Error(t, checkRoom(ref))
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

// TestADeniedCopyIsInDoubtForItsOwner: a call that the access rules deny by now may be a copy of one that was done. Only the owner of
// the session learns that.
func TestADeniedCopyIsInDoubtForItsOwner(t *testing.T) {
	t.Parallel()
	var denied atomic.Bool
	nothing, err := rules.Parse([]byte("rules: []"))
	require.NoError(t, err)
	to := call(t, startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Rules = func() *rules.Set {
			if denied.Load() {
				return nothing
			}
			return nil
		}
	}).leader())
	ctx := soon(t)
	s := openSession(t, ctx, to)
	held, own := s.next("held", 0), once("own session", clock.Minute, 0)
	for _, request := range []*zamokpb.AcquireRequest{held, own} {
		_, err := s.Acquire(ctx, request)
		require.NoError(t, err)
	}
	stolen := proto.CloneOf(held)
	stolen.Secret = newSecret()
	denied.Store(true)
	for _, test := range []struct {
		request *zamokpb.AcquireRequest
		outcome zamokpb.Outcome
	}{
		{held, zamokpb.Outcome_OUTCOME_UNKNOWN},
		{own, zamokpb.Outcome_OUTCOME_UNKNOWN},
		{s.next("another", 0), zamokpb.Outcome_OUTCOME_NOT_DONE},
		{once("another", clock.Minute, 0), zamokpb.Outcome_OUTCOME_NOT_DONE},
		{stolen, zamokpb.Outcome_OUTCOME_NOT_DONE},
	} {
		_, err := s.Acquire(ctx, test.request)
		info := infoOf(t, err)
		assert.Equal(t, zamokpb.Code_CODE_DENIED, info.Code)
		assert.Equal(t, test.outcome, info.Outcome, "%v", test.request)
	}
}
