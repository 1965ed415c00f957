package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/workload"
)

// Go programs: package client with whole nodes, over the simulated network.

// runServed runs a story with a cluster of so many nodes, which has a leader.
func runServed(t *testing.T, size int, story func(*Sim)) {
	runStarted(t, Config{Nodes: size}, func(s *Sim, _ *Node) { story(s) })
}

// cut isolates a host when no goroutine has anything to do.
func (s *Sim) cut(host string) {
	synctest.Wait()
	s.Network.Isolate(host)
}

// jump puts a clock forward, as after a suspend.
func (c *Clock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag -= clock.FromDuration(d)
}

// lock acquires a lock within a minute of virtual time.
func (s *Sim) lock(p *program, name string, opts ...client.Option) *client.Lock {
	s.Helper()
	l, err := p.Lock(s.Within(time.Minute), name, opts...)
	require.NoError(s, err)
	return l
}

// pendingLock is a call of Lock in a goroutine of its own.
type pendingLock struct {
	lock *client.Lock
	err  error
	at   time.Time
	done chan struct{}
}

// begin begins a call of Lock.
func (s *Sim) begin(ctx context.Context, p *program, name string,
	opts ...client.Option) *pendingLock {
	a := &pendingLock{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.lock, a.err = p.Lock(ctx, name, opts...)
		a.at = time.Now()
	}()
	return a
}

// wait begins to wait for a lock, and returns when the cluster has enqueued the call.
func (s *Sim) wait(ctx context.Context, p *program, name string,
	opts ...client.Option) *pendingLock {
	s.Helper()
	before := s.waiters(name)
	a := s.begin(ctx, p, name, opts...)
	s.Await(10*time.Second, "a call waits for "+name,
		func() bool { return s.waiters(name) == before+1 })
	return a
}

// waiters is how many wait for a lock, according to the leader.
func (s *Sim) waiters(name string) (n int) {
	for _, leader := range s.Leaders() {
		leader.View(func(m *fsm.Machine) {
			if lock, used := m.Lock(name); used {
				n = lock.Waiters
			}
		})
	}
	return n
}

// awaitResult waits for the end of a wait.
func (s *Sim) awaitResult(a *pendingLock, within time.Duration) *client.Lock {
	s.Helper()
	select {
	case <-a.done:
	case <-time.After(within):
		s.Fatalf("at %v, a wait is not over after %v", s.Elapsed(), within)
	}
	require.NoError(s, a.err)
	return a.lock
}

// awaitLost waits for a loss, and returns its time.
func (s *Sim) awaitLost(l *client.Lock, within time.Duration) time.Time {
	s.Helper()
	select {
	case <-l.Lost():
	case <-time.After(within):
		s.Fatalf("at %v, not lost after %v", s.Elapsed(), within)
	}
	require.ErrorIs(s, l.Err(), client.ErrLost)
	return time.Now()
}

// The leader dies, or the whole cluster is restarted within the ttl: a holder keeps its lock and
// its token, and waiters their queue positions.
func TestClientsSurviveLeaderCrash(t *testing.T) {
	t.Parallel()
	for _, down := range []string{"leader", "all"} {
		t.Run(down, func(t *testing.T) {
			runServed(t, 3, func(s *Sim) {
				a, b, c := s.program("a", nil), s.program("b", nil), s.program("c", nil)
				held := s.lock(a, "x")
				token := held.Token()
				second := s.wait(s.Within(time.Minute), b, "x")
				third := s.wait(s.Within(time.Minute), c, "x")

				// longer than the ttl: only renewals at the new leader keep it
				dead, outage := []*Node{s.Leader()}, 15*time.Second
				if down == "all" {
					dead, outage = s.InitialMembers(), 2*time.Second
				}
				for _, n := range dead {
					n.Kill()
				}
				time.Sleep(outage)
				for _, n := range dead {
					n.StartProcess()
				}
				s.awaitAllOpen()
				s.Leader()
				time.Sleep(20 * time.Second)
				require.NoError(t, held.Err())
				require.Equal(t, token, held.Token())

				from := time.Now()
				require.NoError(t, held.Unlock(s.Within(time.Minute)))
				next := s.awaitResult(second, time.Second)
				require.Less(t, time.Since(from), 100*time.Millisecond,
					"a handoff is one commit and one push")
				require.Greater(t, next.Token(), token)
				require.NoError(t, next.Unlock(s.Within(time.Minute)))
				s.awaitResult(third, time.Second)
			})
		})
	}
}

