package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode"
)

func lightLoad() LoadConfig {
	return LoadConfig{Clients: 4, TTL: 5 * time.Second, Locks: 4, HoldMax: 300 * time.Millisecond}
}

// stopAndCheck ends a load and holds the run against everything.
func stopAndCheck(s *Sim, load *Load) {
	s.Helper()
	load.Stop()
	s.Check(load.History)
	if n := len(load.holds); n < 20 {
		s.Errorf("only %d grants: that was no load", n)
	}
}

// join starts a new machine and takes it into the cluster.
func join(s *Sim, leader *Node, id, host string) *Node {
	s.Helper()
	n := s.AddNode(id, host)
	n.StartProcess(asJoiner(clusterID(leader)))
	require.NoError(s, n.AwaitOpen(s.Within(electionTimeMax)))
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
	t.Parallel()
	Run(t, Config{Tune: withSmallLogs}, func(s *Sim) {
		s.Start()
		load := s.Load(lightLoad())
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
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
		load := s.Load(lightLoad())
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
			c := lightLoad()
			c.Clients, c.HoldMax = 20, 20*time.Millisecond
			load := s.Load(c)
			time.Sleep(time.Second)
			_ = leader.Running().Remove(s.Within(electionTimeMax), leader.ID) // its answer may be lost with it
			next := s.LeaderOtherThan(leader)
			s.Await(electionTimeMax, "the removed leader ends", func() bool { return leader.processEnded() })
			require.ErrorIs(s, leader.Fatal(), raftnode.ErrRemoved)
			assert.Len(s, voters(next), 2)
			time.Sleep(time.Second)
			stopAndCheck(s, load)
		})
	}
}

// After a transfer a node's raft starts anew, because the old one was seen to refuse everything when
// it leads again.
func TestLeadershipTransfersUnderLoad(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
		load := s.Load(lightLoad())
		led := map[string]int{}
		for round := range 15 {
			time.Sleep(2 * time.Second)
			to := s.InitialMembers()[round%3]
			if to == leader {
				to = s.Others(leader)[0]
			}
			require.NoError(s, leader.Running().Transfer(s.Within(electionTimeMax), to.ID))
			s.Await(electionTimeMax, to.ID+" leads", func() bool { return s.Leader() == to })
			leader = to
			leader.MustPropose(nil)
			led[to.ID]++
		}
		for _, n := range s.InitialMembers() {
			assert.Greater(s, led[n.ID], 1, "%s did not lead again", n.ID)
		}
		stopAndCheck(s, load)
	})
}

func TestTransferToUnreachableNode(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
		h := s.Holder("holder", "x", 5*time.Second)
		for _, to := range []string{leader.ID, "n9"} {
			assert.ErrorContains(s, leader.Running().Transfer(s.Within(electionTimeMax), to), "nothing was changed")
		}
		// To one that is down: the leader continues, with a raft of its own that is new.
		down := s.Others(leader)[0]
		down.Kill()
		assert.Error(s, leader.Running().Transfer(s.Within(electionTimeMax), down.ID))
		down.Restart()
		time.Sleep(10 * time.Second)
		assert.True(s, s.Leader().holds("x", h))
		s.Check(h.History)
	})
}

// While raft hands the leadership over it refuses every entry at once. With something due, an epoch
// that tried again at once would spin, for as long as that takes; in virtual time, forever.
func TestExpirationDuringTransferDoesNotSpin(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
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
		// Nobody is there to take over, so it takes an election's time to fail, and the lease ends
		// in the middle of it.
		time.Sleep(entries[len(entries)-1].At + left - 100*time.Millisecond - s.Elapsed())
		assert.Error(s, leader.Running().Transfer(s.Within(electionTimeMax), down.ID))
		s.Await(electionTimeMax, "the dead are freed", func() bool {
			_, _, ended := s.Audit.Ended(dead.Ref.Session)
			return ended
		})
		s.Check(dead.History)
	})
}

func TestSingleNodeClusterGrows(t *testing.T) {
	t.Parallel()
	Run(t, Config{Nodes: 1, Disks: OnDisk}, func(s *Sim) {
		only := s.Start()
		h := s.Holder("holder", "x", 10*time.Second)
		only.Kill()
		only.Restart()
		s.Leader()
		assert.True(s, only.holds("x", h))
		only.Close()
		only.Restart()
		s.Leader()
		time.Sleep(3 * time.Second)
		join(s, only, "n2", "n2")
		join(s, only, "n3", "n3")
		assert.Len(s, voters(only), 3)
		only.Kill()
		next := s.LeaderOtherThan(only)
		assert.True(s, next.holds("x", h))
		s.Check(h.History)
	})
}
