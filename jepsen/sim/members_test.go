package sim

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode"
)

// lightLoad starts a load beside which other things happen.
func (s *Sim) lightLoad() *Load { return s.Load(4, 300*time.Millisecond) }

// stopAndCheck ends a load and checks the run.
func stopAndCheck(s *Sim, load *Load) {
	s.Helper()
	load.Stop()
	s.Check()
	assert.Greater(s, len(s.record.recorded.LatestHolds()), 20, "too few grants")
}

// requireNoExit sees that none of these nodes ended itself.
func requireNoExit(s *Sim, nodes []*Node) {
	s.Helper()
	for _, n := range nodes {
		assert.NoError(s, n.Fatal(), n.ID)
	}
}

// join starts a new machine and takes it into the cluster.
func join(s *Sim, leader *Node, id, host string) *Node {
	s.Helper()
	n := s.AddNode(id, host)
	n.Start(asJoiner(clusterID(leader)))
	require.NoError(s, leader.Running().Join(s.Within(time.Minute), n.Peer()))
	return n
}

func voters(n *Node) (ids []string) {
	for _, s := range n.Running().Servers() {
		if s.Voter {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// A cluster is exchanged node by node while it serves.
func TestReplaceAllNodesUnderLoad(t *testing.T) {
	runStarted(t, Config{Tune: withSmallLogs}, func(s *Sim, _ *Node) {
		load := s.lightLoad()
		time.Sleep(3 * time.Second)
		for i := range 3 {
			old, id := s.InitialMembers()[i], fmt.Sprintf("n%d", 4+i)
			if s.Leader() == old {
				require.NoError(s, old.Running().Transfer(s.Within(electionTimeMax), ""))
				s.LeaderOtherThan(old)
			}
			old.Kill() // its disk is lost
			leader := s.Leader()
			require.NoError(s, leader.Running().Remove(s.Within(electionTimeMax), old.ID))
			added := join(s, leader, id, old.Host)
			s.AwaitApplied(leader, added, 10*time.Second)
		}
		leader := s.Leader()
		assert.ElementsMatch(s, []string{"n4", "n5", "n6"}, voters(leader))
		leader.Kill()
		s.LeaderOtherThan(leader).MustPropose(nil)
		stopAndCheck(s, load)
	})
}

func TestRemovedFollowerStops(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		load := s.lightLoad()
		time.Sleep(3 * time.Second)
		removed := s.Others(leader)[0]
		require.NoError(s, leader.Running().Remove(s.Within(electionTimeMax), removed.ID))
		term := leader.Status().Term
		time.Sleep(30 * time.Second)
		assert.Equal(s, term, leader.Status().Term, "it disturbed the others")
		assert.Equal(s, []*Node{leader}, s.Leaders())
		assert.Len(s, voters(leader), 2)
		require.True(s, removed.processEnded(), "it has asked, and knows that it was removed")
		assert.ErrorIs(s, removed.Fatal(), raftnode.ErrRemoved)
		stopAndCheck(s, load)
	})
}

// A leader can remove itself. Whatever was on its way then is answered, and its process ends.
func TestRemovedLeaderAnswersPendingCalls(t *testing.T) {
	t.Parallel()
	for range 2 {
		Run(t, Config{}, func(s *Sim) {
			leader := s.Start()
			h := s.Holder("holder", "x", time.Minute)
			load, stop := s.lightLoad(), s.attach(leader, h)
			time.Sleep(time.Second)
			_ = leader.Running().Remove(s.Within(electionTimeMax), leader.ID) // its answer may be lost with it
			next := s.LeaderOtherThan(leader)
			s.Await(electionTimeMax, "the removed leader ends", func() bool { return leader.processEnded() })
			require.ErrorIs(s, leader.Fatal(), raftnode.ErrRemoved)
			assert.Len(s, voters(next), 2)
			time.Sleep(time.Second)
			stop()
			stopAndCheck(s, load)
		})
	}
}

func TestTransferToUnreachableNode(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		h := s.Holder("holder", "x", 5*time.Second)
		for _, to := range []string{leader.ID, "n9"} {
			assert.ErrorContains(s, leader.Running().Transfer(s.Within(electionTimeMax), to), "nothing was changed")
		}
		// To one that is down: the leader continues, with a raft of its own that is new.
		down := s.Others(leader)[0]
		down.Kill()
		assert.Error(s, leader.Running().Transfer(s.Within(electionTimeMax), down.ID))
		down.Start()
		time.Sleep(10 * time.Second)
		assert.True(s, s.Leader().holds("x", h))
		s.Check()
	})
}

