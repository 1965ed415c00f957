package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/client"
	"zamok/jepsen/check"
)

// fullStackChecks are those that must have found something to look at.
var fullStackChecks = []string{"C1", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10", "C11", "C12", "C13", "C14", "C15", "C16", "C17"}

// runFullStack is a run of the whole stack under random faults. It fails also when too little happened.
func runFullStack(t *testing.T, piece int, lasts time.Duration, drift float64) (happened int64) {
	t.Helper()
	var s *Sim
	var w *fullStack
	plan := check.Plan{Name: "whole", Begin: historyBegin, CompleteEvents: true, Drain: drainMax, ClockRate: 1 + drift}
	c := Config{RunIndex: piece, Serve: true, Drift: drift, Tune: withSmallLogs, Limit: 2*lasts + 30*time.Minute}
	Run(t, c, func(sim *Sim) {
		s = sim
		plan.Seed = s.Seed
		w = s.startFullStack(6)
		kinds := AllFaults()
		more := w.stackFaults()
		for kind := range more {
			kinds = append(kinds, kind)
		}
		slices.Sort(kinds) // a map's order is nobody's choice
		faults := s.startNemesis(3, more, kinds)
		faults.Run(lasts)
		faults.Stop()
		plan.Healed = s.historyTime()
		w.stopAll()
		plan.End = s.historyTime()
		for _, kind := range kinds {
			plan.Faults = append(plan.Faults, string(kind))
		}
		w.record.completed.Faults = append(w.record.completed.Faults, faults.log...)
		w.record.completed.Stalls = append(w.record.completed.Stalls, faults.clockStalls()...)
		for _, n := range faults.Counts() {
			happened += int64(n)
		}
		s.Logf("faults: %v; %d processes ended themselves", faults.Counts(), faults.UnexpectedExits())
		s.Check()
		s.Logf("the watch told %d events; %d leaders were told to be elected", w.checkWatch(), w.checkLeaders())
	})
	if t.Failed() {
		return happened
	}
	w.checkHistory(t, plan, lasts, drift > driftMax)
	return happened
}

// fullStackDurationMin is how long a run must last at least for every kind of fault to have its turn.
const fullStackDurationMin = 5 * time.Minute

// driftMax is how far off a clock may be: two that are this far off are 5 % apart.
const driftMax = 0.025

// stopAll has all calls come back, sees that everything works, and ends cleanly.
func (w *fullStack) stopAll() {
	w.cancel()
	if w.replacement.old != nil {
		w.finishReplacement(w.Within(drainMax))
	}
	for _, c := range append(w.callers, w.operator) {
		p := c.running()
		if p == nil {
			w.startClient(c)
			p = c.running()
		}
		p.work.Wait()
		w.finalCall(p)
	}
	for _, end := range w.background {
		end()
	}
	w.AwaitDrained(ttls[len(ttls)-1] + backoffMax)
	w.AwaitConverged(backoffMax)
	w.record.recordNodeStates()
	w.record.recordIdleCounts(true)
}

// finalCall is what a program does last: it must succeed.
func (w *fullStack) finalCall(p *clientProcess) {
	t := &worker{clientProcess: p, Rand: w.Random("last of " + p.label)}
	if l, h := t.lockFunc(w.Within(drainMax), check.OpLock, []client.Item{client.ExclusiveItem("last of " + p.label)}, nil); l != nil {
		t.write(h, false)
		t.check(h)
		t.unlock(l, h, w.record)
	}
	t.get("m0")
	t.now()
	assert.NoError(w, p.Close())
}

// checkHistory holds the record of a run against everything, and the run against what it was to be.
func (w *fullStack) checkHistory(t *testing.T, plan check.Plan, lasts time.Duration, void bool) {
	t.Helper()
	minutes := int(lasts / time.Minute)
	plan.OKMin, plan.Checks = 200*minutes, fullStackChecks
	if !void {
		plan.Checks = append(slices.Clone(fullStackChecks), "C2")
	}
	h := w.record.history(plan)
	if void {
		for _, s := range h.Sessions { // nothing is promised of what clients believe; tokens must hold
			h.Faults = append(h.Faults, check.Fault{Kind: "wrong clock", Target: s.Client, From: plan.Begin, To: plan.End, ExcusesClient: true})
		}
	}
	r := check.Check(h, check.Limits{})
	t.Logf("%v of virtual time, seed %d, %d operations, %d holds, %d sessions, %d events, %d epochs\n%v%v",
		lasts, plan.Seed, len(h.Ops), len(h.Holds), len(h.Sessions), len(h.Events), w.Audit.Epochs(), r.Outcomes, r)
	if !r.OK() {
		w.keepHistory(t, h)
		t.Errorf("seed %d: repeat its choices with %s=%d", plan.Seed, SeedVariable, plan.Seed)
		t.Log(w.Trace)
	}
	refused := 0
	for _, wr := range h.Writes {
		if !wr.Accepted {
			refused++
		}
	}
	relayed := 0
	for _, op := range h.Ops {
		if op.Client == rawClientHost && op.Outcome == check.OK {
			relayed++
		}
	}
	t.Logf("%d writes, %d of them refused; %d calls by way of any node", len(h.Writes), refused, relayed)
	assert.GreaterOrEqual(t, refused, minutes/5, "too few writes came after their lock was lost and another had written")
	assert.Greater(t, relayed, 2*minutes, "too few calls were made to any node")
}

// The whole stack, its clients too, under everything that can go wrong.
func TestFullStackRandomFaults(t *testing.T) {
	t.Parallel()
	inPieces(t, max(simulatedDuration(t), fullStackDurationMin), func(t *testing.T, piece int, lasts time.Duration) int64 {
		return runFullStack(t, piece, lasts, driftMax)
	})
}

// HistoryVariable names a directory in which the history of a run that failed is left.
const HistoryVariable = "ZAMOK_SIM_KEEP"

func (w *fullStack) keepHistory(t *testing.T, h *check.History) {
	t.Helper()
	dir := os.Getenv(HistoryVariable)
	if dir == "" {
		return
	}
	file, err := os.Create(filepath.Join(dir, fmt.Sprintf("%d.json", w.Seed)))
	if assert.NoError(t, err) {
		assert.NoError(t, errors.Join(h.Write(file), file.Close()))
		t.Logf("the history is in %s", file.Name())
	}
}

// With clocks that are further apart than is promised, clients believe in locks that others hold. What
// checks tokens is safe all the same, and so is everything that the cluster itself decides.
func TestExcessiveDriftBreaksOnlyHolds(t *testing.T) {
	t.Parallel()
	inPieces(t, max(simulatedDuration(t)/10, fullStackDurationMin), func(t *testing.T, piece int, lasts time.Duration) int64 {
		return runFullStack(t, piece, lasts, 8*driftMax)
	})
}
