package client

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

// A request that exceeds a limit is sent again when the limit says so, later each time, and at once
// on another stream.
func TestALimitIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBare(t)
		b.c.log = slog.New(slog.DiscardHandler)
		one := b.requests(1)[0]
		overLimit := func(after time.Duration) {
			b.receive(&zamokpb.ServerMessage{
				Message: &zamokpb.ServerMessage_Answer{Answer: &zamokpb.Answer{
					Command: zamokpb.Command_COMMAND_ACQUIRE, State: state(1, 0, 0),
					Error: &zamokpb.ErrorInfo{
						Code:       zamokpb.Code_CODE_OVERLOADED,
						Outcome:    zamokpb.Outcome_OUTCOME_NOT_DONE,
						RetryAfter: int64(after)},
				}}})
		}
		least := time.Second
		for range 3 {
			require.Equal(t, []string{"acquire 1"}, b.sends())
			refused := time.Now()
			overLimit(time.Second)
			require.NoError(t, one.failure)
			require.Equal(t, []string{"acquire 1"}, b.sends())
			require.GreaterOrEqual(t, time.Since(refused), least)
			require.Less(t, time.Since(refused), 2*least)
			least = min(2*least, limitDelayMax)
			overLimit(time.Minute)
			b.breaks()
			b.attach(nil)
			one.limitDelay = least / 2
		}
		require.Equal(t, []string{"acquire 1"}, b.sends())
		time.Sleep(2 * time.Minute)
		sent, _ := b.outgoing()
		require.Empty(t, sent, "what the earlier streams were refused was sent with the next one")
	})
}

// One error may be the answer to several acquisitions.
func TestARefusalForSeveralTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBare(t)
		tickets := b.requests(5)
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

// An acquisition is marked as the original while each one that was sent came back as not done.
func TestTheFirstAcquireIsMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBare(t)
		b.requests(1)
		marked := func() bool {
			t.Helper()
			for {
				if frame := b.compose(); frame != nil {
					return frame.Messages[0].GetAcquire().First
				}
				<-b.wake
			}
		}
		refused := func(outcome zamokpb.Outcome) {
			b.reply(state(1, 0, 0), zamokpb.Code_CODE_OVERLOADED, outcome)
		}
		require.True(t, marked())
		refused(zamokpb.Outcome_OUTCOME_NOT_DONE)
		require.True(t, marked(), "again, since the one before was not done")
		b.attach(nil) // the answer is lost with its stream
		require.False(t, marked())
		refused(zamokpb.Outcome_OUTCOME_NOT_DONE)
		require.False(t, marked(),
			"this retransmission was not done, but the one before may have been")
		refused(zamokpb.Outcome_OUTCOME_UNKNOWN)
		require.False(t, marked())
	})
}

// A round that exceeds a limit at the leader waits for it, and tries no other node: none of them
// leads.
func TestARoundWaitsForALimit(t *testing.T) {
	n, err := newNodes(Config{Endpoints: []string{"one:1", "other:1"}, Cluster: "c"})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.close()) }()
	const wait = 50 * time.Millisecond
	refusal, err := status.New(codes.Unavailable, "a limit").WithDetails(&zamokpb.ErrorInfo{
		Code: zamokpb.Code_CODE_OVERLOADED, Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE,
		RetryAfter: int64(wait)})
	require.NoError(t, err)
	for route, times := range map[route]int{leaderOrRelay: 1, anyNode: 2} {
		tries, began := 0, time.Now()
		require.Equal(t, errRoundFailed, n.tryInTurn(t.Context(), route, func(*node) error {
			tries++
			return refusal.Err()
		}))
		require.Equal(t, times, tries)
		require.GreaterOrEqual(t, time.Since(began), wait)
	}
}
