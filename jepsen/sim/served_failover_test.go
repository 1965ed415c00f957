package sim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
)

// A leader dies: a holder keeps its lock and its token, and a waiter its queue position.
func TestClientsSurviveLeaderCrash(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b, c := s.program("a", nil), s.program("b", nil), s.program("c", nil)
		held := s.lock(a, "x")
		token := held.Token()
		second := s.wait(s.Within(time.Minute), b, "x")
		third := s.wait(s.Within(time.Minute), c, "x")

		dead := s.Leader()
		dead.Kill()
		s.Leader()
		time.Sleep(15 * time.Second) // longer than the ttl: only renewals at the new leader keep it
		require.NoError(t, held.Err())
		require.Equal(t, token, held.Token())
		dead.Start()

		from := time.Now()
		require.NoError(t, held.Unlock(s.Within(time.Minute)))
		next := s.awaitResult(second, time.Second)
		require.Less(t, time.Since(from), 100*time.Millisecond, "a handoff is one commit and one push")
		require.Greater(t, next.Token(), token)
		require.NoError(t, next.Unlock(s.Within(time.Minute)))
		s.awaitResult(third, time.Second)
	})
}

// The whole cluster is restarted within the ttl: no lock is lost.
func TestClientsSurviveFullRestart(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b := s.program("a", nil), s.program("b", nil)
		held := s.lock(a, "x")
		waits := s.wait(s.Within(time.Minute), b, "x")
		for _, n := range s.InitialMembers() {
			n.Kill()
		}
		time.Sleep(2 * time.Second)
		s.Start()
		s.Leader()
		time.Sleep(20 * time.Second)
		require.NoError(t, held.Err())
		require.NoError(t, held.Unlock(s.Within(time.Minute)))
		s.awaitResult(waits, time.Second)
	})
}

// No node leads for longer than the ttl. The cluster's clock stands and the client's does not: the lock is
// lost at the client's deadline, not revived, and released before anything else; then another gets it.
func TestOutageBeyondTTLLosesLock(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b := s.program("a", nil), s.program("b", nil)
		held := s.lock(a, "x")
		waits := s.wait(s.Within(time.Minute), b, "x")
		for _, n := range s.InitialMembers() {
			n.Kill()
		}
		down := time.Now()
		lost := s.awaitLost(held, 10*time.Second)
		require.LessOrEqual(t, lost.Sub(down), 9500*time.Millisecond+100*time.Millisecond)
		require.Greater(t, lost.Sub(down), 5*time.Second)
		time.Sleep(10 * time.Second)
		up := time.Now()
		s.Start()
		next := s.awaitResult(waits, 10*time.Second)
		require.True(t, waits.at.After(lost))
		require.Less(t, waits.at.Sub(up), 5*time.Second, "released at once, not at the end of its lease")
		require.Greater(t, next.Token(), held.Token())
		require.ErrorIs(t, held.Err(), client.ErrLost, "lost is final")
		require.ErrorIs(t, held.Unlock(s.Within(time.Second)), client.ErrLost)
		again := s.lock(a, "z")
		require.Equal(t, held.Session(), again.Session(), "the session itself lived")
	})
}

// A client that is cut off reports its loss before the next grant, and its call that waits continues in a
// new session when the old one is over.
func TestPartitionedClientReportsLossFirst(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b, c := s.program("a", nil), s.program("b", nil), s.program("c", nil)
		held := s.lock(a, "x")
		s.lock(c, "y")
		waits := s.wait(s.Within(2*time.Minute), a, "y")
		next := s.wait(s.Within(time.Minute), b, "x")
		s.cut("a")
		lost := s.awaitLost(held, 10*time.Second)
		got := s.awaitResult(next, 10*time.Second)
		require.True(t, next.at.After(lost), "granted %v before it was lost", lost.Sub(next.at))
		assert.Less(t, next.at.Sub(lost), 2*time.Second)
		time.Sleep(10 * time.Second)
		s.Network.HealAll()
		time.Sleep(5 * time.Second)
		require.Equal(t, 1, s.waiters("y"), "the wait continues in a new session")
		require.NoError(t, c.Close())
		own := s.awaitResult(waits, 5*time.Second)
		require.NotEqual(t, held.Session(), own.Session())
		require.ErrorIs(t, held.Err(), client.ErrLost)
		require.NoError(t, got.Err())
	})
}

