package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An attempt continues while others are asked: it is begun once, and whichever ends first is the answer. Of those that are
// left when the answer is there each is cancelled, and how it ended is known.
func TestAttemptsContinueWhileOthersAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, refuses, silent := &node{address: "slow"}, &node{address: "refuses"}, &node{address: "silent"}
		no, begun := errors.New("no"), map[*node]int{}
		a := attempts[string]{begin: func(ctx context.Context, _ context.CancelCauseFunc, one *node) (string, error) {
			begun[one]++
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
		require.Equal(t, attempt[string]{node: slow, err: errNoAnswer}, a.ask(t.Context(), slow, 500*time.Millisecond))
		require.Equal(t, attempt[string]{node: refuses, err: no}, a.ask(t.Context(), refuses, 500*time.Millisecond))
		require.Equal(t, attempt[string]{node: silent, err: errNoAnswer}, a.ask(t.Context(), silent, 500*time.Millisecond))
		require.Equal(t, attempt[string]{node: slow, err: errNoAnswer}, a.ask(t.Context(), slow, 500*time.Millisecond))
		e := a.ask(t.Context(), silent, time.Second)
		require.Equal(t, attempt[string]{node: slow, value: "done"}, e)
		require.Equal(t, byOther{node: slow}, e.result(silent))
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, []attempt[string]{{node: silent, err: errNoAnswer}}, a.end())
		require.Equal(t, map[*node]int{slow: 1, refuses: 1, silent: 1}, begun)
		require.Empty(t, a.end())
	})
}
