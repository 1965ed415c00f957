package sim

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"zamok/jepsen/workload"
)

const (
	// watchdogInterval is how often, in real time, the watchdog looks whether virtual time continues.
	watchdogInterval = time.Second
	// watchdogMissedMax is how many looks may see no progress. Looks are counted, not time: a machine that was
	// suspended makes none.
	watchdogMissedMax = 180
	// heartbeatInterval is how often, in virtual time, a bubble shows that time continues: on a busy machine with a
	// slow disk a virtual second can take a minute.
	heartbeatInterval = 50 * time.Millisecond
)

// watchdog watches a bubble from outside of it. Limits in virtual time don't end a run in which
// virtual time stands: something spins, or waits for a mutex whose owner waits for something else.
type watchdog struct {
	pollInterval time.Duration // of real time, between two looks
	missedMax    int           // so many that find no change are too many
	abort        func(why string)
	heartbeats   atomic.Int64 // of virtual time
	sim          atomic.Pointer[Sim]
}

func newWatchdog(t *testing.T) *watchdog {
	return &watchdog{pollInterval: watchdogInterval, missedMax: watchdogMissedMax, abort: func(reason string) {
		panic(t.Name() + ": " + reason)
	}}
}

// watch looks until it is stopped.
func (w *watchdog) watch() (stop func()) {
	return background(func(ctx context.Context) {
		for last, same := int64(-1), 0; same <= w.missedMax; same++ {
			if now := w.heartbeats.Load(); now != last {
				last, same = now, 0
			}
			if !workload.Sleep(ctx, w.pollInterval) {
				return
			}
		}
		w.abort(w.diagnose())
	})
}

func (w *watchdog) diagnose() string {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	s := w.sim.Load()
	if s == nil {
		return fmt.Sprintf("sim: the run did not begin\n%s", stacks)
	}
	return fmt.Sprintf("sim: virtual time stands, for %v of real time (seed %d): something spins, or waits for a mutex "+
		"whose owner waits for something else; look for both among the stacks of its bubble\n%s\n%s",
		time.Duration(w.missedMax)*w.pollInterval, s.Seed, s.Trace, stacks)
}

// startHeartbeat shows from within the bubble that time continues there.
func (w *watchdog) startHeartbeat(s *Sim) (stop func()) {
	w.sim.Store(s)
	return background(func(ctx context.Context) {
		for workload.Sleep(ctx, heartbeatInterval) {
			w.heartbeats.Add(1)
		}
	})
}