// A machine sleeps through the lease: the first reading of the clock after waking reports the loss.
func TestSuspendedMachineLosesLocks(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b := s.program("a", nil), s.program("b", nil)
		held := s.lock(a, "x")
		lost := held.Lost()
		waits := s.wait(s.Within(time.Minute), b, "x")
		a.clock.jump(10 * time.Second)
		select { // without a call: that would look itself
		case <-lost:
		case <-time.After(150 * time.Millisecond):
			t.Fatal("the clocks were not read")
		}
		second := s.lock(a, "y")
		a.clock.jump(10 * time.Second)
		require.ErrorIs(t, second.Err(), client.ErrLost, "and a call reads the clock at once")
		require.ErrorIs(t, held.Err(), client.ErrLost)
		s.awaitResult(waits, time.Second)
		s.lock(a, "z")
	})
}

// A push that comes when the maximum hold is over hands nothing over; the call continues waiting.
func TestLateGrantIsNotReturned(t *testing.T) {
	runServed(t, 1, func(s *Sim) {
		a := s.program("a", nil)
		s.lock(a, "other") // so that it is attached and its lease confirmed
		s.Network.SetDelay("n1", "a", 3*time.Second, 0)
		ctx, cancel := context.WithCancel(s.Within(time.Minute))
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
		s.Network.SetDelay("n1", "a", delayMin, delaySpread)
		l := s.awaitResult(late, 10*time.Second)
		require.NoError(t, l.Err())
		cancel()
	})
}

// An Unlock without an answer: the lock is not held from the call on, and is released as soon as a node can be
// reached, not at the end of the session.
func TestUnlockDuringOutageIsSentLater(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b := s.program("a", func(c *client.Config) { c.TTL = time.Minute }), s.program("b", nil)
		held := s.lock(a, "x")
		waits := s.wait(s.Within(2*time.Minute), b, "x")
		s.cut("a")
		from := time.Now()
		err := held.Unlock(s.Within(time.Minute))
		require.ErrorIs(t, err, client.ErrUnavailable)
		require.InDelta(t, 5, time.Since(from).Seconds(), 0.1)
		var e *client.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, client.Unknown, e.Outcome)
		require.ErrorIs(t, held.Err(), client.ErrNotHeld)
		time.Sleep(5 * time.Second)
		s.Network.HealAll()
		s.awaitResult(waits, 5*time.Second)
	})
}

// A push that comes while its client is cut off is lost. The client finds the grant when it is back.
func TestGrantDuringOutageIsFoundOnReconnect(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b := s.program("a", nil), s.program("b", func(c *client.Config) { c.TTL = time.Minute })
		held := s.lock(a, "x")
		waits := s.wait(s.Within(2*time.Minute), b, "x")
		time.Sleep(time.Second) // it knows that it waits
		s.cut("b")
		require.NoError(t, held.Unlock(s.Within(time.Second)))
		time.Sleep(30 * time.Second) // long enough for it to give its stream up
		s.Network.HealAll()
		next := s.awaitResult(waits, 10*time.Second)
		require.NoError(t, next.Unlock(s.Within(time.Second)))
	})
}

// An operator ends a session, and the answer is lost. The next attempt finds no such session, which does not
// mean that nothing was done.
func TestExpireWithUnknownOutcome(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		held, operator := s.loseAnswer()
		err := operator.ExpireSession(s.Within(time.Minute), held.Session(), "a test")
		assert.ErrorIs(s, err, client.ErrSessionExpired)
		requireOutcome(s, err, client.Unknown)
		// Asked again, it is known that this call did nothing.
		requireOutcome(s, operator.ExpireSession(s.Within(time.Minute), held.Session(), "a test"), client.NotDone)
	})
}

// The same of a lock that is taken from its holder.
func TestForceReleaseWithUnknownOutcome(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		held, operator := s.loseAnswer()
		ended, err := operator.ForceRelease(s.Within(time.Minute), "x", held.Token(), "a test")
		assert.Empty(s, ended)
		requireOutcome(s, err, client.Unknown)
		ended, err = operator.ForceRelease(s.Within(time.Minute), "x", held.Token(), "a test")
		assert.NoError(s, err)
		assert.Empty(s, ended)
	})
}

// loseAnswer starts a holder of "x" and an operator whose next request arrives, and its answer does not.
func (s *Sim) loseAnswer() (held *client.Lock, operator *program) {
	held, operator = s.lock(s.program("holder", nil), "x"), s.program("operator", nil)
	_, err := operator.Now(s.Within(time.Minute)) // it knows the leader
	require.NoError(s, err)
	s.Network.Cut(s.Leader().Host, operator.host)
	time.AfterFunc(700*time.Millisecond, s.Network.HealAll)
	return held, operator
}

func requireOutcome(s *Sim, err error, want client.Outcome) {
	s.Helper()
	var failed *client.Error
	require.ErrorAs(s, err, &failed)
	require.Equal(s, want, failed.Outcome, "%v", err)
}
