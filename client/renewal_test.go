package client

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
)

func TestRenewals(t *testing.T) {
	b := newBare(t)
	quiet := func(d clock.Span) {
		b.pass(d)
		sent, _ := b.outgoing()
		require.Empty(t, sent)
	}
	quiet(4400 * clock.Millisecond)
	b.pass(1200 * clock.Millisecond)
	sent, _ := b.outgoing()
	require.Equal(t, []string{"alive"}, sent,
		"after a half while nothing is held, give or take a tenth")
	quiet(500 * clock.Millisecond)
	b.pass(400 * clock.Millisecond)
	sent, frame := b.outgoing()
	require.Equal(t, []string{"alive"}, sent, "and each twelfth without an answer")
	quiet(500 * clock.Millisecond)
	b.confirm(frame)
	quiet(3900 * clock.Millisecond)
	b.pass(1200 * clock.Millisecond)
	sent, frame = b.outgoing()
	require.Equal(t, []string{"alive"}, sent, "a half after the confirmed one was sent")
	b.confirm(frame)
	held := b.requests(1)[0]
	_, frame = b.outgoing()
	b.confirm(frame)
	b.push(state(1, granted, 0))
	require.NotNil(t, b.hand(held))
	quiet(2900 * clock.Millisecond)
	b.pass(800 * clock.Millisecond)
	sent, _ = b.outgoing()
	require.Equal(t, []string{"alive"}, sent, "a third, while a lock is held")
	b.pass(800 * clock.Millisecond)
	b.outgoing()
	require.NoError(t, context.Cause(b.st.ctx))
	b.pass(clock.Second)
	require.ErrorIs(t, context.Cause(b.st.ctx), errSilent, "another node is asked in time")
}

// What is refused before the log renews nothing. A session that sends little else is renewed all
// the same.
func TestASessionIsRenewedWhileItsRequestsAreRefused(t *testing.T) {
	b := newBare(t)
	held := b.requests(1)[0]
	_, frame := b.outgoing()
	b.confirm(frame)
	b.push(state(1, granted, 0))
	l := b.hand(held)
	require.NotNil(t, l)
	keptAlive := 0
	for range 300 { // in 30 s, three times the ttl
		b.pass(100 * clock.Millisecond)
		b.requests(1)
		sent, frame := b.outgoing()
		b.reply(state(b.nextTicket-1, 0, 0), zamokpb.Code_CODE_LIMIT_EXCEEDED,
			zamokpb.Outcome_OUTCOME_NOT_DONE)
		if slices.Contains(sent, "alive") {
			b.confirm(frame)
			keptAlive++
		}
	}
	require.NoError(t, l.Err())
	require.LessOrEqual(t, keptAlive, 5, "not more often than needed")
}
