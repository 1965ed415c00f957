package fence_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/client/fence"
)

func Example() {
	var guard fence.Guard
	fmt.Println(guard.Check("stock", fence.Exclusive, 34)) // the new holder
	fmt.Println(guard.Check("stock", fence.Exclusive, 33)) // the old one, who was paused
	// Output:
	// <nil>
	// fence: the token is older than one seen before: the lock was lost ("stock": 33 after 34)
}

func TestGuard(t *testing.T) {
	var g fence.Guard
	require.ErrorIs(t, g.Check("a", fence.Exclusive, 0), fence.ErrNoToken)
	require.ErrorIs(t, g.Check("a", fence.Permits, 9), fence.ErrPermits)
	require.ErrorIs(t, g.Check("a", 0, 9), fence.ErrPermits)
	require.NoError(t, g.Check("a", fence.Shared, 9))
	require.NoError(t, g.Check("a", fence.Exclusive, 5), "a shared token raises nothing")
	require.NoError(t, g.Check("a", fence.Exclusive, 5), "the same grant again")
	require.ErrorIs(t, g.Check("a", fence.Shared, 4), fence.ErrStale)
	require.NoError(t, g.Check("b", fence.Exclusive, 1), "another resource")
	require.EqualValues(t, 5, g.Mark("a"))
	require.NoError(t, g.Set("a", 3))
	require.EqualValues(t, 5, g.Mark("a"), "Set lowers nothing")
}

func TestGuardHasALimit(t *testing.T) {
	g := fence.Guard{Marks: 1}
	require.NoError(t, g.Check("a", fence.Exclusive, 1))
	require.NoError(t, g.Check("a", fence.Exclusive, 2))
	require.ErrorIs(t, g.Check("b", fence.Exclusive, 3), fence.ErrFull)
	require.NoError(t, g.Check("b", fence.Shared, 3))
}

func TestATokenThatWasNeverIssuedIsRefused(t *testing.T) {
	issued, calls := uint64(10), 0
	down := errors.New("down")
	g := fence.Guard{Issued: func() (uint64, error) {
		calls++
		if issued == 0 {
			return 0, down
		}
		return issued, nil
	}}
	require.NoError(t, g.Check("a", fence.Exclusive, 10))
	require.NoError(t, g.Check("a", fence.Exclusive, 10))
	require.Equal(t, 1, calls, "what was issued once was issued")
	require.ErrorIs(t, g.Check("a", fence.Exclusive, 1<<60), fence.ErrAnotherCluster)
	require.NoError(t, g.Check("a", fence.Exclusive, 10), "it closed nothing")
	issued = 0
	require.ErrorIs(t, g.Check("a", fence.Exclusive, 11), down)
}

// F1 and F2 against a naive model, and from many goroutines.
func TestGuardIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g fence.Guard
		mark := map[string]uint64{}
		for range 50 {
			name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")
			token := rapid.Uint64Range(1, 20).Draw(t, "token")
			kind := rapid.SampledFrom([]fence.Kind{fence.Exclusive, fence.Shared}).Draw(t, "kind")
			passes := token >= mark[name]
			if got := g.Check(name, kind, token) == nil; got != passes {
				t.Fatalf("%s %v %d: %v with mark %d", name, kind, token, got, mark[name])
			}
			if passes && kind == fence.Exclusive {
				mark[name] = token
			}
		}
	})
	var g fence.Guard
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for token := uint64(1 + i); token < 1000; token += 8 {
				if g.Check("x", fence.Exclusive, token) == nil && g.Mark("x") < token {
					t.Errorf("%d was let through and is not remembered", token)
				}
			}
		})
	}
	all.Wait()
}
