package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/raftnode"
)

// A leader that makes no progress hands over in time: no program loses a lock with a ttl of 10 s,
// and others are granted soon.
func TestNoLockIsLostToALeaderWithoutProgress(t *testing.T) {
	for name, ail := range map[string]func(*Sim, *Node){
		"flushes take 1 s longer": func(_ *Sim, n *Node) { n.Disk.SlowDown(time.Second) },
		"flushes take 2 s longer": func(_ *Sim, n *Node) { n.Disk.SlowDown(2 * time.Second) },
		"a black hole":            func(s *Sim, n *Node) { s.Network.BlackHole(s.routesFrom(n.Host)...) },
	} {
		t.Run(name, func(t *testing.T) {
			runStarted(t, Config{WriteTimeMax: writeTimeMax}, func(s *Sim, ails *Node) {
				ctx := s.Within(5 * time.Minute)
				p := s.program("p", nil)
				held, err := p.Lock(ctx, "x")
				require.NoError(s, err)
				load := s.Load(4, 100*time.Millisecond)
				time.Sleep(5 * time.Second)
				ail(s, ails)
				from := s.Elapsed()
				large := s.begin(ctx, p, "large", client.WithMetadata(make([]byte, 4000)))
				s.LeaderOtherThan(ails)
				took := s.Elapsed() - from
				began := s.Elapsed()
				_, err = p.Lock(ctx, "y")
				require.NoError(s, err)
				s.Logf("another leads after %v; a lock is granted %v later", took, s.Elapsed()-began)
				s.awaitResult(large, 10*time.Second)
				time.Sleep(30 * time.Second)
				assert.LessOrEqual(s, took, 5*time.Second)
				assert.NoError(s, held.Err(), "a lock with a ttl of 10 s was lost")
				assert.Equal(s, map[string]int{raftnode.Moved: 1}, s.Moves())
				s.Network.HealAll()
				ails.Disk.SlowDown(0)
				load.Stop()
				s.checkNodes()
			})
		})
	}
}

// Segments of a leader that are lost and sent again, and a leader whose process runs for a tenth of
// the time, cost no lock either. The leader need not give way, and the leadership does not move to
// and fro.
func TestALeaderThatIsHinderedLosesNoLock(t *testing.T) {
	for name, ail := range map[string]func(*Sim, *Node) (heal func()){
		"a third is lost one way": func(s *Sim, n *Node) func() {
			s.Network.Lose(1.0/3, s.routesFrom(n.Host)...)
			return s.Network.HealAll
		},
		"a throttled processor": func(s *Sim, n *Node) func() { return n.throttle() },
	} {
		t.Run(name, func(t *testing.T) {
			runStarted(t, Config{WriteTimeMax: writeTimeMax, AdaptiveTimeouts: true}, func(s *Sim, ails *Node) {
				p := s.program("p", nil)
				held, err := p.Lock(s.Within(time.Minute), "x")
				require.NoError(s, err)
				load := s.Load(4, 100*time.Millisecond)
				time.Sleep(5 * time.Second)
				heal := ail(s, ails)
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
