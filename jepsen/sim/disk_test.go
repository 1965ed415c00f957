package sim

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/jepsen/workload"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

// A write that fails ends the whole process. (In a bubble a leader can show that only without other
// proposals in flight: raft never answers those in its queue, and their callers would wait
// forever.)
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
				assert.ErrorIs(s, err, raftnode.ErrUnknown)
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

// A node whose disk is nearly full requests a snapshot from raft. If raft's goroutine for snapshots
// is busy, and ends with the process, the request has no answer: the node must end all the same.
func TestNodeStopsIfSnapshotNeverArrives(t *testing.T) {
	runStarted(t, Config{Tune: withTinyLogs}, func(s *Sim, leader *Node) {
		load := s.lightLoad()
		sick := s.Others(leader)[0]
		time.Sleep(3 * time.Second)
		deleting := make(chan struct{})
		sick.Disk.hookNextWrite(opDelete, 3*time.Second, func() { close(deleting) })
		<-deleting // raft shortens the log, for a snapshot of its own
		sick.Disk.SetFree((store.DefaultReservedSpace + store.DefaultLowSpace) / 2)
		time.Sleep(2 * time.Second) // the maintenance loop requests another snapshot
		sick.Disk.FailWrites(errDisk)
		s.Await(time.Minute, "the process ends", sick.processEnded)
		sick.Disk.FailWrites(nil)
		sick.Disk.SetFree(math.MaxUint64)
		sick.Start()
		s.AwaitApplied(s.Leader(), sick, backoffMax)
		stopAndCheck(s, load)
	})
}

// What makes the states of nodes differ is found within so many commands or so much time, whichever
// is later; TestDivergedNodeStops holds raftnode to less.
const (
	divergenceCommands = 4096
	divergenceTime     = 5 * time.Minute
)

// corruptEntries restarts a node with the name of another lock in its log than the others have
// applied. The checksums fit.
func corruptEntries(n *Node, lock string) {
	n.Kill()
	n.Disk.CorruptReads(func(l *raft.Log) {
		if !bytes.Contains(l.Data, []byte(lock)) {
			return
		}
		entry, err := fsm.DecodeEntry(l.Data)
		require.NoError(n.sim, err)
		for _, command := range entry.Commands {
			if acquire, ok := command.(*fsm.Acquire); ok && acquire.Items[0].Name == lock {
				acquire.Items[0].Name = strings.ToUpper(lock)
			}
		}
		// the bytes in memory are shared with the log, which stays as it is
		l.Data = entry.Append(nil)
	})
	n.Start()
}

// submitMany proposes so many commands that change nothing.
func submitMany(s *Sim, leader *Node, n uint64) {
	up := leader.Running()
	require.NotNil(s, up, "%s does not run", leader.ID)
	done := make(chan error, n)
	for range n {
		up.Submit(context.Background(), &fsm.Drop{Session: 1 << 40, Ticket: 1},
			func(_ raftnode.Answer, err error) { done <- err })
	}
	for range n {
		require.NoError(s, <-done)
	}
}

// startCluster starts a cluster with entries that can be corrupted, right after digests were
// compared.
func startCluster(s *Sim) (leader *Node) {
	leader = s.Start()
	time.Sleep(5 * time.Second)
	id := leader.OpenSession("holder", time.Hour)
	leader.Lock(id, 1, "apple")
	leader.Lock(id, 2, "pear")
	for _, n := range s.Others(leader) {
		s.AwaitApplied(leader, n, time.Second) // only what is on a disk can be corrupted there
	}
	return leader
}

// A node whose state differs from that of a majority ends. A leader transfers the leadership
// before.
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
			submitMany(s, s.Leader(), divergenceCommands/2)
			s.Await(divergenceTime/2, "it ends itself", func() bool { return bad.Fatal() != nil })
			next := s.LeaderOtherThan(bad)
			require.ErrorIs(s, bad.Fatal(), raftnode.ErrDiverged)
			s.Await(5*time.Second, "an alarm at another", func() bool {
				return slices.ContainsFunc(s.Others(bad),
					func(n *Node) bool { return s.Trace.Has(n.ID, "ALARM", "differ") })
			})
			time.Sleep(10 * time.Second)
			requireNoExit(s, s.Others(bad))
			next.MustPropose(nil)
			require.NotEmpty(s, s.Audit.Violations(), "the audit sees it too")
		})
	}
}

