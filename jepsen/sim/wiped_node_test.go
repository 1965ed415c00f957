package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/raftnode"
	"zamok/raftnode/store"
)

// To raft a node is its name and the incarnation of its data directory. What a wiped directory can
// do does not depend on what other nodes remember, and a new directory can replace it.

// startWiped is a machine with an empty disk under the name, and at the address, of one that has ended. It
// waits for the cluster to take it in.
func startWiped(s *Sim, old *Node, cluster store.ID) *Node {
	s.Helper()
	n := s.Replace(old, old.ID, cluster)
	n.Start()
	return n
}

// joinUntil asks the leader once a second to take a node in, until that has a vote.
func joinUntil(s *Sim, n *Node, within time.Duration) {
	s.Helper()
	for until := s.Elapsed() + within; !n.isVoter(); time.Sleep(time.Second) {
		if s.Elapsed() > until {
			s.Fatalf("%s has no vote after %v", n.ID, within)
		}
		if err := s.Leader().Running().Join(s.Within(electionTimeMax), n.Peer()); err != nil {
			s.Trace.Note("op", "%v", err)
		}
	}
}

// A node that lost its disk comes back under its name: when the lost directory has been silent for long
// enough, the new one replaces it. The lost one, when it comes back, learns of that and ends.
func TestWipedNodeRejoins(t *testing.T) {
	runStarted(t, Config{Disks: OnDisk}, func(s *Sim, n1 *Node) {
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

		// It votes and stores: with it and one of the others the cluster continues.
		s.AwaitApplied(n1, fresh, 10*time.Second)
		n1.Kill()
		requireAllHeld(s, s.LeaderOtherThan(n1), tokens)
		n1.Start()

		// A third directory of that name has to wait.
		fresh.Kill()
		third := startWiped(s, fresh, cluster)
		for until := s.Elapsed() + 2*time.Minute; s.Elapsed() < until; time.Sleep(10 * time.Second) {
			require.ErrorIs(s, s.Leader().Running().Join(s.Within(electionTimeMax), third.Peer()), raftnode.ErrNotYet)
		}
		require.ErrorContains(s, s.Leader().Running().Join(s.Within(electionTimeMax), third.Peer()), "replaced")
		joinUntil(s, third, 10*time.Minute)
		third.Kill()

		// The first directory comes back. It is no member any more, and ends.
		old.StartProcess()
		s.Await(time.Minute, "the lost directory ends", old.processEnded)
		require.ErrorIs(s, old.Fatal(), raftnode.ErrRemoved)
		requireAllHeld(s, s.Leader(), tokens)
	})
}

// joinTimeout is how far behind a new node may be that becomes a voter.
const joinTimeout = 100

// What a replacement must not be: a second machine of one name, one that leaves too few behind, one
// beside another change, one of the other node that is down.
func TestUnsafeReplacementIsRefused(t *testing.T) {
	runStarted(t, Config{Disks: OnDisk}, func(s *Sim, leader *Node) {
		time.Sleep(3 * time.Second)
		cluster := clusterID(leader)
		a, b := s.Others(leader)[0], s.Others(leader)[1]

		second := s.AddNode(a.ID, "another-host")
		second.Start(asJoiner(cluster))
		err := leader.Running().Join(s.Within(electionTimeMax), second.Peer())
		require.ErrorIs(s, err, raftnode.ErrRefused)
		require.ErrorContains(s, err, "two machines must not have one name")
		require.ErrorContains(s, err, "zamok remove "+a.ID)
		second.Kill()

		// A new node that never catches up is a change that is under way.
		for range 2 * joinTimeout {
			leader.MustPropose(nil)
		}
		stuck := s.AddNode("n9", "n9")
		stuck.Start(asJoiner(cluster))
		s.Network.Cut(leader.Host, stuck.Host)
		s.Network.Cut(stuck.Host, leader.Host)
		err = leader.Running().Join(s.Within(electionTimeMax), stuck.Peer())
		require.ErrorIs(s, err, raftnode.ErrNotYet, "a node that does not answer is not added")
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

		// In a cluster of two a replacement would leave one, whose disk would be the only copy.
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
	t.Parallel()
	for _, step := range []string{"RemoveServer", "AddNonvoter", "AddVoter"} {
		for _, after := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond} {
			Run(t, Config{Nodes: 5, Disks: OnDisk}, func(s *Sim) {
				leader, tokens := startWithLocks(s)
				old := s.Others(leader)[0]
				old.Kill()
				fresh := startWiped(s, old, clusterID(leader))
				time.Sleep(31 * time.Second)
				go func() { _ = leader.Running().Join(s.Within(electionTimeMax), fresh.Peer()) }()
				s.Await(electionTimeMax, step, func() bool { return s.Trace.Has(leader.ID, "updating configuration", "command="+step) })
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
	RunParallel(t, Config{Disks: OnDisk}, func(s *Sim) {
		both := func(c *raftnode.Config) { c.Join = true }
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
