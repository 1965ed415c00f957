package sim

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// Mistakes of operators at the beginning of a cluster, and when a disk is lost. Each is refused,
// the error names what to do, and everything that was acknowledged survives.

// unaudited keeps what a node does out of the audit.
func unaudited(c *raftnode.Config) {
	c.Applied, c.Restored = func(*fsm.Machine, fsm.Applied) {}, func(*fsm.Machine) {}
}

func TestBootstrapRefusedForDifferentLists(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		s.Node("n1").StartProcess()
		s.Node("n2").StartProcess()
		list, err := peer.ParseList("n1=n1:5751,n2=n2:5752,n3=n3:5751")
		require.NoError(s, err)
		s.Node("n3").StartProcess(func(c *raftnode.Config) { c.Peers.List = list })
		ctx := s.Within(10 * time.Second)
		refused := 0
		for _, n := range s.InitialMembers() {
			err := n.AwaitOpen(ctx)
			require.Error(s, err, "%s began a cluster", n.ID)
			if strings.Contains(err.Error(), "lists differ") {
				refused++
			} else { // the node with the other list had ended already, and this one waits for it
				assert.ErrorContains(s, err, "still starting", n.ID)
			}
		}
		require.NotZero(s, refused)
		require.Empty(s, s.Audit.Entries())
	})
}

// startWithLocks starts a cluster in which fifty locks are held.
func startWithLocks(s *Sim) (leader *Node, tokens map[fsm.TicketRef]uint64) {
	s.Start()
	return acquireLocks(s)
}

func acquireLocks(s *Sim) (leader *Node, tokens map[fsm.TicketRef]uint64) {
	leader = s.Leader()
	time.Sleep(3 * time.Second) // all nodes are announced
	return leader, acquireFifty(s, leader)
}

// acquireFifty acquires fifty locks.
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

// requireAllHeld checks that the leader has granted all these tickets.
func requireAllHeld(s *Sim, leader *Node, tokens map[fsm.TicketRef]uint64) {
	s.Helper()
	leader.MustPropose(nil)
	leader.Running().View(func(m *fsm.Machine) {
		for ref, token := range tokens {
			view, ok := m.Ticket(ref)
			require.True(s, ok && view.State == fsm.Granted && view.Token == token,
				"%v with token %d is lost: %+v", ref, token, view)
		}
	})
	s.Check()
}

// leaderOf makes a node the leader.
func leaderOf(s *Sim, want *Node) {
	s.Helper()
	s.Await(time.Minute, want.ID+" leads", func() bool {
		if leader := s.Leader(); leader != want && leader.Running() != nil {
			// one that fails is tried again
			_ = leader.Running().Transfer(s.Within(electionTimeMax), want.ID)
		}
		return want.Status().Leading
	})
}

// clusterID is the id of the cluster that a node is part of.
func clusterID(n *Node) (id store.ID) {
	n.Running().View(func(m *fsm.Machine) { id = store.ID(m.Cluster()) })
	return id
}

// asJoiner configures a node that joins a cluster through a member.
func asJoiner(member *Node) Tune {
	return func(c *raftnode.Config) {
		c.Peers.List = peer.List{}
		c.Join, _ = peer.ParseList(member.ID + "=" + member.Address()) // as in InitialList
	}
}

