package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

// lightLoad starts a load that leaves time for other things.
func (s *Sim) lightLoad() *Load { return s.Load(4, 300*time.Millisecond) }

// stopAndCheck ends a load and checks the run.
func stopAndCheck(s *Sim, load *Load) {
	s.Helper()
	load.Stop()
	s.Check()
	assert.Greater(s, len(s.record.recorded.LatestHolds()), 20, "too few grants")
}

// requireNoExit checks that no process of these nodes exited by itself.
func requireNoExit(s *Sim, nodes []*Node) {
	s.Helper()
	for _, n := range nodes {
		assert.NoError(s, n.Fatal(), n.ID)
	}
}

// join starts a new machine and joins it to the cluster.
func join(s *Sim, leader *Node, id, host string) *Node {
	s.Helper()
	n := s.AddNode(id, host)
	n.Start(asJoiner(leader))
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

// All nodes of a cluster are replaced, one after the other, while it serves.
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

func TestTransferToUnreachableNode(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		h := s.Holder("holder", "x", 5*time.Second)
		for _, to := range []string{leader.ID, "n9"} {
			assert.ErrorContains(s, leader.Running().Transfer(s.Within(electionTimeMax), to),
				"nothing was changed")
		}
		// To a node that is down: the leader continues, with a new instance of raft.
		down := s.Others(leader)[0]
		down.Kill()
		assert.Error(s, leader.Running().Transfer(s.Within(electionTimeMax), down.ID))
		down.Start()
		time.Sleep(10 * time.Second)
		assert.True(s, s.Leader().holds("x", h))
		s.Check()
	})
}

// During a transfer of leadership raft refuses every entry at once. If something is due, an epoch
// that retried at once would spin until the transfer ends; in virtual time, forever.
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
		// No node can take over, so the transfer takes an election's time to fail, and the lease
		// ends meanwhile.
		time.Sleep(entries[len(entries)-1].At + left - 100*time.Millisecond - s.Elapsed())
		assert.Error(s, leader.Running().Transfer(s.Within(electionTimeMax), down.ID))
		s.Await(electionTimeMax, "the session of the dead client has ended", dead.Ended)
		s.Check()
	})
}

// A removal after which no majority responds could not be committed, and the cluster would stay
// without a leader.
func TestRemovalWithoutMajorityIsRefused(t *testing.T) {
	RunParallel(t, Config{OnDisk: true}, func(s *Sim) {
		leader, tokens := startWithLocks(s)
		down, up := s.Others(leader)[0], s.Others(leader)[1]
		down.Kill()
		require.ErrorIs(s, leader.Running().Remove(s.Within(electionTimeMax), up.ID),
			raftnode.ErrRefused,
			"before the leader has noticed")
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

		// The node that is down may be removed.
		require.NoError(s, leader.Running().Remove(s.Within(electionTimeMax), down.ID))
		assert.Len(s, voters(leader), 2)
		requireAllHeld(s, leader, tokens)
	})
}

// A new node that ends before it has a vote gets none, because there would be no majority with it.
func TestJoinWithoutMajorityIsRefused(t *testing.T) {
	runStarted(t, Config{Nodes: 1}, func(s *Sim, only *Node) {
		time.Sleep(3 * time.Second)
		n2 := s.AddNode("n2", "n2")
		n2.Start(asJoiner(only))
		// It reports its state, but its raft makes no progress.
		n2.Disk.Stall()
		require.Error(s, only.Running().Join(s.Within(5*time.Second), n2.Peer()))
		n2.Kill()
		require.Error(s, only.Running().Join(s.Within(5*time.Second), n2.Peer()))
		assert.Equal(s, []string{"n1"}, voters(only))
		only.MustPropose(nil)
	})
}

