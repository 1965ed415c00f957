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

func listed(s *Sim, text string) Tune {
	list, err := peer.ParseList(text)
	require.NoError(s, err)
	return func(c *raftnode.Config) { c.Cluster = list }
}

// apart keeps a node out of the audit: it is of another cluster.
func apart(c *raftnode.Config) { c.Applied, c.Restored = nil, nil }

func TestNodesWithDifferentListsBeginNothing(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		s.Node("n1").Begin()
		s.Node("n2").Begin()
		s.Node("n3").Begin(listed(s, "n1=n1:5751,n2=n2:5752,n3=n3:5751"))
		ctx := s.Within(10 * time.Second)
		refused := 0
		for _, n := range s.Founders() {
			err := n.Opened(ctx)
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

func TestASilentNodeIsWaitedFor(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		s.Node("n1").Begin()
		s.Node("n2").Begin()
		err := s.Node("n1").Opened(s.Within(time.Minute))
		require.ErrorContains(s, err, "still starting", "it began without asking everybody")
		assert.True(s, s.Trace.Has("n1", "waiting", "n3 at n3:5751"))
		s.Node("n3").Begin()
		for _, n := range s.Founders() {
			require.NoError(s, n.Opened(s.Within(10*time.Second)))
		}
		s.Leader().Must(nil)
	})
}

// fifty lets fifty locks be granted.
func fifty(s *Sim, leader *Node) map[fsm.TicketRef]uint64 {
	id := leader.Open("holder", time.Hour)
	tokens := map[fsm.TicketRef]uint64{}
	for i := range uint64(50) {
		a := leader.Lock(id, i+1, fmt.Sprint("lock", i))
		require.Equal(s, fsm.Granted, a.Result.State)
		tokens[fsm.TicketRef{Session: id, Ticket: i + 1}] = a.Result.Token
	}
	return tokens
}

// requireAll sees that the leader has all of them.
func requireAll(s *Sim, leader *Node, tokens map[fsm.TicketRef]uint64) {
	s.Helper()
	leader.Must(nil)
	leader.Up().View(func(m *fsm.Machine) {
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
		if up := leader.Up(); up != nil {
			_ = up.Transfer(s.Within(electionMax), want.ID)
		}
		time.Sleep(time.Second)
	}
	s.Fatalf("%s does not come to lead", want.ID)
}

// nobodyLeads sees that for a while no epoch opens.
func nobodyLeads(s *Sim, for_ time.Duration) {
	s.Helper()
	for began := time.Now(); time.Since(began) < for_; time.Sleep(100 * time.Millisecond) {
		for _, n := range s.Leading() {
			s.Fatalf("%s leads", n.ID)
		}
	}
}

// The state that makes a lost disk dangerous: n2 was cut off while fifty locks were granted by n1 and
// n3; then n3's disk is lost, n1 goes down, and n2 comes back. With one more vote it would lead, and
// it knows of nothing.
func cutOffAndWiped(s *Sim) (tokens map[fsm.TicketRef]uint64) {
	s.Start()
	n1, n2, n3 := s.Node("n1"), s.Node("n2"), s.Node("n3")
	leaderOf(s, n1)
	time.Sleep(3 * time.Second) // everybody is announced
	s.Network.Isolate(n2.Host)
	tokens = fifty(s, n1)
	n3.Kill()
	n1.Kill()
	s.Network.HealAll()
	return tokens
}

func TestAWipedNodeUnderItsOldIdCostsNothing(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		tokens := cutOffAndWiped(s)
		wiped := s.AddNode("n3", "n3")
		wiped.Begin()
		err := wiped.Opened(s.Within(10 * time.Second))
		require.Error(s, err, "it began anew")
		assert.ErrorContains(s, err, "--join")
		nobodyLeads(s, 10*time.Second)
		s.Node("n1").Restart()
		requireAll(s, s.Leader(), tokens)
	})
}

func TestANewIdAtTheOldAddressCostsNothing(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		tokens := cutOffAndWiped(s)
		cluster := clusterOf(s.Node("n2"))
		n4 := s.AddNode("n4", "n3")
		n4.Begin(joining(cluster))
		require.NoError(s, n4.Opened(s.Within(electionMax)))
		nobodyLeads(s, 10*time.Second)
		assert.True(s, s.Trace.Has("n2", "n4"), "nobody said why")
		n1 := s.Node("n1")
		n1.Restart()
		leader := s.Leader()
		requireAll(s, leader, tokens)

		// The cure: the lost node is removed first, then the new one joins.
		up := leader.Up()
		assert.ErrorContains(s, up.Join(s.Within(electionMax), n4.Peer()), "`zamok remove n3` first")
		require.NoError(s, up.Remove(s.Within(electionMax), "n3"))
		require.NoError(s, up.Join(s.Within(time.Minute), n4.Peer()))
		s.Node("n2").Kill()
		s.Leader().Must(nil) // n4 votes and stores
		requireAll(s, s.Leader(), tokens)
	})
}

// clusterOf is the id of the cluster that a node is part of.
func clusterOf(n *Node) (id store.ID) {
	n.Up().View(func(m *fsm.Machine) { id = store.ID(m.Cluster()) })
	return id
}

// joining is how a node starts that is to be taken in.
func joining(cluster store.ID) Tune {
	return func(c *raftnode.Config) { c.Cluster, c.JoinCluster = peer.List{}, cluster }
}

func TestAForeignNodeAtAPeersAddressIsLeftAlone(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		leader := s.Start()
		time.Sleep(3 * time.Second)
		tokens := fifty(s, leader)
		gone := s.Others(leader)[0]
		gone.Kill()
		for _, id := range []string{"n9", gone.ID} { // under a name of its own, and under the lost one's
			foreign := s.AddNode(id, gone.Host)
			foreign.Begin(listed(s, id+"="+gone.Address()), apart)
			require.NoError(s, foreign.Opened(s.Within(electionMax)))
			s.Await(electionMax, "it leads its own cluster", func() bool { return foreign.Status().Leading })
			time.Sleep(5 * time.Second)
			leader.Must(nil)
			foreign.Up().View(func(m *fsm.Machine) {
				assert.Zero(s, m.Counts().Sessions, "it learnt something of this cluster")
			})
			requireAll(s, leader, tokens)
			foreign.Kill()
		}
		gone.Restart()
		s.Follow(leader, gone, backoffMax)
		requireAll(s, leader, tokens)
	})
}

// A copy of a directory has everything that the original has. Somewhere else it is no voter; that two
// of one name are about is noticed.
func TestAClonedDirectoryIsNoticedAndCostsNothing(t *testing.T) {
	t.Parallel()
	Run(t, Config{Disks: OnDisk}, func(s *Sim) {
		leader := s.Start()
		time.Sleep(3 * time.Second)
		tokens := fifty(s, leader)
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
		requireAll(s, leader, tokens)
		clone.Kill()
		s.Follow(s.Leader(), original, backoffMax)
		requireAll(s, s.Leader(), tokens)
	})
}

func TestAnOpenThatIsGivenUpChangesNothing(t *testing.T) {
	t.Parallel()
	Run(t, Config{}, func(s *Sim) {
		s.Node("n1").Begin()
		time.Sleep(time.Second)
		s.Node("n1").Kill()
		require.ErrorIs(s, s.Node("n1").Opened(s.Within(time.Second)), context.Canceled)
		s.Start().Must(nil)
	})
}