// No node leads for longer than the ttl. The cluster's clock stands but the client's does not. So
// the lock is lost at the client's deadline and stays lost. It is released before anything else,
// and granted to another.
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
		require.Less(t, waits.at.Sub(up), 5*time.Second,
			"released at once, not at the end of its lease")
		require.Greater(t, next.Token(), held.Token())
		require.ErrorIs(t, held.Err(), client.ErrLost, "lost is final")
		require.ErrorIs(t, held.Unlock(s.Within(time.Second)), client.ErrLost)
		again := s.lock(a, "z")
		require.Equal(t, held.Session(), again.Session(), "the session itself lived")
	})
}

// An isolated client reports its loss before the next grant, and its waiting call continues in a
// new session after the end of the old one.
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

// A machine is suspended beyond the lease: its first reading of the clock afterwards reports the
// loss.
func TestSuspendedMachineLosesLocks(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		a, b := s.program("a", nil), s.program("b", nil)
		held := s.lock(a, "x")
		lost := held.Lost()
		waits := s.wait(s.Within(time.Minute), b, "x")
		a.clock.jump(10 * time.Second)
		select { // without a call, which would read the clock itself
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

// A lock is unlocked while its holder, or the next waiter, is isolated. In the first case Unlock
// has no answer: the lock is not held from the call on, and is released as soon as a node can be
// reached, not at the end of the session. In the second case the push of the grant is lost: the
// client finds the grant when it reconnects.
func TestGrantDuringOutageIsFoundOnReconnect(t *testing.T) {
	t.Parallel()
	for _, away := range []string{"holder", "next"} {
		t.Run(away, func(t *testing.T) {
			runServed(t, 3, func(s *Sim) {
				long := func(c *client.Config) { c.TTL = time.Minute }
				held := s.lock(s.program("holder", long), "x")
				waits := s.wait(s.Within(2*time.Minute), s.program("next", long), "x")
				time.Sleep(time.Second) // until it knows that it waits
				s.cut(away)
				from := time.Now()
				err := held.Unlock(s.Within(time.Minute))
				if away == "holder" {
					require.ErrorIs(t, err, client.ErrUnavailable)
					requireOutcome(s, err, client.Unknown)
					require.InDelta(t, 5, time.Since(from).Seconds(), 0.1)
					require.ErrorIs(t, held.Err(), client.ErrNotHeld)
				} else {
					require.NoError(t, err)
				}
				time.Sleep(30 * time.Second) // long enough for it to give up its stream
				s.Network.HealAll()
				next := s.awaitResult(waits, 10*time.Second)
				require.NoError(t, next.Unlock(s.Within(time.Second)))
			})
		})
	}
}

// An operator ends a session, and the answer is lost. The next attempt finds no such session, but
// the first one may have ended it.
func TestExpireWithUnknownOutcome(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		held, operator := s.loseAnswer()
		err := operator.admin().ExpireSession(s.Within(time.Minute), held.Session(), "a test")
		assert.ErrorIs(s, err, client.ErrSessionExpired)
		requireOutcome(s, err, client.Unknown)
		// A new call knows that it did nothing.
		requireOutcome(s, operator.admin().ExpireSession(s.Within(time.Minute), held.Session(),
			"a test"), client.NotDone)
	})
}

