package sim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
)

// An epoch is begun by an entry that nobody but its own node may propose. To see what a reading of an
// old epoch does, one is made here: after it the leader's readings are of an epoch that is over.
func TestClockReadingOfOldEpochIsIgnored(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
		dead := s.Holder("dead", "lost", 2*time.Second)
		dead.Die()
		forged := leader.MustPropose(&fsm.LeaderStart{Node: leader.ID, Nonce: 1, Cluster: fsm.ClusterID{1}})
		stood := forged.Time
		for range 30 {
			time.Sleep(100 * time.Millisecond)
			assert.Equal(s, stood, leader.MustPropose(nil).Time, "an old reading moved time")
		}
		_, _, ended := s.Audit.Ended(dead.Ref.Session)
		assert.False(s, ended, "a lease ended while time stood")

		leader.Kill()
		next := s.LeaderOtherThan(leader)
		s.Await(5*time.Second, "with a true epoch time goes on", func() bool {
			_, _, ended := s.Audit.Ended(dead.Ref.Session)
			return ended
		})
		assert.Greater(s, next.MustPropose(nil).Time, stood.Add(clock.Second))
		s.Check(dead.History)
	})
}

// A node opens its epoch for the entry that it proposed itself, not for one that bears its name.
func TestLeaderStartWithWrongNonceIsIgnored(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
		for _, n := range s.Others(leader) {
			forged := leader.MustPropose(&fsm.LeaderStart{Node: n.ID, Nonce: 1, Cluster: fsm.ClusterID{1}})
			s.AwaitApplied(leader, n, time.Second)
			n.Running().View(func(m *fsm.Machine) {
				assert.Equal(s, forged.Result.Index, m.Epoch(), "the machines took it for an epoch")
			})
			time.Sleep(time.Second)
			assert.Equal(s, []*Node{leader}, s.Leaders())
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := n.ReadBarrier(ctx)
			cancel()
			require.Equal(s, NotDone, outcomeOf(err), "%v", err)
		}
		s.Check()
	})
}
