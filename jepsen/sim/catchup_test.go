package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/store"
	"zamok/session"
)

// withSmallLogs lets nodes make snapshots soon, so that a node that was away needs one.
func withSmallLogs(c *raftnode.Config) { c.SnapshotEntries, c.SnapshotEvery = 64, time.Second }

// backoffMax is how long raft may wait before it tries again to replicate to a node that was away.
const backoffMax = 11 * time.Second

// A follower that was away for long catches up by a snapshot, restarts behind it, and serves when the leader dies: with
// data in memory, on disk, and with a log in segments, whose whole content is deleted then, because segments can't have
// gaps.
func TestLaggingFollowerInstallsSnapshotUnderLoad(t *testing.T) {
	t.Parallel()
	tunedWAL := func(c *raftnode.Config) {
		withSmallLogs(c)
		c.Store.Log = store.WAL
	}
	for _, c := range []Config{
		{Disks: InMemory, Tune: withSmallLogs}, {Disks: OnDisk, Tune: withSmallLogs}, {Disks: OnDisk, Tune: tunedWAL},
	} {
		Run(t, c, func(s *Sim) {
			leader := s.Start()
			load := s.lightLoad()
			for _, how := range []string{"killed", "cut off"} {
				away := s.Others(leader)[0]
				_, before := s.Audit.Compared()
				if how == "killed" {
					away.Kill()
				} else {
					s.Network.Isolate(away.Host)
				}
				time.Sleep(10 * time.Second)
				s.Network.HealAll()
				if how == "killed" {
					away.Start()
				}
				leader = s.Leader()
				s.AwaitApplied(leader, away, backoffMax)
				_, after := s.Audit.Compared()
				installed := s.Trace.Has(away.ID, "Installed remote snapshot")
				assert.True(s, installed && after > before, "%s: it caught up without a snapshot", how)
				away.Kill() // its log has a hole now, where the snapshot is
				away.Start()
				s.AwaitApplied(leader, away, backoffMax)
				leader.Kill()
				next := s.LeaderOtherThan(leader)
				leader.Start()
				s.AwaitApplied(next, leader, backoffMax)
				leader = next
			}
			load.Stop()
			s.AwaitDrained(10 * time.Second)
			s.Check()
		})
	}
}

// While a snapshot is installed, raft's main loop on the follower does nothing else, for as long as
// it takes. Neither its watchdog nor the cluster must react.
func TestSlowSnapshotInstall(t *testing.T) {
	t.Parallel()
	const takes = 20 * time.Second
	for _, slow := range []string{"link", "disk"} {
		tune := func(c *raftnode.Config) { c.SnapshotEntries, c.SnapshotEvery = 900, time.Second }
		Run(t, Config{Tune: tune}, func(s *Sim) {
			leader := s.Start()
			away := s.Others(leader)[0]
			away.Kill()
			for i := range 1000 { // 4 MB
				leader.MustPropose(&fsm.OpenSession{Secret: session.Hash{byte(i), byte(i >> 8)}, Settings: session.Settings{TTL: clock.Hour, Metadata: strings.Repeat("m", fsm.MetadataBytesMax)}})
			}
			load := s.Load(1, time.Second)
			time.Sleep(20 * time.Second)
			size := 1000 * fsm.MetadataBytesMax
			switch slow {
			case "link":
				s.Network.LimitRate(leader.Host, away.Host, size/int(takes/time.Second))
			case "disk":
				away.Disk.SlowSnapshots(takes / time.Duration(size/(32<<10)))
			}
			away.Start()
			began := s.Elapsed()
			s.Await(time.Minute, "the snapshot is installed", func() bool {
				return s.Trace.Has(away.ID, "Installed remote snapshot")
			})
			took := s.Elapsed() - began
			s.Network.HealAll()
			s.AwaitApplied(leader, away, backoffMax)
			s.Logf("slow %s: installed after %v", slow, took)
			assert.Greater(s, took, takes*3/4, "slow %s: it was not slow", slow)
			assert.False(s, s.Trace.Has(away.ID, "stuck"), "slow %s: the watchdog ended it", slow)
			requireNoExit(s, s.InitialMembers())
			assert.Equal(s, 1, s.Audit.Epochs(), "slow %s: the cluster elected another leader", slow)
			load.Stop()
			s.Check()
		})
	}
}
