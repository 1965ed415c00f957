package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
)

// Of a limited wait the cluster is sent what is left: the request may be sent late, or once more in
// another session.
func TestTheClusterIsSentWhatIsLeftOfAWait(t *testing.T) {
	wait := func(opts ...Option) time.Duration {
		r := newRequest([]Item{ExclusiveItem("x")}, opts)
		r.waitUntil = time.Now().Add(r.wait / 2)
		return time.Duration(r.wire(1).Wait)
	}
	require.Equal(t, unlimited, wait())
	require.InDelta(t, 30*time.Minute, wait(WithWait(time.Hour)), float64(time.Minute))
	require.Zero(t, wait(WithWait(0)))
	r := newRequest([]Item{ExclusiveItem("x")}, []Option{WithWait(time.Hour)})
	r.waitUntil = time.Now().Add(-time.Second)
	require.Zero(t, r.wire(1).Wait, "its time is over, so it must not wait")
}

// Whatever ends a wait, the error says whether the cluster may still grant the lock.
func TestTheEndOfAWaitSaysWhetherItIsInDoubt(t *testing.T) {
	ours, cancelOurs := context.WithTimeoutCause(t.Context(), 0, errRequestTimeout)
	defer cancelOurs()
	callers, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx      context.Context
		wait     Option
		breaks   bool // the stream
		inDoubt  bool
		canceled bool
	}{
		"the context of Lock": {callers, func(*request) {}, false,
			false, true},
		"the context of Lock, without a stream": {callers, func(*request) {}, true,
			true, true},
		"the context of TryLock": {callers, WithWait(0), false, true, true},
		"the context of a limited wait": {callers, WithWait(time.Hour), false,
			false, true},
		"the context, limited, without a stream": {callers, WithWait(time.Hour), true,
			true, true},
		"RequestTimeout after the limit": {ours, WithWait(time.Hour), false,
			true, false},
		"RequestTimeout of TryLock": {ours, WithWait(0), false, true, false},
		"RequestTimeout after it, without a stream": {ours, WithWait(time.Hour), true,
			true, false},
		"the cluster, at the limit": {t.Context(), WithWait(time.Hour), false,
			false, false},
		"the cluster, at the limit, after reattaching": {t.Context(), WithWait(time.Hour), true,
			false, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBare(t)
			r := newRequest([]Item{ExclusiveItem("x")}, []Option{test.wait})
			one := b.enqueue(r)
			b.outgoing()
			b.reply(state(1, waiting, 0), 0, 0)
			if test.breaks {
				b.breaks()
			}
			byCluster := test.ctx.Err() == nil
			if ended := state(1, over, zamokpb.Reason_REASON_WAIT_TIMEOUT); byCluster &&
				test.breaks {
				b.attach([]*zamokpb.TicketState{ended})
			} else if byCluster {
				b.push(ended)
			}
			_, err := one.wait(test.ctx, r)
			if test.inDoubt {
				require.ErrorIs(t, err, ErrUnavailable)
				require.ErrorAs(t, err, new(*UnconfirmedError))
			} else {
				require.ErrorAs(t, err, new(*NotAcquiredError))
			}
			require.Equal(t, test.canceled, errors.Is(err, context.Canceled), "%v", err)
			require.Equal(t, byCluster, one.state == ticketEnded)
			if !byCluster { // and it is cancelled in the background
				b.attach([]*zamokpb.TicketState{state(1, waiting, 0)})
				require.Equal(t, []string{"drop 1"}, b.sends())
			}
		})
	}
}