// A copied data directory is the same as the original. On another host it has no vote, and the
// nodes detect that two have one name.
func TestClonedDirectoryIsDetected(t *testing.T) {
	RunParallel(t, Config{OnDisk: true}, func(s *Sim) {
		leader, tokens := startWithLocks(s)
		original := s.Others(leader)[0]
		original.Kill()
		clone := s.AddNode(original.ID, "another-host")
		require.NoError(s, os.CopyFS(clone.Disk.dir, os.DirFS(original.Disk.dir)))
		original.Start()
		clone.Start()
		s.Await(30*time.Second, "a node detects the clone", func() bool {
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

// bootstrapSteps are the steps of an initial member, in order. Its process can end before each of
// them, and after each write.
var bootstrapSteps = []string{
	"agreed", // has decided on the initial members, and not written them
	"begins", // has written them, and learned that all others have
	"before the term", "after the term", "before the entry", "after the entry",
}

// exitAtStep ends a node's process at a step, once.
func exitAtStep(n *Node, step string) Tune {
	var exited atomic.Bool
	return func(c *raftnode.Config) {
		reached := func(now string) {
			if now == step && !exited.Swap(true) {
				c.Fatal(errors.New("killed while the cluster began: " + step))
			}
		}
		c.Logger = n.sim.Trace.logger(n.ID, func(line string) {
			for message, step := range map[string]string{"initial members agreed": "agreed",
				"bootstrapping the cluster": "begins"} {
				if strings.Contains(line, message) {
					reached(step)
				}
			}
		})
		n.Disk.onWrite.set(func(op diskOp, returned bool) time.Duration {
			what := map[diskOp]string{opTerm: "term", opVote: "term", opAppend: "entry"}[op]
			if returned {
				reached("after the " + what)
			} else {
				reached("before the " + what)
			}
			return 0
		})
	}
}

// An initial member ends at each of its steps, or all of them do; they are started again, and the
// cluster begins.
func TestInterruptedBootstrapCompletes(t *testing.T) {
	t.Parallel()
	for _, step := range bootstrapSteps {
		for _, dying := range []string{"n1", "n2", "n3", "n1 n2 n3"} {
			Run(t, Config{OnDisk: true}, func(s *Sim) {
				for _, n := range s.InitialMembers() {
					if strings.Contains(dying, n.ID) {
						n.StartProcess(exitAtStep(n, step))
					} else {
						n.StartProcess()
					}
				}
				time.Sleep(time.Second)
				dead := 0
				for _, n := range s.InitialMembers() {
					if n.processEnded() {
						dead++
					} else if strings.Contains(dying, n.ID) {
						n.Kill() // it reached the step only with those that died
					}
				}
				require.NotZero(s, dead, "%s: no process ended %s", dying, step)
				for _, n := range s.InitialMembers() {
					if n.processEnded() {
						n.StartProcess()
						time.Sleep(time.Second)
					}
				}
				s.awaitAllOpen()
				leader, tokens := acquireLocks(s)
				for _, n := range s.Others(leader) {
					s.AwaitApplied(leader, n, electionTimeMax)
				}
				require.Len(s, voters(leader), 3)
				requireAllHeld(s, leader, tokens)
			})
		}
	}
}

// The member that ended has lost its disk as well. Before the first entry is written it bootstraps
// the cluster with the others, with its new directory; afterwards it can join them.
func TestInitialMemberWipedDuringBootstrap(t *testing.T) {
	t.Parallel()
	for _, step := range bootstrapSteps {
		Run(t, Config{OnDisk: true}, func(s *Sim) {
			n3 := s.Node("n3")
			n3.StartProcess(exitAtStep(n3, step))
			s.Node("n1").StartProcess()
			s.Node("n2").StartProcess()
			s.Await(electionTimeMax, "n3 ends", n3.processEnded)
			both := func(c *raftnode.Config) { c.Join = c.Peers.List }
			fresh := s.Replace(n3, "n3", store.ID{})
			fresh.StartProcess(both)
			for _, id := range []string{"n1", "n2"} {
				require.NoError(s, s.Node(id).AwaitOpen(s.Within(electionTimeMax)), step)
			}
			require.NoError(s, fresh.AwaitOpen(s.Within(electionTimeMax)), step)
			_, tokens := acquireLocks(s)
			joinUntil(s, fresh, time.Minute)
			requireAllHeld(s, s.Leader(), tokens)
		})
	}
}

// A node whose disk is full takes no part in the bootstrap: it could write its term, but not its
// log. The others log which node they wait for, and why, and the cluster begins when there is room.
func TestInitialMemberWithFullDiskDoesNotBootstrap(t *testing.T) {
	RunParallel(t, Config{OnDisk: true}, func(s *Sim) {
		n1, n3 := s.Node("n1"), s.Node("n3")
		n3.Disk.SetFree(24 << 20)
		s.startProcesses()
		require.ErrorContains(s, n1.AwaitOpen(s.Within(30*time.Second)), "still starting")
		require.True(s, s.Trace.Has("n1", "waiting", "n3", "MiB are free"),
			"the others log the reason")
		require.True(s, s.Trace.Has("n3", "waiting", "MiB are free"), "it logs the reason itself")
		n3.Disk.SetFree(1 << 40)
		s.awaitAllOpen()
		requireAllHeld(s, s.Leader(), nil)
	})
}

// An initial member that was down since it wrote the first entry does not know the cluster's id. A
// leader that joined later does not know the initial members. They agree on the identity of the
// server that the leader replicates to.
func TestAbsentInitialMemberCatchesUp(t *testing.T) {
	RunParallel(t, Config{OnDisk: true}, func(s *Sim) {
		n1, n2, n3 := s.Node("n1"), s.Node("n2"), s.Node("n3")
		n1.StartProcess()
		n2.StartProcess()
		n3.StartProcess(exitAtStep(n3, "after the entry"), func(*raftnode.Config) {
			exit := n3.Disk.onWrite.get()
			n3.Disk.onWrite.set(func(op diskOp, returned bool) time.Duration {
				if op == opAppend && !returned {
					time.Sleep(time.Second) // until the others know that they may begin
				}
				return exit(op, returned)
			})
		})
		s.Await(electionTimeMax, "n3 ends", n3.processEnded)
		leaderOf(s, n1)
		tokens := acquireFifty(s, n1)
		time.Sleep(3 * time.Second)
		fourth := join(s, n1, "n4", "n4")
		leaderOf(s, fourth)
		n3.Start()
		s.AwaitApplied(fourth, n3, backoffMax)
		require.True(s, fourth.Status().Leading, "the new node has caught it up")
		n2.Kill()
		requireAllHeld(s, s.Leader(), tokens)
	})
}
