package sim

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
)

// longTTL lets confirmations grow old: a session is renewed every ten minutes.
func longTTL(c *client.Config) { c.TTL = 30 * time.Minute }

// grants counts the grants of a lock from now on.
func (s *Sim) grants(name string) *atomic.Int64 {
	s.Helper()
	p, n, begun := s.program("observer", nil), new(atomic.Int64), make(chan struct{})
	go func() {
		for m, err := range p.Watch(s.Within(time.Hour), name, 0) {
			if len(m.Events) == 0 && err == nil {
				close(begun)
			}
			for _, e := range m.Events {
				if e.Kind == client.EventGranted {
					n.Add(1)
				}
			}
		}
	}()
	<-begun
	return n
}

// A grant that comes when the session's last confirmation is old is handed over to the first in line, and held for as
// long as WithMaxHold documents, never beyond the next grant.
func TestMaxHoldAfterLongWait(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{client.MaxHoldMin, time.Second, 2 * time.Second, time.Minute} {
		t.Run(d.String(), func(t *testing.T) {
			runServed(t, 3, func(s *Sim) {
				a, b, c := s.program("a", nil), s.program("b", longTTL), s.program("c", longTTL)
				held := s.lock(a, "x")
				first := s.wait(s.Within(time.Hour), b, "x", client.WithMaxHold(d))
				second := s.wait(s.Within(time.Hour), c, "x")
				time.Sleep(3 * time.Minute)
				count := s.grants("x")
				free := time.Now()
				require.NoError(s, held.Unlock(s.Within(time.Minute)))
				l := s.awaitResult(first, time.Second)
				require.Less(s, first.at.Sub(free), 100*time.Millisecond)
				lost := s.awaitLost(l, d)
				most := d - max(d/20, 200*time.Millisecond)
				assert.GreaterOrEqual(s, lost.Sub(first.at), most-max(most/10, 20*time.Millisecond), "held for too short")
				s.awaitResult(second, time.Minute)
				require.True(s, second.at.After(lost), "granted %v before the loss", lost.Sub(second.at))
				assert.Less(s, second.at.Sub(free), d+500*time.Millisecond)
				time.Sleep(time.Second)
				require.EqualValues(s, 2, count.Load(), "each was granted once")
			})
		})
	}
}

// No client holds beyond the next grant, with the clocks of leader and client as far apart as they may be, in the worse
// direction, confirmations of any age, and messages that take their time.
func TestMaxHoldAtMaxDrift(t *testing.T) {
	RunParallel(t, Config{Nodes: 1, Limit: time.Hour}, func(s *Sim) {
		slow, next := s.startWithDrift(5 * time.Minute)
		random := s.Random("holds")
		for i := range 30 {
			name := fmt.Sprint("x", i)
			s.Network.SetDelay("slow", "n1", time.Duration(random.Int64N(int64(20*time.Millisecond))), 0)
			time.Sleep(time.Duration(random.Int64N(int64(90 * time.Second))))
			held, err := slow.Lock(s.Within(time.Minute), name,
				client.WithMaxHold(client.MaxHoldMin+time.Duration(random.Int64N(int64(10*time.Second)))))
			require.NoError(s, err)
			s.requireLossBeforeGrant(held, next, name)
		}
	})
}

// The cluster is too far for so short a hold: nothing is handed over, those behind get their turn, and the grants
// come further and further apart.
func TestUndeliveredMaxHoldDoesNotSpin(t *testing.T) {
	runServed(t, 1, func(s *Sim) {
		a, b := s.program("a", nil), s.program("b", nil)
		s.lock(a, "other")
		count := s.grants("x")
		s.Network.SetDelay("n1", "a", 150*time.Millisecond, 0)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := a.Lock(ctx, "x", client.WithMaxHold(300*time.Millisecond))
			failed <- err
		}()
		time.Sleep(30 * time.Second)
		require.NoError(s, s.lock(b, "x").Unlock(s.Within(time.Minute)))
		err := <-failed
		require.ErrorIs(s, err, client.ErrNotAcquired)
		require.ErrorIs(s, err, context.DeadlineExceeded)
		require.Less(s, count.Load(), int64(120), "grants in a minute")
		require.Greater(s, count.Load(), int64(30), "it was asked for again and again")
	})
}

// The clocks of leader and client are as far apart as they may be, in the worse direction, answers take
// their time, and then the client receives nothing more: its lock is lost before it is granted to another,
// at whatever moment the cut falls between its readings of the clock.
func TestLossReportedInTimeAtMaxDrift(t *testing.T) {
	RunParallel(t, Config{Nodes: 1}, func(s *Sim) {
		slow, next := s.startWithDrift(4 * time.Second)
		random := s.Random("cuts")
		for i := range 40 {
			name := fmt.Sprint("x", i)
			held, err := slow.Lock(s.Within(time.Minute), name)
			require.NoError(s, err)
			s.Network.SetDelay("n1", "slow", 150*time.Millisecond, 0)
			time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
			s.Network.Isolate("slow")
			s.requireLossBeforeGrant(held, next, name)
			s.Network.HealAll()
			time.Sleep(3 * time.Second)
		}
	})
}

// requireLossBeforeGrant sees that a holder reports its loss before its lock is granted to the next client.
func (s *Sim) requireLossBeforeGrant(held *client.Lock, next *program, name string) {
	s.Helper()
	granted := make(chan time.Time, 1)
	go func() { // each side takes its own time
		l, err := next.Lock(s.Within(2*time.Minute), name)
		granted <- time.Now()
		if assert.NoError(s, err) {
			assert.NoError(s, l.Unlock(s.Within(time.Minute)))
		}
	}()
	<-held.Lost()
	lost, got := time.Now(), <-granted
	assert.False(s, got.Before(lost), "reported %v after the next grant", lost.Sub(got))
	time.Sleep(time.Second) // for the unlock
}

// driftMax is how far off a clock may be: two that are this far off are 5 % apart.
const driftMax = 0.025

// startWithDrift starts a cluster of one node whose clock is as fast as it may be, with a client on a machine
// whose clock is as slow as it may be, and one on a third machine.
func (s *Sim) startWithDrift(ttl time.Duration) (slow, next *program) {
	for _, n := range s.Nodes() {
		n.Clock.rate = 1 + driftMax
	}
	s.Start()
	machine := func(host string, rate float64) *program {
		return s.program(host, func(c *client.Config) { c.TTL, c.Clock = ttl, newClock(rate) })
	}
	return machine("slow", 1-driftMax), machine("next", 1)
}
