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
func (w *servedCluster) grants(name string) *atomic.Int64 {
	w.Helper()
	p, n, begun := w.program("observer", nil), new(atomic.Int64), make(chan struct{})
	go func() {
		for m, err := range p.Watch(w.Within(time.Hour), name, 0) {
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
// long as the documentation of WithMaxHold says, never beyond the next grant.
func TestMaxHoldAfterLongWait(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{client.MaxHoldMin, time.Second, 2 * time.Second, time.Minute} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			runServed(t, 3, func(w *servedCluster) {
				a, b, c := w.program("a", nil), w.program("b", longTTL), w.program("c", longTTL)
				held := w.lock(a, "x")
				first := w.wait(w.Within(time.Hour), b, "x", client.WithMaxHold(d))
				second := w.wait(w.Within(time.Hour), c, "x")
				time.Sleep(3 * time.Minute)
				count := w.grants("x")
				free := time.Now()
				require.NoError(w, held.Unlock(w.Within(time.Minute)))
				l := w.awaitResult(first, time.Second)
				require.Less(w, first.at.Sub(free), 100*time.Millisecond)
				lost := w.awaitLost(l, d)
				most := d - max(d/20, 200*time.Millisecond)
				assert.GreaterOrEqual(w, lost.Sub(first.at), most-max(most/10, 20*time.Millisecond), "held for too short")
				w.awaitResult(second, time.Minute)
				require.True(w, second.at.After(lost), "granted %v before the loss", lost.Sub(second.at))
				assert.Less(w, second.at.Sub(free), d+500*time.Millisecond)
				time.Sleep(time.Second)
				require.EqualValues(w, 2, count.Load(), "each was granted once")
			})
		})
	}
}

// On a free lock the same holds, however long ago the session was confirmed.
func TestMaxHoldOfUncontendedLock(t *testing.T) {
	t.Parallel()
	runServed(t, 3, func(w *servedCluster) {
		a := w.program("a", longTTL)
		w.lock(a, "other")
		count := w.grants("x")
		for i, d := range []time.Duration{client.MaxHoldMin, time.Second} {
			time.Sleep(time.Minute)
			l, err := a.TryLock(w.Within(time.Minute), "x", client.WithMaxHold(d))
			require.NoError(w, err)
			at := time.Now()
			most := d - 200*time.Millisecond
			require.GreaterOrEqual(w, w.awaitLost(l, d).Sub(at), most-max(most/10, 20*time.Millisecond))
			require.ErrorIs(w, l.Unlock(w.Within(time.Minute)), client.ErrLost)
			time.Sleep(time.Second)
			require.EqualValues(w, i+1, count.Load(), "it was granted once")
		}
	})
}

// Nobody holds beyond the next grant, with the clocks of leader and client as far apart as they may be, in the worse
// direction, confirmations of any age, and messages that take their time.
func TestMaxHoldAtMaxDrift(t *testing.T) {
	t.Parallel()
	Run(t, Config{Nodes: 1, Serve: true}, func(s *Sim) {
		slow, next := s.startWithDrift(5 * time.Minute)
		random := s.Random("holds")
		for i := range 30 {
			name := fmt.Sprint("x", i)
			s.Network.SetDelay("slow", "n1", time.Duration(random.Int64N(int64(20*time.Millisecond))), 0)
			time.Sleep(time.Duration(random.Int64N(int64(90 * time.Second))))
			held, err := slow.Lock(s.Within(time.Minute), name,
				client.WithMaxHold(client.MaxHoldMin+time.Duration(random.Int64N(int64(10*time.Second)))))
			require.NoError(s, err)
			lostAt := make(chan time.Time, 1)
			go func() {
				<-held.Lost()
				lostAt <- time.Now()
			}()
			l, err := next.Lock(s.Within(time.Minute), name)
			got := time.Now()
			require.NoError(s, err)
			require.False(s, got.Before(<-lostAt), "granted before the loss")
			require.NoError(s, l.Unlock(s.Within(time.Minute)))
		}
	})
}

// The cluster is too far for so short a hold: nothing is handed over, those behind get their turn, and the grants
// come further and further apart.
func TestUndeliveredMaxHoldDoesNotSpin(t *testing.T) {
	t.Parallel()
	runServed(t, 1, func(w *servedCluster) {
		a, b := w.program("a", nil), w.program("b", nil)
		w.lock(a, "other")
		count := w.grants("x")
		w.Network.SetDelay("n1", "a", 150*time.Millisecond, 0)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := a.Lock(ctx, "x", client.WithMaxHold(300*time.Millisecond))
			failed <- err
		}()
		time.Sleep(30 * time.Second)
		require.NoError(w, w.lock(b, "x").Unlock(w.Within(time.Minute)))
		err := <-failed
		require.ErrorIs(w, err, client.ErrNotAcquired)
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.Less(w, count.Load(), int64(120), "grants in a minute")
		require.Greater(w, count.Load(), int64(30), "it was asked for again and again")
	})
}
