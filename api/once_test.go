package api

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/gate"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// once is an acquisition with a session of its own.
func once(name string, ttl clock.Span, wait int64) *zamokpb.AcquireRequest {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret)
	return &zamokpb.AcquireRequest{Secret: secret,
		Settings: &zamokpb.SessionSettings{Ttl: int64(ttl), Meta: []byte("a request")},
		Acquire: &zamokpb.Acquire{Ticket: 1, Wait: wait,
			Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}}
}

// alive are the sessions that the cluster has.
func alive(t *testing.T, s caller) int {
	list, err := s.ListSessions(soon(t), &zamokpb.ListSessionsRequest{})
	require.NoError(t, err)
	return len(list.Sessions)
}

func TestASessionOfItsOwnEndsWithItsCall(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	ctx, s := soon(t), call(t, c.leader())
	request := once("stock", clock.Minute, 0)
	held, err := s.Acquire(ctx, request)
	require.NoError(t, err)
	assert.Equal(t, zamokpb.State_STATE_GRANTED, held.State.State)
	again, err := s.Acquire(ctx, request)
	require.NoError(t, err)
	assert.Equal(t, held.Session, again.Session, "the same secret, the same session")
	assert.Equal(t, held.State.Token, again.State.Token)

	other := once("other", clock.Minute, 0)
	other.Secret, other.Settings.Meta = request.Secret, []byte("another request")
	_, err = s.Acquire(ctx, other)
	require.ErrorContains(t, err, "other metadata")
	_, err = s.Acquire(ctx, once("stock", clock.Minute, 0))
	require.ErrorContains(t, err, "not acquired")
	require.Eventually(t, func() bool { return alive(t, s) == 1 }, patience, 5*time.Millisecond,
		"the refused one has none")
	limit := func(tickets uint64) {
		_, err := s.admin.Settings(ctx,
			&zamokpb.SettingsRequest{Quotas: &zamokpb.Quotas{Tickets: tickets}})
		require.NoError(t, err)
	}
	limit(1)
	for range 2 { // in the log, and then before it
		_, err = s.Acquire(ctx, once("more", clock.Minute, 0))
		require.ErrorContains(t, err, "the quota of this cluster for the tickets")
		require.Eventually(t, func() bool { return alive(t, s) == 1 }, patience, 5*time.Millisecond,
			"nor has one that a quota refused")
	}
	limit(fsm.QuotasDefault().Tickets)

	// a refusal of it would end the session, and the first acquisition with it
	second := once("second", clock.Minute, 0)
	second.Secret, second.Acquire.Ticket, second.Acquire.Items[0].Name = request.Secret, 2, "stock"
	_, err = s.Acquire(ctx, second)
	require.ErrorContains(t, err, "ticket: is 2")
	check, err := s.Check(ctx, &zamokpb.CheckRequest{Name: "stock", Token: held.State.Token})
	require.NoError(t, err)
	assert.True(t, check.Held)

	broken, end := context.WithCancel(ctx)
	go func() {
		assert.Eventually(t, func() bool { return alive(t, s) == 2 }, patience, 5*time.Millisecond)
		end()
	}()
	_, err = s.Acquire(broken, once("stock", clock.Minute, -1))
	require.Error(t, err)
	require.Eventually(t, func() bool { return alive(t, s) == 1 }, patience, 5*time.Millisecond,
		"nor has the broken one")
	lock, err := s.Get(ctx, &zamokpb.GetRequest{Name: "stock"})
	require.NoError(t, err)
	assert.Zero(t, lock.Lock.Waiters)

	closed, err := s.CloseSession(ctx,
		&zamokpb.CloseSessionRequest{Session: held.Session, Secret: request.Secret, Ticket: 1})
	require.NoError(t, err)
	assert.Equal(t, held.State.Token, closed.State.Token)
	assert.Zero(t, alive(t, s))
	request.Settings = nil
	_, err = s.Acquire(ctx, request)
	require.ErrorContains(t, err, "settings")
}

func TestASessionOfItsOwnLivesWithItsCall(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	ctx, s := soon(t), call(t, c.leader())
	const ttl = 2 * clock.Second
	first := once("stock", clock.Minute, 0)
	held, err := s.Acquire(ctx, first)
	require.NoError(t, err)
	began, waiting := time.Now(), once("stock", ttl, -1)
	waiting.Poll = int64(ttl + clock.Second)
	still, err := s.Acquire(ctx, waiting)
	require.NoError(t, err)
	assert.Equal(t, zamokpb.State_STATE_WAITING, still.State.State)
	assert.Greater(t, time.Since(began), ttl.Duration())
	_, err = s.CloseSession(ctx,
		&zamokpb.CloseSessionRequest{Session: held.Session, Secret: first.Secret})
	require.NoError(t, err)
	got, err := s.Acquire(ctx, waiting)
	require.NoError(t, err)
	assert.Equal(t, zamokpb.State_STATE_GRANTED, got.State.State)
	assert.Equal(t, still.Session, got.Session)
}

// A call that was delayed arrives after its repetition was granted, and its connection breaks: the
// session of the lock stays.
func TestALateCallLeavesTheSessionOfItsOwn(t *testing.T) {
	c := startCluster(t, 1, nil)
	ctx, n := soon(t), c.leader()
	s := call(t, n)
	request := once("stock", clock.Minute, 0)
	held, err := s.Acquire(ctx, request)
	require.NoError(t, err)

	broken, end := context.WithCancel(ctx)
	end()
	// as it arrives, with its connection broken already
	_, err = n.server.gate.Do(broken, gate.Arrival{Address: "127.0.0.1:1"}, request)
	require.Error(t, err)
	again, err := s.Acquire(ctx, request) // behind whatever the late call has submitted
	require.NoError(t, err)
	assert.Equal(t, held.Session, again.Session)
	assert.Equal(t, held.State.Token, again.State.Token)
}
