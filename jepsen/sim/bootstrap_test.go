package sim

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// What an operator gets wrong at the beginning of a cluster, and when a disk is lost. Each is
// refused, the refusal says what to do, and nothing that was acknowledged is gone.

func withMemberList(s *Sim, text string) Tune {
	list, err := peer.ParseList(text)
	require.NoError(s, err)
	return func(c *raftnode.Config) { c.Peers.List = list }
}

// withLongElections keeps a node out of the audit: it is of another cluster.
func withLongElections(c *raftnode.Config) { c.Applied, c.Restored = nil, nil }

func TestBootstrapRefusedForDifferentLists(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		s.Node("n1").StartProcess()
		s.Node("n2").StartProcess()
		s.Node("n3").StartProcess(withMemberList(s, "n1=n1:5751,n2=n2:5752,n3=n3:5751"))
		ctx := s.Within(10 * time.Second)
		refused := 0
		for _, n := range s.InitialMembers() {
			err := n.AwaitOpen(ctx)
			require.Error(s, err, "%s began a cluster", n.ID)
			if strings.Contains(err.Error(), "lists differ") {
				refused++
			} else { // it asked when the one that differs had ended already, and waits for it
				assert.ErrorContains(s, err, "still starting", n.ID)
			}
		}
		require.NotZero(s, refused)
		require.Empty(s, s.Audit.Entries())
	})
}

func TestBootstrapWaitsForAllNodes(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		s.Node("n1").StartProcess()
		s.Node("n2").StartProcess()
		err := s.Node("n1").AwaitOpen(s.Within(time.Minute))
		require.ErrorContains(s, err, "still starting", "it began without asking everybody")
		assert.True(s, s.Trace.Has("n1", "waiting", "n3 at n3:5751"))
		s.Node("n3").StartProcess()
		for _, n := range s.InitialMembers() {
			require.NoError(s, n.AwaitOpen(s.Within(10*time.Second)))
		}
		s.Leader().MustPropose(nil)
	})
}

// acquireFifty lets fifty locks be granted.
func acquireFifty(s *Sim, leader *Node) map[fsm.TicketRef]uint64 {
	id := leader.OpenSession("holder", time.Hour)
	tokens := map[fsm.TicketRef]uint64{}
	for i := range uint64(50) {
		a := leader.Lock(id, i+1, fmt.Sprint("lock", i))
		require.Equal(s, fsm.Granted, a.Result.State)
		tokens[fsm.TicketRef{Session: id, Ticket: i + 1}] = a.Result.Token
	}
	return tokens
}

// requireAllHeld sees that the leader has all of them.
func requireAllHeld(s *Sim, leader *Node, tokens map[fsm.TicketRef]uint64) {
	s.Helper()
	leader.MustPropose(nil)
	leader.Running().View(func(m *fsm.Machine) {
		for ref, token := range tokens {
			view, ok := m.Ticket(ref)
			require.True(s, ok && view.State == fsm.Granted && view.Token == token, "%v with token %d is gone: %+v", ref, token, view)
		}
	})
	s.Check()
}

// leaderOf waits until a certain node leads.
func leaderOf(s *Sim, want *Node) {
	s.Helper()
	for range 20 {
		leader := s.Leader()
		if leader == want {
			return
		}
		if up := leader.Running(); up != nil {
			_ = up.Transfer(s.Within(electionTimeMax), want.ID)
		}
		time.Sleep(time.Second)
	}
	s.Fatalf("%s does not come to lead", want.ID)
}

// requireNoLeader sees that for a while no epoch opens.
func requireNoLeader(s *Sim, duration time.Duration) {
	s.Helper()
	for began := time.Now(); time.Since(began) < duration; time.Sleep(100 * time.Millisecond) {
		for _, n := range s.Leaders() {
			s.Fatalf("%s leads", n.ID)
		}
	}
}

// The state that makes a lost disk dangerous: n2 was cut off while fifty locks were granted by n1 and
// n3; then n3's disk is lost, n1 goes down, and n2 comes back. With one more vote it would lead, and
// it knows of nothing.
func isolateAndWipe(s *Sim) (tokens map[fsm.TicketRef]uint64) {
	s.Start()
	n1, n2, n3 := s.Node("n1"), s.Node("n2"), s.Node("n3")
	leaderOf(s, n1)
	time.Sleep(3 * time.Second) // everybody is announced
	s.Network.Isolate(n2.Host)
	tokens = acquireFifty(s, n1)
	n3.Kill()
	n1.Kill()
	s.Network.HealAll()
	return tokens
}

