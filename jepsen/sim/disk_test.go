package sim

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

// A write that fails ends the process, and nothing of it is left. (In a bubble a leader can show that
// only while nothing else is on its way: raft never answers what is still queued, and the
// caller would wait without end.)
func TestDiskFailureStopsOnlyThatNode(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"leader", "follower"} {
		Run(t, Config{}, func(s *Sim) {
			leader := s.Start()
			load := s.lightLoad()
			time.Sleep(5 * time.Second)
			sick, next := leader, leader
			if which == "leader" {
				load.Stop()
			} else {
				sick = s.Others(leader)[0]
			}
			sick.Disk.FailWrites(errDisk)
			if which == "leader" {
				_, err := leader.Propose(s.Within(answerTimeout), acquireExclusive(1, 1, "x"))
				assert.False(s, notDone(err), "%v", err)
				next = s.LeaderOtherThan(leader)
			}
			s.Await(electionTimeMax, "the process ends", sick.processEnded)
			require.ErrorIs(s, sick.Fatal(), store.ErrBroken)
			sick.Disk.FailWrites(nil)
			sick.Start()
			s.AwaitApplied(next, sick, backoffMax)
			stopAndCheck(s, load)
			requireNoExit(s, s.Others(sick))
		})
	}
}

// A node whose disk is nearly full asks raft for a snapshot. If raft's own goroutine for that is busy then, and
// ends with the process, the request is never answered: the node ends all the same.
func TestNodeStopsIfSnapshotNeverArrives(t *testing.T) {
	runStarted(t, Config{Tune: withTinyLogs}, func(s *Sim, leader *Node) {
		load := s.lightLoad()
		sick := s.Others(leader)[0]
		time.Sleep(3 * time.Second)
		deleting := make(chan struct{})
		sick.Disk.hookNextWrite(opDelete, 3*time.Second, func() { close(deleting) })
		<-deleting // raft shortens the log, for a snapshot of its own
		sick.Disk.SetFree((store.DefaultReservedSpace + store.DefaultLowSpace) / 2)
		time.Sleep(2 * time.Second) // the maintenance loop asks for one more
		sick.Disk.FailWrites(errDisk)
		s.Await(time.Minute, "the process ends", sick.processEnded)
		sick.Disk.FailWrites(nil)
		sick.Disk.SetFree(math.MaxUint64)
		sick.Start()
		s.AwaitApplied(s.Leader(), sick, backoffMax)
		stopAndCheck(s, load)
	})
}

// digestPoint is how many indexes lie between two comparisons of the nodes' digests.
const digestPoint = 4096

// corruptEntries lets a node come back with an entry of its log changed, in a way that only the entry's own form
// gives away: this node refuses it, as all would; but the others have applied it.
func corruptEntries(n *Node, lock string) {
	n.Kill()
	n.Disk.CorruptReads(func(l *raft.Log) {
		// The bytes in memory are shared with the log, which stays as it is.
		l.Data = bytes.ReplaceAll(l.Data, []byte(lock), bytes.ToUpper([]byte(lock)))
	})
	n.Start()
}

// acquireMany takes the machines beyond the next point at which digests are compared.
func acquireMany(s *Sim, leader *Node) {
	s.Helper()
	p := leader.openProcess()
	require.NotNil(s, p, "%s does not run", leader.ID)
	done := make(chan error, digestPoint+1)
	for range digestPoint + 1 {
		p.node.Submit(&fsm.Drop{Session: 1 << 40, Ticket: 1}, func(_ raftnode.Answer, err error) { done <- err })
	}
	for range digestPoint + 1 {
		require.NoError(s, <-done)
	}
}

// startCluster lets a cluster have entries that can be corrupted.
func startCluster(s *Sim) (leader *Node) {
	leader = s.Start()
	id := leader.OpenSession("holder", time.Hour)
	leader.Lock(id, 1, "apple")
	leader.Lock(id, 2, "pear")
	for _, n := range s.Others(leader) {
		s.AwaitApplied(leader, n, time.Second) // only what is on a disk can be corrupted there
	}
	return leader
}

// A node whose state differs from that of a majority ends; a leader hands over before.
func TestDivergedNodeStops(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"leader", "follower"} {
		Run(t, Config{}, func(s *Sim) {
			leader := startCluster(s)
			bad := s.Others(leader)[0]
			corruptEntries(bad, "apple")
			time.Sleep(time.Second)
			if which == "leader" {
				leaderOf(s, bad)
			}
			acquireMany(s, s.Leader())
			next := s.LeaderOtherThan(bad)
			s.Await(10*time.Second, "it ends itself", func() bool { return bad.Fatal() != nil })
			require.ErrorIs(s, bad.Fatal(), raftnode.ErrDiverged)
			s.Await(5*time.Second, "an alarm at another", func() bool {
				return slices.ContainsFunc(s.Others(bad), func(n *Node) bool { return s.Trace.Has(n.ID, "ALARM", "differ") })
			})
			time.Sleep(10 * time.Second)
			requireNoExit(s, s.Others(bad))
			next.MustPropose(nil)
			require.NotEmpty(s, s.Audit.Violations(), "the audit sees it too")
		})
	}
}

// Three nodes, three states: none is known to be right, and stopping would end the service.
func TestDivergenceWithoutMajorityStopsNoNode(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		leader := startCluster(s)
		for i, n := range s.Others(leader) {
			corruptEntries(n, []string{"apple", "pear"}[i])
			time.Sleep(time.Second)
		}
		acquireMany(s, s.Leader())
		s.Await(10*time.Second, "an alarm at all", func() bool {
			return s.Trace.Has("n1", "ALARM") && s.Trace.Has("n2", "ALARM") && s.Trace.Has("n3", "ALARM")
		})
		time.Sleep(time.Minute)
		requireNoExit(s, s.InitialMembers())
		s.Leader().MustPropose(nil)
	})
}
