package client_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/client"
)

// One program requests the largest possible acquisitions, in four sessions, as many at once as one
// may have, again and again, and for all of them once more when the leader dies. Another locks and
// unlocks one after the other, and holds a lock meanwhile, with the default lease: it is not kept
// from either, and one more can begin.
func TestAFloodTakesNothingFromOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases; the queue's part is TestAFloodDelaysItsOwnClientOnly of " +
			"package raftnode")
	}
	const (
		locks = 4096
		spans = 6 * time.Second
		// beside is how many of the flood may be carried out beside one turn. Each of its two
		// commands waits for two entries in flight and the next one, and six of the flood fill an
		// entry.
		beside = 128
	)
	root := t.TempDir()
	c := startNodes(t, 3, func(cfg *api.NodeConfig) { cfg.Store.Dir = filepath.Join(root, cfg.ID) })
	byDefault := func(cfg *client.Config) { cfg.TTL = client.DefaultTTL }
	bystander := c.client(byDefault)
	held, err := bystander.Lock(soon(t), "held")
	require.NoError(t, err)

	flooding, stop := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	var sent atomic.Int64
	var flooders [4]*client.Client
	for i := range flooders {
		flooders[i] = c.client(byDefault)
	}
	for i := range locks {
		items := make([]client.Item, 64)
		for k := range items {
			name := fmt.Sprint(i, "/", k, "/")
			items[k] = client.ExclusiveItem(name + strings.Repeat("n", 512-len(name)))
		}
		flood.Go(func() {
			for flooding.Err() == nil {
				if l, err := flooders[i%len(flooders)].LockAll(flooding, items,
					client.WithMeta(make([]byte, 4096))); err == nil {
					sent.Add(1)
					_ = l.Unlock(flooding)
				}
			}
		})
	}
	defer flood.Wait()
	defer stop()

	turns := func(what string) {
		count, longest, began := 0, time.Duration(0), time.Now()
		before := sent.Load()
		for ; time.Since(began) < spans; count++ {
			from, ctx := time.Now(), soon(t)
			l, err := bystander.Lock(ctx, "turn")
			require.NoError(t, err)
			require.NoError(t, l.Unlock(ctx))
			longest = max(longest, time.Since(from))
		}
		flooded := sent.Load() - before
		t.Logf("%s: %d turns beside %d of the flood, the longest took %v", what, count, flooded,
			longest)
		assert.Less(t, flooded, int64(beside*count), what)
	}
	turns("in the flood")
	began := time.Now()
	ctx := soon(t)
	l, err := c.client(byDefault).Lock(ctx, "newcomer")
	require.NoError(t, err)
	t.Logf("a newcomer has its lock after %v", time.Since(began))
	require.NoError(t, l.Unlock(ctx))

	require.NoError(t, c.leader().Kill())
	turns("from the death of the leader on")
	turns("after its leases would have ended")
	require.NoError(t, held.Err(), "it was renewed in time")
	require.NoError(t, held.Unlock(soon(t)))
}
