package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/raftnode"
)

// A leader without progress transfers the leadership in time: no program loses a lock with a ttl of
// 10 s, and other locks are granted soon.
func TestNoLockIsLostToALeaderWithoutProgress(t *testing.T) {
	for name, impair := range map[string]func(*Sim, *Node){
		"flushes take 1 s longer": func(_ *Sim, n *Node) { n.Disk.SlowDown(time.Second) },
		"flushes take 2 s longer": func(_ *Sim, n *Node) { n.Disk.SlowDown(2 * time.Second) },
		"a black hole": func(s *Sim, n *Node) {
			s.Network.BlackHole(s.routesFrom(n.Host)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runStarted(t, Config{WriteTimeMax: writeTimeMax}, func(s *Sim, impaired *Node) {
				ctx := s.Within(5 * time.Minute)
				p := s.program("p", nil)
				held, err := p.Lock(ctx, "x")
				require.NoError(s, err)
				load := s.Load(4, 100*time.Millisecond)
				time.Sleep(5 * time.Second)
				impair(s, impaired)
				from := s.Elapsed()
				large := s.begin(ctx, p, "large", client.WithMeta(make([]byte, 4000)))
				s.LeaderOtherThan(impaired)
				took := s.Elapsed() - from
				began := s.Elapsed()
				_, err = p.Lock(ctx, "y")
				require.NoError(s, err)
				s.Logf("another leads after %v; a lock is granted %v later", took,
					s.Elapsed()-began)
				s.awaitResult(large, 10*time.Second)
				time.Sleep(30 * time.Second)
				assert.LessOrEqual(s, took, 5*time.Second)
				assert.NoError(s, held.Err(), "a lock with a ttl of 10 s was lost")
				assert.Equal(s, map[string]int{raftnode.Moved: 1}, s.Moves())
				s.Network.HealAll()
				impaired.Disk.SlowDown(0)
				load.Stop()
				s.checkNodes()
			})
		})
	}
}

// Nor does a program lose a lock when segments of the leader are lost and sent again, or its
// process runs for a tenth of the time. The leader may stay, and the leadership moves at most once.
func TestAnImpairedLeaderLosesNoLock(t *testing.T) {
	for name, impair := range map[string]func(*Sim, *Node) (heal func()){
		"a third is lost one way": func(s *Sim, n *Node) func() {
			s.Network.Lose(1.0/3, s.routesFrom(n.Host)...)
			return s.Network.HealAll
		},
		"a throttled processor": func(s *Sim, n *Node) func() { return n.throttle() },
	} {
		t.Run(name, func(t *testing.T) {
			runStarted(t, Config{WriteTimeMax: writeTimeMax, AdaptiveTimeouts: true},
				func(s *Sim, impaired *Node) {
					p := s.program("p", nil)
					held, err := p.Lock(s.Within(time.Minute), "x")
					require.NoError(s, err)
					load := s.Load(4, 100*time.Millisecond)
					time.Sleep(5 * time.Second)
					heal := impair(s, impaired)
					time.Sleep(time.Minute)
					assert.NoError(s, held.Err())
					assert.LessOrEqual(s, s.Moves()[raftnode.Moved], 1)
					heal()
					load.Stop()
					s.checkNodes()
				})
		})
	}
}