// While raft hands the leadership over it refuses every entry at once. With something due, an epoch
// that tried again at once would spin, for as long as that takes; in virtual time, forever.
func TestExpirationDuringTransferDoesNotSpin(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		down := s.Others(leader)[0]
		down.Kill()
		dead := s.Holder("dead", "x", 2*time.Second)
		dead.Die()
		time.Sleep(time.Second) // for its last renewal
		var left time.Duration
		leader.Running().View(func(m *fsm.Machine) {
			lease, _ := m.Session(dead.Ref.Session)
			left = time.Duration(lease.Deadline - m.Time())
		})
		entries := s.Audit.Entries()
		// No node can take over, so it takes an election's time to fail, and the lease ends
		// in the middle of it.
		time.Sleep(entries[len(entries)-1].At + left - 100*time.Millisecond - s.Elapsed())
		assert.Error(s, leader.Running().Transfer(s.Within(electionTimeMax), down.ID))
		s.Await(electionTimeMax, "the session of the dead client has ended", dead.Ended)
		s.Check()
	})
}

// A removal after which no majority would answer could not be committed, and no node would lead from
// then on.
func TestRemovalWithoutMajorityIsRefused(t *testing.T) {
	RunParallel(t, Config{Disks: OnDisk}, func(s *Sim) {
		leader, tokens := startWithLocks(s)
		down, up := s.Others(leader)[0], s.Others(leader)[1]
		down.Kill()
		require.ErrorIs(s, leader.Running().Remove(s.Within(electionTimeMax), up.ID), raftnode.ErrRefused,
			"asked before the leader has noticed")
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

// A new node that ends before its vote gets none, since with it there would be no majority.
func TestJoinWithoutMajorityIsRefused(t *testing.T) {
	runStarted(t, Config{Nodes: 1}, func(s *Sim, only *Node) {
		time.Sleep(3 * time.Second)
		n2 := s.AddNode("n2", "n2")
		n2.Start(asJoiner(clusterID(only)))
		// It answers for its state, and its raft receives nothing from the leader any more.
		n2.Disk.Stall()
		require.Error(s, only.Running().Join(s.Within(5*time.Second), n2.Peer()))
		n2.Kill()
		require.Error(s, only.Running().Join(s.Within(5*time.Second), n2.Peer()))
		assert.Equal(s, []string{"n1"}, voters(only))
		only.MustPropose(nil)
	})
}

// The other follower ends when the removal has just been decided, which then can't be committed. The
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
			leader, tokens := startWithLocks(s)
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
			other.Start()
			if comesBack == "all" {
				requireAllHeld(s, s.Leader(), tokens)
				return
			}
			next := s.LeaderOtherThan(leader)
			requireAllHeld(s, next, tokens)
			assert.Len(s, voters(next), 3)
			leader.Start()
			s.AwaitApplied(next, leader, backoffMax)
			requireAllHeld(s, s.Leader(), tokens)
		})
	}
}

// A node that was away when it was removed asks when it comes back, and ends.
func TestRestartedRemovedNodeExits(t *testing.T) {
	runStarted(t, Config{Disks: OnDisk, Tune: withSmallLogs}, func(s *Sim, leader *Node) {
		time.Sleep(3 * time.Second)
		load := s.lightLoad()
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
		// Its directory is not taken back.
		away.Start(asJoiner(clusterID(leader)))
		err := leader.Running().Join(s.Within(time.Second), away.Peer())
		require.ErrorIs(s, err, raftnode.ErrRefused)
		require.ErrorContains(s, err, "was removed from this cluster")
		s.Await(20*time.Second, "it ends", away.processEnded)
		stopAndCheck(s, load)
	})
}

func TestSingleNodeClusterGrows(t *testing.T) {
	runStarted(t, Config{Nodes: 1, Disks: OnDisk}, func(s *Sim, only *Node) {
		h := s.Holder("holder", "x", 10*time.Second)
		only.Kill()
		only.Start()
		s.Leader()
		assert.True(s, only.holds("x", h))
		only.Close()
		only.Start()
		s.Leader()
		time.Sleep(3 * time.Second)
		join(s, only, "n2", "n2")
		join(s, only, "n3", "n3")
		assert.Len(s, voters(only), 3)
		only.Kill()
		next := s.LeaderOtherThan(only)
		assert.True(s, next.holds("x", h))
		s.Check()
	})
}
