package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

// An attempt continues while others are asked: it is begun once, and whichever ends first is the
// answer. Of those that are left when the answer is there each is cancelled, and how it ended is
// known.
func TestAttemptsContinueWhileOthersAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, refuses, silent := &node{address: "slow"}, &node{address: "refuses"}, &node{address: "silent"}
		no, begun := errors.New("no"), make(chan *node, 10)
		a := attempts[string]{begin: func(ctx context.Context, _ context.CancelCauseFunc, one *node) (string, error) {
			begun <- one
			switch one {
			case refuses:
				return "", no
			case slow:
				time.Sleep(2 * time.Second)
				return "done", nil
			}
			<-ctx.Done()
			return "", context.Cause(ctx)
		}}
		began := time.Now()
		require.Equal(t, attemptEnd[string]{node: slow, err: errNoAnswer}, a.ask(t.Context(), slow, 500*time.Millisecond))
		require.Equal(t, attemptEnd[string]{node: refuses, err: no}, a.ask(t.Context(), refuses, 500*time.Millisecond))
		require.Equal(t, attemptEnd[string]{node: silent, err: errNoAnswer}, a.ask(t.Context(), silent, 500*time.Millisecond))
		require.Equal(t, attemptEnd[string]{node: slow, err: errNoAnswer}, a.ask(t.Context(), slow, 500*time.Millisecond))
		e := a.ask(t.Context(), silent, time.Second)
		require.Equal(t, attemptEnd[string]{node: slow, value: "done"}, e)
		require.Equal(t, byOther{node: slow}, e.result(silent))
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, []attemptEnd[string]{{node: silent, err: errNoAnswer}}, a.end())
		for _, one := range []*node{slow, refuses, silent} { // each once
			require.Same(t, one, <-begun)
		}
		require.Empty(t, begun)
		require.Empty(t, a.end())
	})
}

// A call that is refused while another attempt has no answer may have taken effect, unless it only
// reads. A slow answer that comes before the call's time is over is its result.
func TestACallWaitsForASlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, err := newNodes(Config{Endpoints: []string{"slow:1", "other:1"}, Cluster: "c", RequestTimeout: 5 * time.Second})
		require.NoError(t, err)
		c := &Client{cfg: Config{RequestTimeout: 5 * time.Second}, nodes: nodes}
		defer func() { require.NoError(t, nodes.close()) }()
		answers := 4 * time.Second
		refused := &zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_INVALID, Message: "no", Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE}
		follower := &zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_NOT_LEADER, Message: "slow leads", Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE}
		other := follower
		ask := func(effect effect) (bool, error) {
			nodes.leader = nodes.all[0]
			done, inDoubt, err := call(t.Context(), c, effect, func(one *node, ctx context.Context, _ *zamokpb.NowRequest, _ ...grpc.CallOption) (bool, error) {
				if one.address == "other:1" {
					s, err := status.New(codes.Unavailable, other.Message).WithDetails(other)
					require.NoError(t, err)
					return false, s.Err()
				}
				select {
				case <-time.After(answers):
					return true, nil
				case <-ctx.Done():
					return false, ctx.Err()
				}
			}, &zamokpb.NowRequest{})
			require.Equal(t, done, err == nil)
			return inDoubt, err
		}
		began := time.Now()
		inDoubt, err := ask(repeats)
		require.NoError(t, err)
		require.False(t, inDoubt, "the other has done nothing")
		require.Equal(t, answers, time.Since(began))

		other = refused
		inDoubt, err = ask(repeats)
		require.True(t, inDoubt)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, Unknown, e.Outcome)
		inDoubt, err = ask(reads)
		require.False(t, inDoubt)
		require.ErrorIs(t, err, ErrInvalid)

		answers, other = time.Hour, follower
		began = time.Now()
		_, err = ask(repeats)
		require.ErrorAs(t, err, &e)
		require.Equal(t, Unknown, e.Outcome)
		require.Equal(t, 5*time.Second, time.Since(began))

		c.cfg.RequestTimeout = patienceMin + pauseMin/4 // it ends in the pause before the next round
		_, err = ask(repeats)
		require.ErrorAs(t, err, &e)
		require.Equal(t, Unknown, e.Outcome)
	})
}