// Three nodes have three different states. Nobody knows which one is right, and stopping would end
// the service, so all continue.
func TestDivergenceWithoutMajorityStopsNoNode(t *testing.T) {
	RunParallel(t, Config{}, func(s *Sim) {
		leader := startCluster(s)
		for i, n := range s.Others(leader) {
			corruptEntries(n, []string{"apple", "pear"}[i])
			time.Sleep(time.Second)
		}
		submitMany(s, s.Leader(), divergenceCommands/2)
		s.Await(divergenceTime/2, "an alarm at all", func() bool {
			return s.Trace.Has("n1", "ALARM") && s.Trace.Has("n2", "ALARM") &&
				s.Trace.Has("n3", "ALARM")
		})
		time.Sleep(time.Minute)
		requireNoExit(s, s.InitialMembers())
		s.Leader().MustPropose(nil)
	})
}

// forEachDiskKind runs a story with data in memory and on a disk. Writes take long enough for some
// to be in flight whenever the power fails.
func forEachDiskKind(t *testing.T, story func(*Sim)) {
	for name, onDisk := range map[string]bool{"in memory": false, "on disk": true} {
		t.Run(name, func(t *testing.T) {
			RunParallel(t, Config{OnDisk: onDisk, Tune: withTinyLogs,
				WriteTimeMax: 20 * time.Millisecond}, story)
		})
	}
}

// withTinyLogs makes nodes take snapshots after a few entries.
func withTinyLogs(c *raftnode.Config) { c.SnapshotEntries, c.SnapshotEvery = 8, time.Second }

// However often the power of all nodes fails at once, acknowledged writes survive.
func TestAcknowledgedWritesSurvivePowerFailure(t *testing.T) {
	t.Parallel()
	forEachDiskKind(t, func(s *Sim) {
		s.Start()
		load := s.Load(5, 100*time.Millisecond)
		random := s.Random("blackouts")
		least, all := 20, []writeOutcome{writeKept, writeLost}
		if s.config.OnDisk { // where flushes take real time
			least, all = 4, append(all, writeTorn)
		}
		const most = 60
		times := 0
		for missing := true; missing; times++ {
			require.Less(s, times, most, "outcomes of writes in flight: %v", s.WriteOutcomes())
			time.Sleep(workload.UpTo(random, 2*time.Second))
			var down sync.WaitGroup
			for _, n := range s.Members() {
				down.Go(n.LosePower)
			}
			down.Wait()
			s.Start()
			outcomes := s.WriteOutcomes()
			missing = times < least ||
				slices.ContainsFunc(all, func(r writeOutcome) bool { return outcomes[r] == 0 }) ||
				s.config.OnDisk && !s.Trace.Has("FAULT", "append: torn")
		}
		stopAndCheck(s, load)
		s.Logf("%d blackouts: %v, %d entries", times, s.WriteOutcomes(), len(s.Audit.Entries()))
	})
}

// The power fails in the middle of each kind of write, at a leader and at followers. The write is
// kept or lost.
func TestPowerFailureDuringEachWriteKind(t *testing.T) {
	t.Parallel()
	forEachDiskKind(t, func(s *Sim) {
		s.Start()
		load := s.Load(5, 100*time.Millisecond)
		time.Sleep(3 * time.Second)          // and some snapshots
		const takes = 200 * time.Millisecond // time for anything that fails to wait for the write
		for i, op := range []diskOp{opSnapshot, opAppend, opDelete, opVote, opTerm} {
			for j, outcome := range []writeOutcome{writeLost, writeKept} {
				var struck *Node
				for attempt := 0; struck == nil; attempt++ {
					require.Less(s, attempt, 5, "no node made a write of kind %q", op)
					leader := s.Leader()
					targets := s.Others(leader)
					var down sync.WaitGroup
					switch {
					case op == opVote || op == opTerm:
						down.Go(leader.LosePower) // so that the others vote
					case (i+j)%2 == 0:
						targets = []*Node{leader}
					}
					for _, n := range targets {
						n.Disk.forcedOutcome.set(outcome)
					}
					struck = losePowerDuring(s.Within(10*time.Second), op, takes, takes*9/10,
						targets...)
					down.Wait()
					for _, n := range s.Members() {
						if n.processEnded() {
							n.Start()
						}
					}
					s.AwaitConverged(backoffMax)
				}
			}
		}
		stopAndCheck(s, load)
		s.Logf("%v", s.WriteOutcomes())
	})
}
