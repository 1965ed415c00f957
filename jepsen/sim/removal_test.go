package sim

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode"
)

// A removal after which no majority would answer could not be committed, and nobody would lead from
// then on.
func TestRemovalWithoutMajorityIsRefused(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
		time.Sleep(3 * time.Second)
		tokens := acquireFifty(s, leader)
		down, up := s.Others(leader)[0], s.Others(leader)[1]
		down.Kill()
		time.Sleep(time.Second)
		for _, n := range []*Node{up, leader} {
			err := leader.Running().Remove(s.Within(electionTimeMax), n.ID)
			require.ErrorIs(s, err, raftnode.ErrRefused)
			require.ErrorContains(s, err, down.ID)
			require.ErrorContains(s, err, "no majority")
		}
		err := leader.Running().Remove(s.Within(electionTimeMax), "n9")
		require.ErrorIs(s, err, raftnode.ErrRefused)
		require.ErrorContains(s, err, "no member")
		assert.Len(s, voters(leader), 3)
		requireAllHeld(s, leader, tokens)

		// The one that is down may go.
		require.NoError(s, leader.Running().Remove(s.Within(electionTimeMax), down.ID))
		assert.Len(s, voters(leader), 2)
		requireAllHeld(s, leader, tokens)
	})
}

// A newcomer that dies before its vote gets none, since with it there would be no majority.
func TestJoinWithoutMajorityIsRefused(t *testing.T) {
	t.Parallel()
	Run(t, Config{Nodes: 1}, func(s *Sim) {
		only := s.Start()
		time.Sleep(3 * time.Second)
		n2 := s.AddNode("n2", "n2")
		n2.StartProcess(asJoiner(clusterID(only)))
		require.NoError(s, n2.AwaitOpen(s.Within(electionTimeMax)))
		// It answers for its state, and its raft doesn't hear of the leader any more.
		n2.Disk.Stall()
		require.Error(s, only.Running().Join(s.Within(5*time.Second), n2.Peer()))
		n2.Kill()
		require.Error(s, only.Running().Join(s.Within(5*time.Second), n2.Peer()))
		assert.Equal(s, []string{"n1"}, voters(only))
		only.MustPropose(nil)
	})
}

// The other follower dies when the removal has just been decided, which then can't be committed. The
// removed one, which has all the data, continues; when the leader is lost for good, it and the other one are a
// majority.
func TestUncommittedRemovalStopsNoNode(t *testing.T) {
	t.Parallel()
	for _, comesBack := range []string{"all", "without the leader"} {
		var down *Node
		decided := func(c *raftnode.Config) {
			c.Logger = slog.New(&stepHandler{Handler: c.Logger.Handler(), at: func(line string) {
				if down != nil && strings.Contains(line, "updating configuration") && strings.Contains(line, "RemoveServer") {
					s, host := down.sim, down.Host
					s.Network.Isolate(host) // before raft has written anything
				}
			}})
		}
		Run(t, Config{Disks: OnDisk, Tune: decided}, func(s *Sim) {
			down = nil
			leader := s.Start()
			time.Sleep(3 * time.Second)
			tokens := acquireFifty(s, leader)
			other, removed := s.Others(leader)[0], s.Others(leader)[1]
			s.AwaitApplied(leader, removed, electionTimeMax)
			s.AwaitApplied(leader, other, electionTimeMax)
			down = other
			err := leader.Running().Remove(s.Within(2*time.Second), removed.ID)
			require.Error(s, err)
			require.NotErrorIs(s, err, raftnode.ErrRefused, "it was begun: the other had answered a moment before")
			down = nil
			other.Kill()
			time.Sleep(time.Minute)
			require.False(s, removed.processEnded(), "it ended for a removal that came to nothing")
			require.False(s, leader.processEnded())
			if comesBack != "all" {
				leader.Kill()
			}
			s.Network.HealAll()
			other.Restart()
			if comesBack == "all" {
				requireAllHeld(s, s.Leader(), tokens)
				return
			}
			next := s.LeaderOtherThan(leader)
			requireAllHeld(s, next, tokens)
			assert.Len(s, voters(next), 3)
			leader.Restart()
			s.AwaitApplied(next, leader, backoffMax)
			requireAllHeld(s, s.Leader(), tokens)
		})
	}
}

// A node dies, and a removal is asked for at once, before its silence has been noticed.
func TestRemovalAfterCrashIsRefused(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		leader := s.Start()
		time.Sleep(3 * time.Second)
		tokens := acquireFifty(s, leader)
		down, removed := s.Others(leader)[0], s.Others(leader)[1]
		down.Kill()
		require.ErrorIs(s, leader.Running().Remove(s.Within(electionTimeMax), removed.ID), raftnode.ErrRefused)
		requireAllHeld(s, leader, tokens)
	})
}

// A node that was away when it was removed asks when it comes back, and ends.
func TestRestartedRemovedNodeExits(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk, Tune: withSmallLogs}, func(s *Sim) {
		leader := s.Start()
		time.Sleep(3 * time.Second)
		load := s.Load(lightLoad())
		away := s.Others(leader)[0]
		away.Kill()
		require.NoError(s, leader.Running().Remove(s.Within(electionTimeMax), away.ID))
		time.Sleep(30 * time.Second) // a snapshot is behind it by now
		for range 2 {
			term := leader.Status().Term
			away.StartProcess()
			s.Await(20*time.Second, "it ends", away.processEnded)
			require.ErrorIs(s, away.Fatal(), raftnode.ErrRemoved)
			assert.Equal(s, term, leader.Status().Term, "it disturbed the others")
		}
		// Its directory does not come back, whoever asks for it.
		away.StartProcess(asJoiner(clusterID(leader)))
		require.NoError(s, away.AwaitOpen(s.Within(electionTimeMax)))
		err := leader.Running().Join(s.Within(time.Second), away.Peer())
		require.ErrorIs(s, err, raftnode.ErrRefused)
		require.ErrorContains(s, err, "was removed from this cluster")
		s.Await(20*time.Second, "it ends", away.processEnded)
		stopAndCheck(s, load)
	})
}
