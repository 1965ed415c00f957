package sim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
)

// A leader dies: who holds continues holding, with its token; who waits keeps its place.
func TestClientsSurviveLeaderCrash(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a, b, c := w.program("a", nil), w.program("b", nil), w.program("c", nil)
		held := w.lock(a, "x")
		token := held.Token()
		second := w.wait(w.Within(time.Minute), b, "x")
		third := w.wait(w.Within(time.Minute), c, "x")

		dead := w.leader()
		dead.kill()
		w.leader()
		time.Sleep(15 * time.Second) // longer than the ttl: only renewals at the new leader keep it
		require.NoError(t, held.Err())
		require.Equal(t, token, held.Token())
		w.start(dead)

		from := time.Now()
		require.NoError(t, held.Unlock(w.Within(time.Minute)))
		next := w.awaitResult(second, time.Second)
		require.Less(t, time.Since(from), 100*time.Millisecond, "a handoff is one commit and one push")
		require.Greater(t, next.Token(), token)
		require.NoError(t, next.Unlock(w.Within(time.Minute)))
		w.awaitResult(third, time.Second)
	})
}

// The whole cluster is restarted within the ttl: no lock is lost.
func TestClientsSurviveFullRestart(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a, b := w.program("a", nil), w.program("b", nil)
		held := w.lock(a, "x")
		waits := w.wait(w.Within(time.Minute), b, "x")
		for _, n := range w.servers {
			n.kill()
		}
		time.Sleep(2 * time.Second)
		w.start(w.servers...)
		w.leader()
		time.Sleep(20 * time.Second)
		require.NoError(t, held.Err())
		require.NoError(t, held.Unlock(w.Within(time.Minute)))
		w.awaitResult(waits, time.Second)
	})
}

// Nobody leads for longer than the ttl. The cluster's clock stands and the client's does not: the lock is
// lost at the client's deadline, not revived, and released before anything else; then another gets it.
func TestOutageBeyondTTLLosesLock(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a, b := w.program("a", nil), w.program("b", nil)
		held := w.lock(a, "x")
		waits := w.wait(w.Within(time.Minute), b, "x")
		for _, n := range w.servers {
			n.kill()
		}
		down := time.Now()
		lost := w.awaitLost(held, 10*time.Second)
		require.LessOrEqual(t, lost.Sub(down), 9500*time.Millisecond+100*time.Millisecond)
		require.Greater(t, lost.Sub(down), 5*time.Second)
		time.Sleep(10 * time.Second)
		up := time.Now()
		w.start(w.servers...)
		next := w.awaitResult(waits, 10*time.Second)
		require.True(t, waits.at.After(lost))
		require.Less(t, waits.at.Sub(up), 5*time.Second, "released at once, not at the end of its lease")
		require.Greater(t, next.Token(), held.Token())
		require.ErrorIs(t, held.Err(), client.ErrLost, "lost is final")
		require.ErrorIs(t, held.Unlock(w.Within(time.Second)), client.ErrLost)
		again := w.lock(a, "z")
		require.Equal(t, held.Session(), again.Session(), "the session itself lived")
	})
}

// A client that is cut off believes no longer than the cluster does, and its call that waits continues in a
// new session when the old one is over.
func TestPartitionedClientReportsLossFirst(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a, b, c := w.program("a", nil), w.program("b", nil), w.program("c", nil)
		held := w.lock(a, "x")
		w.lock(c, "y")
		waits := w.wait(w.Within(2*time.Minute), a, "y")
		next := w.wait(w.Within(time.Minute), b, "x")
		w.cut("a")
		lost := w.awaitLost(held, 10*time.Second)
		got := w.awaitResult(next, 10*time.Second)
		require.True(t, next.at.After(lost), "granted %v before it was lost", lost.Sub(next.at))
		assert.Less(t, next.at.Sub(lost), 2*time.Second)
		time.Sleep(10 * time.Second)
		w.heal()
		time.Sleep(5 * time.Second)
		require.Equal(t, 1, w.waiters("y"), "the wait goes on in a new session")
		require.NoError(t, c.Close())
		own := w.awaitResult(waits, 5*time.Second)
		require.NotEqual(t, held.Session(), own.Session())
		require.ErrorIs(t, held.Err(), client.ErrLost)
		require.NoError(t, got.Err())
	})
}

// A machine sleeps through the lease: the first look after waking says so.
func TestSuspendedMachineLosesLocks(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a, b := w.program("a", nil), w.program("b", nil)
		held := w.lock(a, "x")
		told := held.Lost()
		waits := w.wait(w.Within(time.Minute), b, "x")
		a.clock.jump(10 * time.Second)
		select { // without a call: that would look itself
		case <-told:
		case <-time.After(150 * time.Millisecond):
			t.Fatal("nobody looked at the clocks")
		}
		second := w.lock(a, "y")
		a.clock.jump(10 * time.Second)
		require.ErrorIs(t, second.Err(), client.ErrLost, "and a call looks at once")
		require.ErrorIs(t, held.Err(), client.ErrLost)
		w.awaitResult(waits, time.Second)
		w.lock(a, "z")
	})
}

// A push that comes when the maximum hold is over hands nothing over; the call continues waiting.
func TestLateGrantIsNotReturned(t *testing.T) {
	t.Parallel()
	runServed(t, 1, func(w *servedCluster) {
		a := w.program("a", nil)
		w.lock(a, "elsewhere") // so that it is attached and proven
		w.Network.SetDelay("n1", "a", 3*time.Second, 0)
		ctx, cancel := context.WithCancel(w.Within(time.Minute))
		late := &pendingLock{done: make(chan struct{})}
		go func() {
			defer close(late.done)
			late.lock, late.err = a.Lock(ctx, "x", client.WithMaxHold(2*time.Second))
		}()
		time.Sleep(10 * time.Second)
		select {
		case <-late.done:
			t.Fatalf("%v, %v: handed over after its end", late.lock, late.err)
		default:
		}
		w.Network.SetDelay("n1", "a", delayMin, delaySpread)
		l := w.awaitResult(late, 10*time.Second)
		require.NoError(t, l.Err())
		cancel()
	})
}

// An Unlock that nobody confirms: the lock is not held from the call on, and is released as soon as somebody
// can be told, not at the end of the session.
func TestUnlockDuringOutageIsSentLater(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a, b := w.program("a", func(c *client.Config) { c.TTL = time.Minute }), w.program("b", nil)
		held := w.lock(a, "x")
		waits := w.wait(w.Within(2*time.Minute), b, "x")
		w.cut("a")
		from := time.Now()
		err := held.Unlock(w.Within(time.Minute))
		require.ErrorIs(t, err, client.ErrUnavailable)
		require.InDelta(t, 5, time.Since(from).Seconds(), 0.1)
		var e *client.UnavailableError
		require.ErrorAs(t, err, &e)
		require.Equal(t, client.Unknown, e.Outcome)
		require.ErrorIs(t, held.Err(), client.ErrNotHeld)
		time.Sleep(5 * time.Second)
		w.heal()
		w.awaitResult(waits, 5*time.Second)
	})
}