// The other follower ends just when a removal is proposed, which then can't be committed. The
// removed follower, which has all the data, continues. If the leader is lost for good, it and the
// other follower are a majority.
func TestUncommittedRemovalStopsNoNode(t *testing.T) {
	t.Parallel()
	for _, comesBack := range []string{"all", "without the leader"} {
		Run(t, Config{OnDisk: true}, func(s *Sim) {
			var down *Node
			s.Start(func(c *raftnode.Config) {
				c.Logger = s.Trace.logger(c.ID, func(line string) {
					if down != nil && strings.Contains(line, "updating configuration") &&
						strings.Contains(line, "RemoveServer") {
						s.Network.Isolate(down.Host) // before raft has written anything
					}
				})
			})
			leader, tokens := acquireLocks(s)
			other, removed := s.Others(leader)[0], s.Others(leader)[1]
			s.AwaitApplied(leader, removed, electionTimeMax)
			s.AwaitApplied(leader, other, electionTimeMax)
			down = other
			err := leader.Running().Remove(s.Within(2*time.Second), removed.ID)
			require.Error(s, err)
			require.NotErrorIs(s, err, raftnode.ErrRefused,
				"it was begun: the other had responded a moment before")
			down = nil
			other.Kill()
			time.Sleep(time.Minute)
			require.False(s, removed.processEnded(),
				"it ended for a removal that was never committed")
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

// A node that was down when it was removed queries the others when it comes back, and ends.
func TestRestartedRemovedNodeExits(t *testing.T) {
	runStarted(t, Config{OnDisk: true, Tune: withSmallLogs}, func(s *Sim, leader *Node) {
		time.Sleep(3 * time.Second)
		load := s.lightLoad()
		away := s.Others(leader)[0]
		away.Kill()
		require.NoError(s, leader.Running().Remove(s.Within(electionTimeMax), away.ID))
		time.Sleep(30 * time.Second) // by now the removal is in a snapshot
		for range 2 {
			term := leader.Status().Term
			away.StartProcess()
			s.Await(20*time.Second, "it ends", away.processEnded)
			require.ErrorIs(s, away.Fatal(), raftnode.ErrRemoved)
			assert.Equal(s, term, leader.Status().Term, "it disturbed the others")
		}
		// Its directory can't join again.
		away.Start(asJoiner(leader))
		err := leader.Running().Join(s.Within(time.Second), away.Peer())
		require.ErrorIs(s, err, raftnode.ErrRefused)
		require.ErrorContains(s, err, "was removed from this cluster")
		s.Await(20*time.Second, "it ends", away.processEnded)
		stopAndCheck(s, load)
	})
}

func TestSingleNodeClusterGrows(t *testing.T) {
	runStarted(t, Config{Nodes: 1, OnDisk: true}, func(s *Sim, only *Node) {
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

// To raft a node is its name and the incarnation of its data directory. So a wiped directory is
// another node, whatever the others remember, and a new directory can replace it.

// startWiped starts a machine with an empty disk under the name and at the address of one that has
// ended. It waits to be joined to the cluster.
func startWiped(s *Sim, old *Node, cluster store.ID) *Node {
	s.Helper()
	n := s.Replace(old, old.ID, cluster)
	n.Start()
	return n
}

// joinUntil requests the join of a node once a second, until the node has a vote.
func joinUntil(s *Sim, n *Node, within time.Duration) {
	s.Helper()
	for until := s.Elapsed() + within; !n.isVoter(); time.Sleep(time.Second) {
		if s.Elapsed() > until {
			s.Fatalf("%s has no vote after %v", n.ID, within)
		}
		if err := s.Leader().Running().Join(s.Within(electionTimeMax), n.Peer()); err != nil {
			s.Trace.Logf("op", "%v", err)
		}
	}
}

// A node that lost its disk comes back under its name: when the lost directory has been silent for
// long enough, the new one replaces it. If the lost directory comes back, its process learns of
// that and ends.
func TestWipedNodeRejoins(t *testing.T) {
	runStarted(t, Config{OnDisk: true}, func(s *Sim, n1 *Node) {
		old := s.Others(n1)[0]
		time.Sleep(3 * time.Second)
		tokens := acquireFifty(s, n1)
		old.Kill()
		began, cluster := s.Elapsed(), clusterID(n1)
		fresh := startWiped(s, old, cluster)
		err := n1.Running().Join(s.Within(electionTimeMax), fresh.Peer())
		require.ErrorIs(s, err, raftnode.ErrNotYet)
		require.ErrorContains(s, err, "when that has been silent for 30s")
		joinUntil(s, fresh, time.Minute)
		took := s.Elapsed() - began
		require.Greater(s, took, 30*time.Second)
		require.Less(s, took, 40*time.Second)
		require.Len(s, voters(n1), 3)
		requireAllHeld(s, n1, tokens)

		// It votes and stores entries: with it and one other node the cluster continues.
		s.AwaitApplied(n1, fresh, 10*time.Second)
		n1.Kill()
		requireAllHeld(s, s.LeaderOtherThan(n1), tokens)
		n1.Start()

		// A third directory of that name has to wait.
		fresh.Kill()
		third := startWiped(s, fresh, cluster)
		for until := s.Elapsed() + 2*time.Minute; s.Elapsed() <
			until; time.Sleep(10 * time.Second) {
			require.ErrorIs(s, s.Leader().Running().Join(s.Within(electionTimeMax), third.Peer()),
				raftnode.ErrNotYet)
		}
		require.ErrorContains(s, s.Leader().Running().Join(s.Within(electionTimeMax), third.Peer()),
			"replaced")
		joinUntil(s, third, 10*time.Minute)
		third.Kill()

		// The first directory comes back. It is no longer a member, and its process ends.
		old.StartProcess()
		s.Await(time.Minute, "the lost directory ends", old.processEnded)
		require.ErrorIs(s, old.Fatal(), raftnode.ErrRemoved)
		requireAllHeld(s, s.Leader(), tokens)
	})
}

// joinEntriesMax is by how many entries a new node may lag when it becomes a voter.
const joinEntriesMax = 100

// Replacements that are refused: a second machine of one name, one during another change of
// membership, and one that would leave too few nodes.
func TestUnsafeReplacementIsRefused(t *testing.T) {
	runStarted(t, Config{OnDisk: true}, func(s *Sim, leader *Node) {
		time.Sleep(3 * time.Second)
		cluster := clusterID(leader)
		a, b := s.Others(leader)[0], s.Others(leader)[1]

		second := s.AddNode(a.ID, "another-host")
		second.Start(asJoiner(leader))
		err := leader.Running().Join(s.Within(electionTimeMax), second.Peer())
		require.ErrorIs(s, err, raftnode.ErrRefused)
		require.ErrorContains(s, err, "two machines must not have one name")
		require.ErrorContains(s, err, "zamok remove "+a.ID)
		second.Kill()

		// A new node that never catches up is a change in progress.
		for range 2 * joinEntriesMax {
			leader.MustPropose(nil)
		}
		stuck := s.AddNode("n9", "n9")
		stuck.Start(asJoiner(leader))
		s.Network.Cut(route{leader.Host, stuck.Host}, route{stuck.Host, leader.Host})
		err = leader.Running().Join(s.Within(electionTimeMax), stuck.Peer())
		require.ErrorIs(s, err, raftnode.ErrNotYet, "a node that does not respond is not added")
		s.Network.HealAll()
		stuck.Disk.Stall()
		require.Error(s, leader.Running().Join(s.Within(time.Second), stuck.Peer()))
		a.Kill()
		fresh := startWiped(s, a, cluster)
		time.Sleep(40 * time.Second)
		err = leader.Running().Join(s.Within(electionTimeMax), fresh.Peer())
		require.ErrorIs(s, err, raftnode.ErrNotYet)
		require.ErrorContains(s, err, "n9 is being caught up")
		require.NoError(s, leader.Running().Remove(s.Within(electionTimeMax), "n9"))
		stuck.Kill()

		joinUntil(s, fresh, time.Minute)
		requireAllHeld(s, s.Leader(), nil)

		// In a cluster of two a replacement would leave one node with all the data.
		leader = s.Leader()
		other := b
		if leader == b {
			other = fresh
		}
		for _, n := range s.Others(leader) {
			if n != other {
				require.NoError(s, leader.Running().Remove(s.Within(electionTimeMax), n.ID))
			}
		}
		other.Kill()
		_ = startWiped(s, other, cluster)
		time.Sleep(40 * time.Second)
		for _, n := range s.Leaders() {
			s.Fatalf("%s leads alone", n.ID)
		}
	})
}

// A leader ends after each step of a replacement, and the next one continues from there.
func TestReplacementContinuesUnderNewLeader(t *testing.T) {
	notShort(t)
	t.Parallel()
	for _, step := range []string{"RemoveServer", "AddNonvoter", "AddVoter"} {
		for _, after := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond} {
			Run(t, Config{Nodes: 5, OnDisk: true}, func(s *Sim) {
				leader, tokens := startWithLocks(s)
				old := s.Others(leader)[0]
				old.Kill()
				fresh := startWiped(s, old, clusterID(leader))
				time.Sleep(31 * time.Second)
				go func() { _ = leader.Running().Join(s.Within(electionTimeMax), fresh.Peer()) }()
				s.Await(electionTimeMax, step, func() bool {
					return s.Trace.Has(leader.ID, "updating configuration", "command="+step)
				})
				time.Sleep(after)
				leader.Kill()
				s.LeaderOtherThan(leader)
				joinUntil(s, fresh, 2*time.Minute)
				leader.Start()
				require.Len(s, voters(s.Leader()), 5, "%s, %v after", step, after)
				requireAllHeld(s, s.Leader(), tokens)
			})
		}
	}
}

// A node with both flags bootstraps a cluster when no node holds data, and joins when one does.
func TestBootstrapOrJoinIsChosenByState(t *testing.T) {
	RunParallel(t, Config{OnDisk: true}, func(s *Sim) {
		both := func(c *raftnode.Config) { c.Join = c.Peers.List }
		s.Start(both)
		leader, tokens := acquireLocks(s)
		lost := s.Others(leader)[0]
		lost.Kill()
		fresh := s.Replace(lost, lost.ID, store.ID{})
		fresh.Start(both)
		joinUntil(s, fresh, time.Minute)
		requireAllHeld(s, leader, tokens)

		// While the nodes that hold data are down, it bootstraps nothing.
		for _, n := range s.Members() {
			n.Kill()
		}
		empty := s.Replace(fresh, fresh.ID, store.ID{})
		empty.StartProcess(both)
		require.ErrorContains(s, empty.AwaitOpen(s.Within(time.Minute)), "still starting")
		empty.Kill()
		for _, n := range s.Others(empty) {
			n.Start()
		}
		requireAllHeld(s, s.Leader(), tokens)
	})
}
