package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/client/call"
)

// An attempt continues while other nodes are tried: it begins once, and whichever ends first is the
// answer. Of those that are left when the answer is there each is cancelled, and how it ended is
// known.
func TestAttemptsContinueWhileOthersAreTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, refuses, silent := &node{address: "slow"}, &node{address: "refuses"},
			&node{address: "silent"}
		no, begun := errors.New("no"), make(chan *node, 10)
		a := attempts[string]{begin: func(ctx context.Context, _ context.CancelCauseFunc,
			one *node) (string, error) {
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
		require.Equal(t, attemptEnd[string]{node: slow, err: errNoAnswer},
			a.try(t.Context(), slow, 500*time.Millisecond))
		require.Equal(t, attemptEnd[string]{node: refuses, err: no},
			a.try(t.Context(), refuses, 500*time.Millisecond))
		require.Equal(t, attemptEnd[string]{node: silent, err: errNoAnswer},
			a.try(t.Context(), silent, 500*time.Millisecond))
		require.Equal(t, attemptEnd[string]{node: slow, err: errNoAnswer},
			a.try(t.Context(), slow, 500*time.Millisecond))
		e := a.try(t.Context(), silent, time.Second)
		require.Equal(t, attemptEnd[string]{node: slow, value: "done"}, e)
		require.Equal(t, otherNodeError{node: slow}, e.result(silent))
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, []attemptEnd[string]{{node: silent, err: errNoAnswer}}, a.end())
		for _, one := range []*node{slow, refuses, silent} { // each once
			require.Same(t, one, <-begun)
		}
		require.Empty(t, begun)
		require.Empty(t, a.end())
	})
}

// A call that gets a permanent error while another attempt has no answer may have taken effect,
// unless it only reads. A slow answer that comes before the call's time is over is its result.
func TestACallWaitsForASlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, err := newNodes(Config{Endpoints: []string{"slow:1", "other:1"}, Cluster: "c",
			RequestTimeout: 5 * time.Second})
		require.NoError(t, err)
		c := &Client{cfg: Config{RequestTimeout: 5 * time.Second}, nodes: nodes}
		defer func() { require.NoError(t, nodes.close()) }()
		answers := 4 * time.Second
		refused := &zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_INVALID, Message: "no",
			Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE}
		follower := &zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_NOT_LEADER, Message: "slow leads",
			Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE}
		other := follower
		try := func(effect call.Effect) (bool, error) {
			nodes.leader = nodes.all[0]
			done, inDoubt, err := c.Calls().Leader(t.Context(), effect, &zamokpb.NowRequest{},
				func(ctx context.Context, one call.Node) (any, error) {
					if one == nodes.all[1].Node || one == nodes.all[1].relay.Node {
						s, err := status.New(codes.Unavailable, other.Message).WithDetails(other)
						require.NoError(t, err)
						return nil, s.Err()
					}
					select {
					case <-time.After(answers):
						return true, nil
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				})
			require.Equal(t, done != nil, err == nil)
			return inDoubt, err
		}
		began := time.Now()
		inDoubt, err := try(call.Repeats)
		require.NoError(t, err)
		require.False(t, inDoubt, "the other has done nothing")
		require.Equal(t, answers, time.Since(began))

		other = refused
		inDoubt, err = try(call.Repeats)
		require.True(t, inDoubt)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, Unknown, e.Outcome)
		inDoubt, err = try(call.Reads)
		require.False(t, inDoubt)
		require.ErrorIs(t, err, ErrInvalid)

		answers, other = time.Hour, follower
		began = time.Now()
		_, err = try(call.Repeats)
		require.ErrorAs(t, err, &e)
		require.Equal(t, Unknown, e.Outcome)
		require.Equal(t, 5*time.Second, time.Since(began))

		// it ends in the pause before the next round
		c.cfg.RequestTimeout = attemptTimeoutMin + backoffMin/4
		_, err = try(call.Repeats)
		require.ErrorAs(t, err, &e)
		require.Equal(t, Unknown, e.Outcome)
	})
}