// The same for a forced release.
func TestForceReleaseWithUnknownOutcome(t *testing.T) {
	runServed(t, 3, func(s *Sim) {
		held, operator := s.loseAnswer()
		ended, err := operator.admin().ForceRelease(s.Within(time.Minute), "x", held.Token(),
			"a test")
		assert.Empty(s, ended)
		requireOutcome(s, err, client.Unknown)
		ended, err = operator.admin().ForceRelease(s.Within(time.Minute), "x", held.Token(),
			"a test")
		assert.NoError(s, err)
		assert.Empty(s, ended)
	})
}

// loseAnswer starts a holder of "x" and an operator whose next request arrives, but its answer is
// lost.
func (s *Sim) loseAnswer() (held *client.Lock, operator *program) {
	held, operator = s.lock(s.program("holder", nil), "x"), s.program("operator", nil)
	_, err := operator.admin().Now(s.Within(time.Minute)) // it knows the leader
	require.NoError(s, err)
	s.Network.Cut(route{s.Leader().Host, operator.host})
	time.AfterFunc(700*time.Millisecond, s.Network.HealAll)
	return held, operator
}

func requireOutcome(s *Sim, err error, want client.Outcome) {
	var failed *client.Error
	require.ErrorAs(s, err, &failed)
	require.Equal(s, want, failed.Outcome, "%v", err)
}

// longTTL makes confirmations old: a session is renewed every ten minutes.
func longTTL(c *client.Config) { c.TTL = 30 * time.Minute }

// grants counts the grants of a lock so far.
func (s *Sim) grants(name string) (n int) {
	for ev := range s.Audit.events() {
		if ev.Kind == fsm.EvGranted && ev.Items[0].Name == name {
			n++
		}
	}
	return n
}

// A grant that comes when the session's last confirmation is old reaches the first waiter, who
// holds it for as long as WithMaxHold documents, never beyond the next grant.
func TestMaxHoldAfterLongWait(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{client.MaxHoldMin, time.Second, 2 * time.Second,
		time.Minute} {
		t.Run(d.String(), func(t *testing.T) {
			runServed(t, 3, func(s *Sim) {
				a, b, c := s.program("a", nil), s.program("b", longTTL), s.program("c", longTTL)
				held := s.lock(a, "x")
				first := s.wait(s.Within(time.Hour), b, "x", client.WithMaxHold(d))
				second := s.wait(s.Within(time.Hour), c, "x")
				time.Sleep(3 * time.Minute)
				before := s.grants("x")
				free := time.Now()
				require.NoError(s, held.Unlock(s.Within(time.Minute)))
				l := s.awaitResult(first, time.Second)
				require.Less(s, first.at.Sub(free), 100*time.Millisecond)
				lost := s.awaitLost(l, d)
				most := d - max(d/20, 200*time.Millisecond)
				assert.GreaterOrEqual(s, lost.Sub(first.at), most-max(most/10, 20*time.Millisecond),
					"held for too short")
				s.awaitResult(second, time.Minute)
				require.True(s, second.at.After(lost), "granted %v before the loss",
					lost.Sub(second.at))
				assert.Less(s, second.at.Sub(free), d+500*time.Millisecond)
				time.Sleep(time.Second)
				require.Equal(s, 2, s.grants("x")-before, "each was granted once")
			})
		})
	}
}

// The latency is too high for so short a hold: the caller gets no lock, the waiters behind it are
// granted, and its grants come at longer and longer intervals. A call that still waits when the
// latency falls gets the lock.
func TestUndeliveredMaxHoldDoesNotSpin(t *testing.T) {
	runServed(t, 1, func(s *Sim) {
		a, b := s.program("a", nil), s.program("b", nil)
		s.lock(a, "other") // so that it is attached and its lease confirmed
		s.Network.SetDelay(150*time.Millisecond, 0, route{"n1", "a"})
		failed := s.begin(s.Within(time.Minute), a, "x", client.WithMaxHold(300*time.Millisecond))
		time.Sleep(30 * time.Second)
		require.NoError(s, s.lock(b, "x").Unlock(s.Within(time.Minute)))
		<-failed.done
		require.ErrorIs(s, failed.err, client.ErrNotAcquired)
		require.ErrorIs(s, failed.err, context.DeadlineExceeded)
		require.Less(s, s.grants("x"), 120, "grants in a minute")
		require.Greater(s, s.grants("x"), 30, "it was requested again and again")

		s.Network.SetDelay(3*time.Second, 0, route{"n1", "a"})
		late := s.begin(s.Within(time.Minute), a, "y", client.WithMaxHold(2*time.Second))
		time.Sleep(10 * time.Second)
		require.False(s, isClosed(late.done), "%v, %v: returned after its end", late.lock, late.err)
		s.Network.SetDelay(delayMin, delaySpread, route{"n1", "a"})
		require.NoError(s, s.awaitResult(late, 10*time.Second).Err())
	})
}

