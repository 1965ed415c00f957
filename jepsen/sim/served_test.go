package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/clock"
	"zamok/fsm"
)

// What Go programs see: package client against whole nodes, over the simulated network.

// runServed runs a story with a cluster of so many nodes, all of them up and one leading.
func runServed(t *testing.T, size int, story func(*Sim)) {
	t.Helper()
	runStarted(t, Config{Nodes: size}, func(s *Sim, _ *Node) {
		story(s)
	})
}

// cut takes a host off the network when nothing is under way in any program.
func (s *Sim) cut(host string) {
	synctest.Wait()
	s.Network.Isolate(host)
}

// jump puts a clock forward, as after sleep.
func (c *Clock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag -= clock.FromDuration(d)
}

// lock takes a lock within a minute of virtual time.
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

// wait begins to wait for a lock, and returns when the cluster knows of it.
func (s *Sim) wait(ctx context.Context, p *program, name string, opts ...client.Option) *pendingLock {
	s.Helper()
	before := s.waiters(name)
	a := &pendingLock{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.lock, a.err = p.Lock(ctx, name, opts...)
		a.at = time.Now()
	}()
	s.Await(10*time.Second, "a call waits for "+name, func() bool { return s.waiters(name) == before+1 })
	return a
}

// waiters is how many wait for a lock, as the leader knows it.
func (s *Sim) waiters(name string) (n int) {
	for _, leader := range s.Leaders() {
		leader.View(func(m *fsm.Machine) {
			if view, ok := m.Lock(name, 1); ok {
				n = view.Waiters
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

// awaitLost waits for a loss, and returns when it came.
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
