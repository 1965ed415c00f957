package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/client/fence"
)

// guarded is what the locks of a test guard. Its counters are what a lock must keep apart.
type guarded struct {
	t      *testing.T
	guard  fence.Guard
	writer [names]atomic.Int32
	reader [names]atomic.Int32
	inside [names]atomic.Int32 // of permits
}

const (
	names   = 8
	permits = 3
)

// enter checks what must be so while a lock is held, as long as it is.
func (g *guarded) enter(l *client.Lock, kind fence.Kind, i int) {
	if l.Err() != nil {
		return // lost as soon as granted
	}
	name := l.Name()
	if kind != fence.Permits {
		if err := g.guard.Check(name, kind, uint64(l.Token())); err != nil && l.Err() == nil {
			g.t.Error(err)
		}
	}
	own, others := &g.writer[i], &g.reader[i]
	switch kind {
	case fence.Exclusive:
		if n := own.Add(1); n != 1 && l.Err() == nil {
			g.t.Errorf("%s: %d writers", name, n)
		}
	case fence.Shared:
		own, others = others, own
		own.Add(1)
	case fence.Permits:
		own, others = &g.inside[i], new(atomic.Int32)
		if n := own.Add(1); n > permits && l.Err() == nil {
			g.t.Errorf("%s: %d of %d permits", name, n, permits)
		}
	}
	if n := others.Load(); n != 0 && l.Err() == nil {
		g.t.Errorf("%s: held beside %d of another kind", name, n)
	}
	own.Add(-1)
}

// work makes one client do random things.
func (g *guarded) work(ctx context.Context, c *client.Client, rnd *rand.Rand, operations int) {
	for range operations {
		i := rnd.IntN(names)
		name := fmt.Sprintf("x%d", i)
		var l *client.Lock
		var err error
		kind := fence.Exclusive
		switch rnd.IntN(10) {
		case 0, 1:
			l, err = c.TryLock(ctx, name)
		case 2, 3:
			kind = fence.Shared
			l, err = c.Lock(ctx, name, client.Shared())
		case 4:
			kind, name = fence.Permits, fmt.Sprintf("p%d", i)
			l, err = c.Lock(ctx, name, client.Permits(1+rnd.Uint32N(2), permits))
			if l != nil && l.Err() == nil {
				g.enter(l, kind, i)
			}
		case 5: // gives up
			short, cancel := context.WithTimeout(ctx, time.Duration(rnd.IntN(20))*time.Millisecond)
			l, err = c.Lock(short, name)
			cancel()
		case 6:
			l, err = c.LockAll(ctx, []client.Item{client.ExclusiveItem(name),
				client.ExclusiveItem(fmt.Sprintf("y%d", i))})
		default:
			l, err = c.Lock(ctx, name)
		}
		if err != nil {
			if ctx.Err() != nil || !errors.Is(err, client.ErrNotAcquired) &&
				!errors.Is(err, client.ErrUnavailable) {
				g.t.Errorf("%s: %v", name, err)
				return
			}
			continue
		}
		if kind != fence.Permits {
			g.enter(l, kind, i)
		}
		if err := l.Unlock(ctx); err != nil && !errors.Is(err, client.ErrLost) &&
			!errors.Is(err, client.ErrUnavailable) {
			g.t.Errorf("%s: %v", name, err)
		}
	}
}

// Many clients do many things, and in the middle the leader dies: no two exclusive holders overlap,
// every call returns, and in the end nothing is held.
func TestMixedLoadOverALeadersDeath(t *testing.T) {
	takesTime(t)
	clients, operations := 64, 150
	// when the leader dies on a busy machine, so many would keep one another from the next
	if testing.Short() {
		clients, operations = 24, 40
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := startCluster(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 8*testTimeout)
	defer cancel()
	g := &guarded{t: t}
	var all sync.WaitGroup
	var done atomic.Int32
	var every []*client.Client
	for i := range clients {
		cl := c.client(func(cfg *client.Config) { cfg.TTL = client.DefaultTTL })
		every = append(every, cl)
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			g.work(ctx, cl, rnd, operations/2)
			done.Add(1)
			g.work(ctx, cl, rnd, operations-operations/2)
		})
	}
	require.Eventually(t, func() bool { return int(done.Load()) > clients/2 || ctx.Err() != nil },
		9*testTimeout, time.Millisecond)
	require.NoError(t, c.leader().Kill())
	all.Wait()
	require.NoError(t, ctx.Err())
	for _, cl := range every[1:] {
		hangUp(t, cl)
	}
	require.Eventually(t, func() bool {
		locks, _, err := every[0].List(ctx, "", "", 0)
		return err == nil && len(locks) == 0
	}, 2*testTimeout, 10*time.Millisecond, "something is still held")
}
