package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/raftnode"
	"zamok/raftnode/store"
)

// The log in segments: nodes die and come back under load, and a follower that was away for long has its
// whole log deleted for a snapshot, because segments can't have gaps.
func TestWALNodesRestart(t *testing.T) {
	t.Parallel()
	tune := func(c *raftnode.Config) {
		withSmallLogs(c)
		c.Store.Log = store.WAL
	}
	Run(t, Config{Disks: OnDisk, Tune: tune}, func(s *Sim) {
		leader := s.Start()
		load := s.Load(LoadConfig{Clients: 4, TTL: 5 * time.Second, Locks: 4, HoldMax: 500 * time.Millisecond})
		for range 3 {
			away := s.Others(leader)[0]
			away.Kill()
			time.Sleep(10 * time.Second)
			away.Restart()
			s.AwaitApplied(leader, away, backoffMax)
			assert.True(s, s.Trace.Has(away.ID, "Installed remote snapshot"))
			leader.Kill()
			next := s.LeaderOtherThan(leader)
			leader.Restart()
			s.AwaitApplied(next, leader, backoffMax)
			leader = next
		}
		load.Stop()
		s.AwaitDrained(10 * time.Second)
		s.Check(load.History)
	})
}