func TestWipedNodeUnderOldIDLosesNothing(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		tokens := isolateAndWipe(s)
		wiped := s.AddNode("n3", "n3")
		wiped.StartProcess()
		err := wiped.AwaitOpen(s.Within(10 * time.Second))
		require.Error(s, err, "it began anew")
		assert.ErrorContains(s, err, "--join")
		requireNoLeader(s, 10*time.Second)
		s.Node("n1").Restart()
		requireAllHeld(s, s.Leader(), tokens)
	})
}

func TestNewIDAtOldAddressLosesNothing(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		tokens := isolateAndWipe(s)
		cluster := clusterID(s.Node("n2"))
		n4 := s.AddNode("n4", "n3")
		n4.StartProcess(asJoiner(cluster))
		require.NoError(s, n4.AwaitOpen(s.Within(electionTimeMax)))
		requireNoLeader(s, 10*time.Second)
		assert.True(s, s.Trace.Has("n2", "n4"), "nobody said why")
		n1 := s.Node("n1")
		n1.Restart()
		leader := s.Leader()
		requireAllHeld(s, leader, tokens)

		// The cure: the lost node is removed first, then the new one joins.
		up := leader.Running()
		assert.ErrorContains(s, up.Join(s.Within(electionTimeMax), n4.Peer()), "`zamok remove n3` first")
		require.NoError(s, up.Remove(s.Within(electionTimeMax), "n3"))
		require.NoError(s, up.Join(s.Within(time.Minute), n4.Peer()))
		s.Node("n2").Kill()
		s.Leader().MustPropose(nil) // n4 votes and stores
		requireAllHeld(s, s.Leader(), tokens)
	})
}

// clusterID is the id of the cluster that a node is part of.
func clusterID(n *Node) (id store.ID) {
	n.Running().View(func(m *fsm.Machine) { id = store.ID(m.Cluster()) })
	return id
}

// asJoiner is how a node starts that is to be taken in.
func asJoiner(cluster store.ID) Tune {
	return func(c *raftnode.Config) { c.Peers.List, c.JoinCluster = peer.List{}, cluster }
}

func TestForeignNodeAtPeerAddressIsIgnored(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
		time.Sleep(3 * time.Second)
		tokens := acquireFifty(s, leader)
		gone := s.Others(leader)[0]
		gone.Kill()
		for _, id := range []string{"n9", gone.ID} { // under a name of its own, and under the lost one's
			foreign := s.AddNode(id, gone.Host)
			foreign.StartProcess(withMemberList(s, id+"="+gone.Address()), withLongElections)
			require.NoError(s, foreign.AwaitOpen(s.Within(electionTimeMax)))
			s.Await(electionTimeMax, "it leads its own cluster", func() bool { return foreign.Status().Leading })
			time.Sleep(5 * time.Second)
			leader.MustPropose(nil)
			foreign.Running().View(func(m *fsm.Machine) {
				assert.Zero(s, m.Counts().Sessions, "it learnt something of this cluster")
			})
			requireAllHeld(s, leader, tokens)
			foreign.Kill()
		}
		gone.Restart()
		s.AwaitApplied(leader, gone, backoffMax)
		requireAllHeld(s, leader, tokens)
	})
}

// A copy of a directory has everything that the original has. Somewhere else it is no voter; that two
// of one name are about is noticed.
func TestClonedDirectoryIsDetected(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		leader := s.Start()
		time.Sleep(3 * time.Second)
		tokens := acquireFifty(s, leader)
		original := s.Others(leader)[0]
		original.Kill()
		clone := s.AddNode(original.ID, "elsewhere")
		require.NoError(s, os.CopyFS(clone.Disk.dir, os.DirFS(original.Disk.dir)))
		original.Restart()
		clone.Restart()
		s.Await(30*time.Second, "somebody raises the alarm", func() bool {
			return s.Trace.Has("n1", "clone detected") || s.Trace.Has("n2", "clone detected") ||
				s.Trace.Has("n3", "clone detected")
		})
		leader = s.Leader()
		require.NotSame(s, clone, leader)
		requireAllHeld(s, leader, tokens)
		clone.Kill()
		s.AwaitApplied(s.Leader(), original, backoffMax)
		requireAllHeld(s, s.Leader(), tokens)
	})
}

func TestCancelledOpenChangesNothing(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		s.Node("n1").StartProcess()
		time.Sleep(time.Second)
		s.Node("n1").Kill()
		require.ErrorIs(s, s.Node("n1").AwaitOpen(s.Within(time.Second)), context.Canceled)
		s.Start().MustPropose(nil)
	})
}
