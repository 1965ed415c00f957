package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// Maximum holds, in a session without goroutines.

// A maximum hold may end before the clocks are looked at next.
func TestAMaximumHoldIsLookedAtFromTheBeginning(t *testing.T) {
	b := newBare(t)
	all := b.requests(2)
	_, frame := b.outgoing()
	b.confirm(frame)
	b.push(state(1, granted, 0))
	require.NotNil(t, b.hand(all[0]))
	<-b.kick
	b.renewalTick()
	st := state(2, granted, 0)
	st.HoldUntil = int64(b.time.Add(250 * clock.Millisecond))
	b.push(st)
	l := b.hand(all[1])
	require.NotNil(t, l)
	require.Len(t, b.kick, 1)
	require.Equal(t, 50*clock.Millisecond, b.renewalTick())
	b.pass(50 * clock.Millisecond)
	require.ErrorContains(t, l.Err(), "maximum hold")
}

func TestAHoldThatIsOverIsNotHandedOver(t *testing.T) {
	b := newBare(t)
	all := b.requests(1)
	_, frame := b.outgoing()
	b.confirm(frame)
	st := state(1, granted, 0)
	st.HoldUntil = int64(b.time.Add(2 * clock.Second))
	b.pass(2 * clock.Second)
	b.push(st)
	require.Nil(t, b.hand(all[0]))
	sent, frame := b.outgoing()
	require.Equal(t, []string{"acquire 1"}, sent)
	b.confirm(frame)
	require.Nil(t, b.hand(all[0]))
	require.ErrorIs(t, all[0].failure, errTooLate, "its caller requests it again")
	sent, _ = b.outgoing()
	require.Equal(t, []string{"drop 1"}, sent)
}

// What the last confirmation proves of a hold gets shorter as it ages. A new one is requested
// before that counts.
func TestAGrantIsNotGivenBackForAnOldConfirmation(t *testing.T) {
	const hold = 2 * time.Second
	for name, c := range map[string]struct {
		age      clock.Span // of the last confirmation, when the grant comes
		requests bool
	}{
		"young":           {clock.Second, false},
		"a tenth is lost": {5600 * clock.Millisecond, false},
		"more is lost":    {5620 * clock.Millisecond, true},
		"nothing is left": {38 * clock.Second, true},
		"and for long":    {50 * clock.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBare(t)
			b.ttl = clock.Minute
			b.lease = clock.NewLocalDeadline(b.ttl)
			b.attach(nil)
			one := b.enqueue(newRequest([]Item{ExclusiveItem("x")}, []Option{WithMaxHold(hold)}))
			_, frame := b.outgoing()
			b.confirm(frame)
			b.pass(c.age)
			b.outgoing() // a renewal without an answer
			st := state(1, granted, 0)
			st.HoldUntil = int64(b.time.Add(clock.FromDuration(hold)))
			b.push(st)
			l := b.hand(one)
			if !c.requests {
				require.NotNil(t, l)
				sent, _ := b.outgoing()
				require.Empty(t, sent)
				return
			}
			require.Nil(t, l)
			require.Nil(t, b.hand(one), "however often the caller looks")
			changed := one.changes()
			sent, frame := b.outgoing()
			require.Equal(t, []string{"acquire 1"}, sent, "a confirmation is requested, once")
			b.pass(10 * clock.Millisecond) // on its way back
			b.confirm(frame)
			require.True(t, isClosed(changed), "the caller is notified")
			l = b.hand(one)
			require.NotNil(t, l)
			b.pass(1779 * clock.Millisecond)
			require.NoError(t, l.Err())
			b.pass(clock.Millisecond)
			require.ErrorContains(t, l.Err(), "maximum hold",
				"200 ms before the cluster's, and the way of the confirmation")
		})
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// The request for a confirmation may fail, as by access rules that have changed. The grant stands,
// and must not be forgotten.
func TestARefusedRepeatChangesNothing(t *testing.T) {
	b := newBare(t)
	one := b.requests(1)[0]
	_, frame := b.outgoing()
	b.confirm(frame)
	b.pass(5 * clock.Second)
	st := state(1, granted, 0)
	st.HoldUntil = int64(b.time.Add(250 * clock.Millisecond))
	b.push(st)
	require.Nil(t, b.hand(one))
	sent, _ := b.outgoing()
	require.Equal(t, []string{"acquire 1"}, sent)
	b.reply(state(1, 0, 0), zamokpb.Code_CODE_DENIED, zamokpb.Outcome_OUTCOME_NOT_DONE)
	require.NoError(t, one.failure)
	require.NotEmpty(t, b.tickets)
	b.pass(silenceMax / 2) // then a KeepAlive requests it
	sent, frame = b.outgoing()
	require.Equal(t, []string{"alive"}, sent)
	b.confirm(frame)
	require.Nil(t, b.hand(one), "it is over now")
	sent, _ = b.outgoing()
	require.Equal(t, []string{"drop 1"}, sent)
}

// A lock that is handed over has its clocks looked at within checkEvery, and at its deadline. Locks
// that follow each other quickly wake nothing for that.
func TestTheClocksAreCheckedInTime(t *testing.T) {
	for name, c := range map[string]struct {
		next, left clock.Span // when the clocks are checked next, and how long the lease is valid
		wakes      bool
	}{
		"much later":          {clock.Second, 5 * clock.Second, true},
		"soon":                {checkEvery, 5 * clock.Second, false},
		"behind the deadline": {80 * clock.Millisecond, 50 * clock.Millisecond, true},
		"at the deadline":     {50 * clock.Millisecond, 50 * clock.Millisecond, false},
		"overdue":             {-10 * clock.Second, 5 * clock.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBare(t)
			all := b.requests(1)
			_, frame := b.outgoing()
			b.confirm(frame)
			until, _ := b.lease.Until()
			b.pass(b.clock.Now().Until(until) - c.left)
			b.push(state(1, granted, 0))
			select {
			case <-b.kick:
			default:
			}
			b.checksNext = b.clock.Now().Add(c.next)
			require.NotNil(t, b.hand(all[0]))
			require.Len(t, b.kick, map[bool]int{true: 1}[c.wakes])
		})
	}
}
