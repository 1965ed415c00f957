package sim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode"
)

func TestIdleClusterWritesNothing(t *testing.T) {
	quiet := time.Hour
	if testing.Short() {
		quiet /= 10
	}
	// Heartbeats are not written, and an hour of them takes long; so there are fewer.
	calm := func(c *raftnode.Config) { c.ElectionTimeout = 2 * time.Second }
	RunParallel(t, Config{Limit: 2 * time.Hour, Tune: calm}, func(s *Sim) {
		s.startProcesses()
		time.Sleep(10 * time.Second)
		leader := s.Leader()
		id := leader.OpenSession("visitor", 5*time.Second)
		leader.Lock(id, 1, "x")
		time.Sleep(10 * time.Second) // the session has ended, and all nodes are announced
		before := leader.Status()
		time.Sleep(quiet)
		after := leader.Status()
		assert.Equal(s, before.RaftIndex, after.RaftIndex, "%v without sessions wrote something", quiet)
		assert.Equal(s, before.Term, after.Term)
		require.Equal(s, 1, s.Audit.Epochs())
	})
}

// A waiter costs nothing while nothing moves: with a hundred in the queue there are no more entries in the
// log than with one, and those are the session's renewals and the one checkpoint a second.
func TestWaitingClientWritesNoEntries(t *testing.T) {
	t.Parallel()
	const minutes = 3
	entries := func(waiters int) (n uint64) {
		Run(t, Config{Nodes: 1}, func(s *Sim) {
			s.Start()
			holder, waiter := s.program("holder", nil), s.program("waiter", nil)
			s.lock(holder, "x")
			ctx, cancel := context.WithCancel(context.Background())
			parked := make(chan error)
			for range waiters {
				go func() {
					_, err := waiter.Lock(ctx, "x")
					parked <- err
				}()
			}
			s.Await(10*time.Second, "all wait", func() bool { return s.waiters("x") == waiters })
			time.Sleep(5 * time.Second)
			raft := s.Leader().Running()
			before := raft.Status().RaftIndex
			time.Sleep(minutes * time.Minute)
			n = raft.Status().RaftIndex - before
			cancel()
			for range waiters {
				assert.ErrorIs(t, <-parked, context.Canceled)
			}
			assert.NoError(t, waiter.Close())
			assert.NoError(t, holder.Close())
		})
		return n
	}
	one, many := entries(1), entries(100)
	const renewals = 2 * minutes * 60 * 3 / 10 // of two sessions with a ttl of 10 s
	t.Logf("%d entries in %d minutes with one waiter, %d with a hundred", one, minutes, many)
	assert.LessOrEqual(t, many, uint64(minutes*60+2*renewals))
	assert.GreaterOrEqual(t, one, uint64(minutes*60*9/10), "a checkpoint each second")
	assert.InDelta(t, one, many, renewals)
}