// The clocks of leader and client are as far apart as allowed, in the worse direction, answers are
// slow, and then the client receives nothing more. It loses its lock before the next grant, at
// whatever moment between two readings of its clock the network is cut.
func TestLossReportedInTimeAtMaxDrift(t *testing.T) {
	testAtMaxDrift(t, 4*time.Second, 40,
		func(s *Sim, random *rand.Rand, lock func(...client.Option)) {
			lock()
			s.Network.SetDelay(150*time.Millisecond, 0, route{"n1", "slow"})
			time.Sleep(workload.UpTo(random, 2*time.Second))
			s.Network.Isolate("slow")
		})
}

// No client holds a lock beyond the next grant, with the clocks of leader and client as far apart
// as allowed, in the worse direction, confirmations of any age, and slow messages.
func TestMaxHoldAtMaxDrift(t *testing.T) {
	testAtMaxDrift(t, 5*time.Minute, 30,
		func(s *Sim, random *rand.Rand, lock func(...client.Option)) {
			s.Network.SetDelay(workload.UpTo(random, 20*time.Millisecond), 0, route{"slow", "n1"})
			time.Sleep(workload.UpTo(random, 90*time.Second))
			lock(client.WithMaxHold(client.MaxHoldMin + workload.UpTo(random, 10*time.Second)))
		})
}

// testAtMaxDrift makes a client lose locks, and checks that it reports each loss before the next
// grant. The raw clock of the client is as slow as allowed, that of the node as fast as allowed.
// Both machines steer their other clock as far as they can: the client's is always slow, its timers
// too. The leader's is slow while the client can reach it, and fast afterwards.
func testAtMaxDrift(t *testing.T, ttl time.Duration, rounds int,
	lose func(*Sim, *rand.Rand, func(...client.Option))) {
	RunParallel(t, Config{Nodes: 1, Limit: time.Hour}, func(s *Sim) {
		const real = 1 / (1 - bendMax) // the rate of real time: virtual time is that of the timers
		leader := s.Node("n1").Clock
		leader.rate = real * (1 + driftMax)
		s.Start()
		machine := func(host string, rate float64) (*program, *Clock) {
			c := newClock(rate)
			return s.program(host, func(cfg *client.Config) { cfg.TTL, cfg.Clock = ttl, c }), c
		}
		slow, clock := machine("slow", real*(1-driftMax))
		next, _ := machine("next", real)
		clock.Bend(-bendMax)
		random := s.Random("rounds")
		for i := range rounds {
			name := fmt.Sprint("x", i)
			var held *client.Lock
			leader.Bend(-bendMax)
			lose(s, random, func(opts ...client.Option) { held = s.lock(slow, name, opts...) })
			leader.Bend(bendMax)
			granted := s.begin(s.Within(2*time.Minute), next, name)
			lost := s.awaitLost(held, time.Minute)
			l := s.awaitResult(granted, 2*time.Minute)
			assert.False(s, granted.at.Before(lost), "reported %v after the next grant",
				lost.Sub(granted.at))
			assert.NoError(s, l.Unlock(s.Within(time.Minute)))
			s.Network.HealAll()
			time.Sleep(3 * time.Second)
		}
	})
}

// driftMax is how far off a clock may be: two such clocks are 5 % apart.
const driftMax = 0.025
