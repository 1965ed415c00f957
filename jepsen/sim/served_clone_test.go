package sim

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
	"zamok/client"
)

// A client's own OpenStream is held up somewhere, the client gives it up and attaches by another, and then the
// first arrives. It takes the session from nobody. A copy of the process does, and is known for one at once, whether
// the late OpenStream has come or not.
func TestLateOpenStreamIsNotAClone(t *testing.T) {
	t.Parallel()
	t.Run("it comes", func(t *testing.T) { testLateOpenStream(t, true) })
	t.Run("it never comes", func(t *testing.T) { testLateOpenStream(t, false) })
}

func testLateOpenStream(t *testing.T, comes bool) {
	t.Parallel()
	runServed(t, 1, func(w *servedCluster) {
		var mu sync.Mutex
		var late *zamokpb.ClientFrame
		cut, hellos := false, 0
		m := &interceptor{
			toServer: func(f *zamokpb.ClientFrame) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				if f.Messages[0].GetOpen() == nil {
					return true, nil
				}
				if hellos++; hellos == 2 {
					late = f
					return false, nil
				}
				return true, nil
			},
			toClient: func(f *zamokpb.ServerFrame) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				if cut && hellos == 1 {
					return false, slowFrames()
				}
				return true, nil
			},
		}
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return hellos
		}
		a := w.program("a", w.startInterceptor(m))
		held := w.lock(a, "x")
		mu.Lock()
		cut = true
		mu.Unlock()
		w.lock(a, "y") // over the third stream at the latest
		require.Equal(t, 3, count())

		ctx, cancel := context.WithCancel(w.Within(time.Minute))
		defer cancel()
		hello := func(f *zamokpb.ClientFrame) error {
			ghost, err := m.node.Session(ctx)
			require.NoError(t, err)
			require.NoError(t, ghost.Send(f))
			_, err = ghost.Recv()
			return err
		}
		if comes {
			require.ErrorContains(t, hello(late), "not done")
			time.Sleep(15 * time.Second)
			require.NoError(t, held.Err())
			require.Equal(t, 3, count())
		}
		clone := proto.Clone(late).(*zamokpb.ClientFrame)
		clone.Messages[0].GetOpen().Attempt += 2 // it has seen as much as the client
		require.NoError(t, hello(clone))
		w.awaitLost(held, time.Second)
		require.ErrorIs(t, held.Err(), client.ErrSessionExpired)
		require.Equal(t, 3, count())
	})
}

// A copy of the process has attached meanwhile, from where both stood. The client that comes back as the second leaves
// the session to it.
func TestClientBehindItsCloneStops(t *testing.T) {
	t.Parallel()
	runServed(t, 1, func(w *servedCluster) {
		var mu sync.Mutex
		cut, hellos := false, 0
		via := w.startInterceptor(&interceptor{
			toServer: func(f *zamokpb.ClientFrame) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				if h := f.Messages[0].GetOpen(); h != nil {
					hellos++
					h.Attempt = 1 // the copy had the next number first
				}
				return true, nil
			},
			toClient: func(*zamokpb.ServerFrame) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				if cut && hellos == 1 {
					return false, slowFrames()
				}
				return true, nil
			},
		})
		a := w.program("a", via)
		held := w.lock(a, "x")
		mu.Lock()
		cut = true
		mu.Unlock()
		waits := w.wait(w.Within(time.Minute), a, "y")
		w.awaitLost(held, 5*time.Second)
		require.ErrorIs(t, held.Err(), client.ErrSessionExpired)
		require.NotEqual(t, held.Session(), w.awaitResult(waits, 20*time.Second).Session())
		require.Equal(t, 3, hellos)
	})
}

// Grants that pass a cancellation on their way are released, whoever sees the other first.
func TestCancelledWaitLeavesNoTicket(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a, b := w.program("a", nil), w.program("b", nil)
		w.Network.SetDelay("a", w.leader().id, 2*time.Millisecond, 3*time.Millisecond)
		w.Network.SetDelay(w.leader().id, "a", 2*time.Millisecond, 3*time.Millisecond)
		random := w.Random("cancel")
		granted := 0
		for range 200 {
			held := w.lock(b, "x")
			ctx, cancel := context.WithCancel(w.Within(time.Minute))
			waits := w.wait(ctx, a, "x")
			go func() { _ = held.Unlock(context.Background()) }()
			time.Sleep(time.Duration(random.IntN(12)) * time.Millisecond)
			cancel()
			<-waits.done
			if waits.err == nil {
				granted++
				require.NoError(t, waits.lock.Err())
				require.NoError(t, waits.lock.Unlock(ctx))
			}
			next := w.lock(b, "x")
			require.NoError(t, next.Unlock(w.Within(time.Second)))
		}
		w.Logf("%d of 200 were granted before", granted)
		require.Greater(t, granted, 20)
		require.Less(t, granted, 180)
	})
}

// A process dies: with release on disconnect its locks are free after the grace, not after the ttl. A
// connection that breaks and comes back within the grace costs nothing.
func TestReleaseOnDisconnect(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a, b := w.program("a", func(c *client.Config) { c.ReleaseOnDisconnect = 2 * time.Second }), w.program("b", nil)
		held := w.lock(a, "x")
		waits := w.wait(w.Within(time.Minute), b, "x")
		leads := w.leader()
		a.stack.resetAll()
		time.Sleep(2500 * time.Millisecond) // beyond the grace, and before a renewal: one on its way counts as life
		require.NoError(t, held.Err())
		require.Equal(t, leads, w.leader())
		died := time.Now()
		a.stack.CloseAll()
		w.awaitResult(waits, 5*time.Second)
		require.InDelta(t, 2, waits.at.Sub(died).Seconds(), 0.5)
	})
}

// resetAll closes what is open; the process lives and may connect again.
func (s *Stack) resetAll() {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	for c := range s.conns {
		c.closeLocked()
	}
}
