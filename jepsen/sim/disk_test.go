package sim

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/store"
)

// A write that fails ends the process, and nothing of it is left. (In a bubble a leader can show that
// only while nothing else is on its way: raft never answers what it had not looked at, and whoever
// waits for that would be left.)
func TestDiskFailureStopsOnlyThatNode(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"leader", "follower"} {
		Run(t, Config{}, func(s *Sim) {
			leader := s.Start()
			load := s.Load(lightLoad())
			time.Sleep(5 * time.Second)
			sick, next := leader, leader
			if who == "leader" {
				load.Stop()
			} else {
				sick = s.Others(leader)[0]
			}
			sick.Disk.FailWrites(errors.New("input/output error"))
			if who == "leader" {
				_, err := leader.Propose(s.Within(answerTimeout), acquireExclusive(1, 1, "x"))
				assert.Equal(s, Unknown, outcomeOf(err), "%v", err)
				next = s.LeaderOtherThan(leader)
			}
			s.Await(electionTimeMax, "the process ends", sick.processEnded)
			require.ErrorIs(s, sick.Fatal(), store.ErrBroken)
			sick.Disk.FailWrites(nil)
			sick.Restart()
			s.AwaitApplied(next, sick, backoffMax)
			stopAndCheck(s, load)
			for _, n := range s.Others(sick) {
				assert.NoError(s, n.Fatal())
			}
		})
	}
}

// A node whose disk is nearly full asks raft for a snapshot. If raft's own goroutine for that is busy then, and
// ends with the process, nobody takes the request any more: the node ends all the same.
func TestNodeStopsIfSnapshotNeverArrives(t *testing.T) {
	t.Parallel()
	Run(t, Config{Tune: withTinyLogs}, func(s *Sim) {
		leader := s.Start()
		load := s.Load(lightLoad())
		sick := s.Others(leader)[0]
		time.Sleep(3 * time.Second)
		deleting := make(chan struct{})
		sick.Disk.hookNextWrite(opDelete, 3*time.Second, func() { close(deleting) })
		<-deleting // raft shortens the log, for a snapshot of its own
		sick.Disk.SetFree((store.DefaultReservedSpace + store.DefaultLowSpace) / 2)
		time.Sleep(2 * time.Second) // the maintenance loop asks for one more
		sick.Disk.FailWrites(errors.New("input/output error"))
		s.Await(time.Minute, "the process ends", sick.processEnded)
		sick.Disk.FailWrites(nil)
		sick.Disk.SetFree(math.MaxUint64)
		sick.Restart()
		s.AwaitApplied(s.Leader(), sick, backoffMax)
		stopAndCheck(s, load)
	})
}
