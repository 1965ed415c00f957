package raftnode

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// Sessions that only live share entries: an entry costs the same whatever is in it, so what a
// cluster at rest does must not grow with who is connected. All of them live on, and none waits for
// long.
func TestRenewalsShareEntries(t *testing.T) {
	const sessions, ttl = 200, 10 * time.Second
	watched := time.Minute
	if testing.Short() {
		watched = 20 * time.Second
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		over := make(chan struct{})
		var renewing sync.WaitGroup
		var renewals atomic.Int64
		var longest atomic.Int64
		for i := range uint64(sessions) {
			var secret session.Hash
			binary.BigEndian.PutUint64(secret[:], i+1)
			a, err := leader.Propose(b.Context(),
				&fsm.OpenSession{Secret: secret,
					Settings: session.Settings{TTL: clock.FromDuration(ttl)}})
			require.NoError(b, err)
			renewing.Go(func() {
				random := rand.New(rand.NewPCG(seed, i))
				for {
					select {
					case <-over:
						return
					case <-time.After(ttl/3*9/10 + time.Duration(random.Int64N(int64(ttl/3/5)))):
					}
					asked := time.Now()
					renewed := make(chan struct{})
					leader.Renew(a.Result.Session, func(answer Answer, err error) {
						defer close(renewed)
						assert.NoError(b, err)
						assert.Equal(b, fsm.OK, answer.Result.Code)
					})
					<-renewed
					longest.Store(max(longest.Load(), int64(time.Since(asked))))
					renewals.Add(1)
				}
			})
		}
		time.Sleep(ttl)
		before, asked := leader.Status().RaftIndex, renewals.Load()
		time.Sleep(watched)
		entries, answered := leader.Status().RaftIndex-before, renewals.Load()-asked
		close(over)
		renewing.Wait()
		b.Logf("%d entries for %d renewals in %v; the longest took %v", entries, answered, watched,
			time.Duration(longest.Load()))
		assert.Greater(b, answered, int64(watched/ttl)*sessions)
		assert.Less(b, entries, uint64(watched/(200*time.Millisecond)))
		assert.Less(b, time.Duration(longest.Load()), 400*time.Millisecond)
	})
}
