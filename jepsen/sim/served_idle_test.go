package sim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Who waits costs nothing while nothing moves: with a hundred in the queue there are no more entries in the
// log than with one, and those are the session's renewals and the one checkpoint a second.
func TestWaitingClientWritesNoEntries(t *testing.T) {
	t.Parallel()
	const minutes = 3
	entries := func(waiters int) (n uint64) {
		runServed(t, 1, func(w *servedCluster) {
			holder, waiter := w.program("holder", nil), w.program("waiter", nil)
			w.lock(holder, "x")
			ctx, cancel := context.WithCancel(context.Background())
			parked := make(chan error)
			for range waiters {
				go func() {
					_, err := waiter.Lock(ctx, "x")
					parked <- err
				}()
			}
			w.Await(10*time.Second, "all wait", func() bool { return w.waiters("x") == waiters })
			time.Sleep(5 * time.Second)
			raft := w.leader().node.Raft()
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
	assert.InDelta(t, one, many, renewals)
}
