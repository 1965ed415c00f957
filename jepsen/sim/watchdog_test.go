package sim

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A run in which virtual time stands ends with all stacks: nothing in the bubble would end it.
func TestWatchdogAbortsStuckRun(t *testing.T) {
	t.Parallel()
	var why atomic.Pointer[string]
	stands, spins := &watchdog{pollInterval: 10 * time.Millisecond, missedMax: 10}, make(chan struct{})
	stands.abort = func(string) {
		<-spins // a busy machine may not have come to the story yet
		text := stands.diagnose()
		why.Store(&text)
	}
	run(t, Config{}, stands, func(s *Sim) {
		s.Trace.Note("story", "the last thing that was done")
		close(spins)
		for why.Load() == nil {
			runtime.Gosched() // no virtual time passes
		}
	})
	assert.Contains(t, *why.Load(), "virtual time stands")
	assert.Contains(t, *why.Load(), "TestWatchdogAbortsStuckRun.func", "the stacks show what spins")
	assert.Contains(t, *why.Load(), "the last thing that was done")
}

// Two transfers of leadership at once, from a node whose disk hangs, wait for the disk and for one
// another. Virtual time continues meanwhile, as real time does, and both come back.
func TestRepeatedTransferWithHangingDisk(t *testing.T) {
	runStarted(t, Config{}, func(s *Sim, _ *Node) {
		leader := s.Leader()
		up := leader.Running()
		leader.Disk.Stall()
		var back atomic.Int32
		for range 2 {
			go func() {
				defer back.Add(1)
				_ = up.Transfer(s.Within(2*time.Second), "") // what came of it does not matter
			}()
		}
		next := s.LeaderOtherThan(leader)
		time.Sleep(hangDuration)
		assert.Zero(s, back.Load(), "its raft ends when its disk continues, and not before")
		leader.Disk.Resume()
		s.Await(electionTimeMax, "both transfers come back", func() bool { return back.Load() == 2 })
		s.AwaitApplied(next, leader, backoffMax)
		s.Check()
	})
}
