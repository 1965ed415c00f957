package client

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

// Of a limited wait the cluster is sent what is left: the request may be sent late, or once more in another session.
func TestTheClusterIsSentWhatIsLeftOfAWait(t *testing.T) {
	wait := func(opts ...Option) time.Duration {
		r := newRequest([]Item{ExclusiveItem("x")}, opts)
		r.waitUntil = time.Now().Add(r.waitFor / 2)
		return time.Duration(r.wire(1).WaitFor)
	}
	require.Equal(t, unlimited, wait())
	require.InDelta(t, 30*time.Minute, wait(WithWaitTimeout(time.Hour)), float64(time.Minute))
	require.Zero(t, wait(WithWaitTimeout(0)))
	r := newRequest([]Item{ExclusiveItem("x")}, []Option{WithWaitTimeout(time.Hour)})
	r.waitUntil = time.Now().Add(-time.Second)
	require.Zero(t, r.wire(1).WaitFor, "its time is over, so it must not wait")
}

// Whatever ends a wait, the error says whether the cluster may still grant the lock.
func TestTheEndOfAWaitSaysWhetherItIsInDoubt(t *testing.T) {
	ours, cancelOurs := context.WithTimeoutCause(t.Context(), 0, errRequestTimeout)
	defer cancelOurs()
	callers, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx      context.Context
		waitFor  Option
		breaks   bool // the stream
		inDoubt  bool
		canceled bool
	}{
		"the context of Lock":                          {callers, func(*request) {}, false, false, true},
		"the context of Lock, without a stream":        {callers, func(*request) {}, true, true, true},
		"the context of TryLock":                       {callers, WithWaitTimeout(0), false, true, true},
		"the context of a limited wait":                {callers, WithWaitTimeout(time.Hour), false, false, true},
		"the context, limited, without a stream":       {callers, WithWaitTimeout(time.Hour), true, true, true},
		"RequestTimeout after the limit":               {ours, WithWaitTimeout(time.Hour), false, true, false},
		"RequestTimeout of TryLock":                    {ours, WithWaitTimeout(0), false, true, false},
		"RequestTimeout after it, without a stream":    {ours, WithWaitTimeout(time.Hour), true, true, false},
		"the cluster, at the limit":                    {t.Context(), WithWaitTimeout(time.Hour), false, false, false},
		"the cluster, at the limit, after reattaching": {t.Context(), WithWaitTimeout(time.Hour), true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBare(t)
			r := newRequest([]Item{ExclusiveItem("x")}, []Option{test.waitFor})
			one := b.ask(r)
			b.outgoing()
			b.reply(state(1, waiting, 0), 0, 0)
			if test.breaks {
				b.breaks()
			}
			byCluster := test.ctx.Err() == nil
			if ended := state(1, over, zamokpb.Reason_REASON_WAIT_TIMEOUT); byCluster && test.breaks {
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

// What a limit refuses is asked for again when the limit says so, later each time, and not earlier on another stream.
func TestALimitIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBare(t)
		b.c.log = slog.New(slog.DiscardHandler)
		one := b.asks(1)[0]
		limited := func(after time.Duration) {
			b.receive(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Answer{Answer: &zamokpb.Answer{
				Command: zamokpb.Command_COMMAND_ACQUIRE, State: state(1, 0, 0), Error: &zamokpb.ErrorInfo{
					Code: zamokpb.Code_CODE_OVERLOADED, Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE, RetryAfter: int64(after)},
			}}})
		}
		least := time.Second
		for range 3 {
			require.Equal(t, []string{"acquire 1"}, b.sends())
			refused := time.Now()
			limited(time.Second)
			require.NoError(t, one.failure)
			require.Equal(t, []string{"acquire 1"}, b.sends())
			require.GreaterOrEqual(t, time.Since(refused), least)
			require.Less(t, time.Since(refused), 2*least)
			least = min(2*least, limitedMax)
			limited(time.Minute)
			b.breaks()
			b.attach(nil)
			one.limited = least / 2
		}
		require.Equal(t, []string{"acquire 1"}, b.sends())
		time.Sleep(2 * time.Minute)
		sent, _ := b.outgoing()
		require.Empty(t, sent, "what the earlier streams were refused was sent with the next one")
	})
}

// One refusal may be the answer of several acquisitions.
func TestARefusalForSeveralTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBare(t)
		tickets := b.asks(5)
		require.Len(t, b.sends(), 5)
		answer := func(a *zamokpb.Answer) {
			a.Command = zamokpb.Command_COMMAND_ACQUIRE
			b.receive(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Answer{Answer: a}})
		}
		answer(&zamokpb.Answer{State: state(2, 0, 0), Through: 4, Error: &zamokpb.ErrorInfo{
			Code: zamokpb.Code_CODE_OVERLOADED, Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE}})
		require.Equal(t, []string{"acquire 2", "acquire 3", "acquire 4"}, b.sends())
		answer(&zamokpb.Answer{State: state(4, 0, 0), Through: 1<<64 - 1, Error: &zamokpb.ErrorInfo{
			Code: zamokpb.Code_CODE_REFUSED, Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE}})
		for i, ticket := range tickets {
			require.Equal(t, i >= 3, ticket.failure != nil, i)
		}
	})
}

// An acquisition is marked as the first of its copies while every one that was sent was refused as not done.
func TestTheFirstAcquireIsMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBare(t)
		b.asks(1)
		marked := func() bool {
			t.Helper()
			for {
				if frame := b.compose(); frame != nil {
					return frame.Messages[0].GetAcquire().First
				}
				<-b.wake
			}
		}
		refused := func(outcome zamokpb.Outcome) { b.reply(state(1, 0, 0), zamokpb.Code_CODE_OVERLOADED, outcome) }
		require.True(t, marked())
		refused(zamokpb.Outcome_OUTCOME_NOT_DONE)
		require.True(t, marked(), "again, since the one before was not done")
		b.attach(nil) // the answer is lost with its stream
		require.False(t, marked())
		refused(zamokpb.Outcome_OUTCOME_NOT_DONE)
		require.False(t, marked(), "that this copy was not done says nothing of the one before")
		refused(zamokpb.Outcome_OUTCOME_UNKNOWN)
		require.False(t, marked())
	})
}

// A round that meets a limit at a node waits for it, and does not ask the others: they can't do it.
func TestARoundWaitsForALimit(t *testing.T) {
	n, err := newNodes(Config{Endpoints: []string{"one:1", "other:1"}, Cluster: "c"})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.close()) }()
	const wait = 50 * time.Millisecond
	refusal, err := status.New(codes.Unavailable, "a limit").WithDetails(&zamokpb.ErrorInfo{
		Code: zamokpb.Code_CODE_OVERLOADED, Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE, RetryAfter: int64(wait)})
	require.NoError(t, err)
	for whom, times := range map[whom]int{theLeader: 1, anyNode: 2} {
		asked, began := 0, time.Now()
		require.Equal(t, errNotAnswered, n.askInTurn(t.Context(), whom, func(*node) error {
			asked++
			return refusal.Err()
		}))
		require.Equal(t, times, asked)
		require.GreaterOrEqual(t, time.Since(began), wait)
	}
}
