package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
	"zamok/raftnode"
)

const (
	// HoursVariable is the number of virtual hours of random faults: one half with faults of nodes
	// only, the other with all. Default: a third of an hour; with -short, minutes.
	HoursVariable = "ZAMOK_SIM_HOURS"
	// HistoryVariable names a directory for the histories of runs that fail.
	HistoryVariable = "ZAMOK_SIM_KEEP"

	// pieceDurationMax is the length of the longest run: the hours are cut into pieces, to use both
	// processors and to keep the trace of a failure readable.
	pieceDurationMax = 15 * time.Minute
	// allFaultsDurationMin is how long a run must last at least for every kind of fault to happen.
	allFaultsDurationMin = 5 * time.Minute
	// faultsPerMinute is what a run must have at least.
	faultsPerMinute = 5
)

// rareStates are the rare outcomes of leaders without progress. Each must occur in this much
// virtual time.
var rareStates = map[string]time.Duration{
	raftnode.Moved: 15 * time.Minute, raftnode.StayedWithoutMajority: 15 * time.Minute,
	raftnode.StayedRecent: time.Hour,
}

// simulatedDuration is how long each half of the hours is.
func simulatedDuration(t *testing.T) time.Duration {
	t.Helper()
	hours := 1.0 / 3
	if text := os.Getenv(HoursVariable); text != "" {
		var err error
		if hours, err = strconv.ParseFloat(text, 64); err != nil || hours <= 0 {
			t.Fatalf("%s=%q is not a number of hours", HoursVariable, text)
		}
	}
	return time.Duration(hours / 2 * float64(time.Hour))
}

// notShort skips a test in short mode, in which TestFullStackRandomFaults makes do for all random
// runs.
func notShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out with -short: see TestFullStackRandomFaults")
	}
}

// Faults of nodes, with adaptive timeouts in every second run. At the end of each run a follower is
// sent a snapshot and the disk of a leader hangs.
func TestRandomFaults(t *testing.T) {
	notShort(t)
	t.Parallel()
	randomFaults(t, simulatedDuration(t), faultRun{
		name: "nodes", parallel: 2, adaptive: true, last: installAndHang,
		faults: slices.Concat(nodeFaults, impairments),
	})
}

// The whole stack under everything that can go wrong.
func TestFullStackRandomFaults(t *testing.T) {
	t.Parallel()
	lasts := allFaultsDurationMin
	if !testing.Short() {
		lasts = max(simulatedDuration(t), lasts)
	}
	randomFaults(t, lasts, faultRun{
		name: "whole", parallel: 3, faults: slices.Concat(nodeFaults, impairments, clientFaults),
		drift: driftMax,
	})
}

// With clocks that are further apart than allowed, clients may consider themselves holders of locks
// that others hold. Storage that checks tokens is still safe, and so are the decisions of the
// cluster.
func TestExcessiveDriftBreaksOnlyHolds(t *testing.T) {
	notShort(t)
	t.Parallel()
	randomFaults(t, max(simulatedDuration(t)/10, allFaultsDurationMin), faultRun{
		name: "whole", parallel: 3, faults: slices.Concat(nodeFaults, impairments, clientFaults),
		drift: 8 * driftMax,
	})
}

// faultRun is what runs under random faults have in common.
type faultRun struct {
	name     string
	parallel int // faults at the same time
	faults   []fault
	drift    float64
	adaptive bool       // adaptive timeouts in every second run
	last     func(*Sim) // happens after the faults; nil = nothing
	moves    *sync.Map  // outcomes of leaders without progress, in all runs
	rare     *rareTotal // rare states, in all runs
}

// randomFaults makes runs that last so long in total.
func randomFaults(t *testing.T, total time.Duration, r faultRun) {
	t.Helper()
	var faults atomic.Int64
	r.moves, r.rare = &sync.Map{}, &rareTotal{counts: map[string]int{}}
	t.Cleanup(func() {
		t.Logf("%v of virtual time, %d faults", total, faults.Load())
		t.Logf("rare states:\n%s", formatRare(r.rare.counts))
		for outcome, within := range rareStates {
			if _, happened := r.moves.Load(outcome); !happened && total >= within {
				t.Errorf("in %v no leader without progress had this outcome: %s", total, outcome)
			}
		}
	})
	pieces := int((total + pieceDurationMax - 1) / pieceDurationMax)
	for i := range pieces {
		t.Run(fmt.Sprint("piece", i+1), func(t *testing.T) {
			t.Parallel()
			faults.Add(r.run(t, i, total/time.Duration(pieces)))
		})
	}
}

// run makes one run, and returns how many faults there were. It fails also if too little happened.
func (r faultRun) run(t *testing.T, piece int, lasts time.Duration) (happened int64) {
	t.Helper()
	var s *Sim
	plan := check.Plan{Name: r.name, Begin: historyBegin, CompleteEvents: true, Drain: drainMax,
		ClockRate: 1 + r.drift}
	c := Config{
		RunIndex: piece, Drift: r.drift, AdaptiveTimeouts: r.adaptive && piece%2 == 1,
		Tune:  withSmallLogs,
		Limit: 2*lasts + timeLimitDefault,
	}
	Run(t, c, func(sim *Sim) {
		s = sim
		s.Start()
		load, stopCalls := s.Load(6, time.Second), s.callEveryNode()
		load.startFurther()
		faults := s.StartNemesis(r.parallel, load, r.faults)
		faults.Run(lasts)
		faults.Stop()
		stopCalls()
		plan.Healed = s.historyTime()
		if r.last != nil {
			r.last(s)
		}
		load.Stop()
		s.AwaitCounts(workload.TTLMax+backoffMax, fsm.Counts{})
		s.AwaitConverged(backoffMax)
		s.record.recordNodeStates()
		plan.End, plan.Seed = s.historyTime(), s.Seed
		for kind, times := range faults.Counts() {
			plan.Faults = append(plan.Faults, kind)
			happened += int64(times)
		}
		s.Logf("faults: %v; %d processes exited by themselves; leaders without progress: %v",
			faults.Counts(), faults.unexpectedExits, s.Moves())
		for outcome := range s.Moves() {
			r.moves.Store(outcome, true)
		}
		s.checkNodes()
		s.Logf("the watch showed %d events; %d leaders were elected", load.checkWatch(),
			load.checkLeaders())
	})
	if !t.Failed() {
		r.check(t, s, plan, lasts, happened)
	}
	return happened
}

// check checks the history of a run, and whether enough happened.
func (r faultRun) check(t *testing.T, s *Sim, plan check.Plan, lasts time.Duration,
	happened int64) {
	t.Helper()
	minutes := int(lasts / time.Minute)
	plan.OKMin = 200 * minutes
	for n := range 16 { // not C17: AwaitCounts has checked more than that
		plan.Checks = append(plan.Checks, fmt.Sprint("C", n+1))
	}
	h := s.record.history(plan)
	if r.drift > driftMax {
		for _, s := range h.Sessions { // holds may be wrong; tokens must be safe
			h.Faults = append(h.Faults,
				check.Fault{Kind: "wrong clock", Target: s.Client, From: plan.Begin, To: plan.End,
					ExcusesClient: true})
		}
		h.Plan.Checks = slices.DeleteFunc(plan.Checks, func(id string) bool { return id == "C2" })
	}
	r.rare.add(s.rare.counts(s.Audit))
	report := check.Check(h)
	compared, restored := s.Audit.Compared()
	t.Logf(
		"%v of virtual time, seed %d, %d operations, %d holds, %d sessions, %d events, %d "+
			"epochs; %d effects and %d snapshots compared; %d entries lost before they were "+
			"written\n%v%v",
		lasts, plan.Seed, len(h.Ops), len(h.Holds), len(h.Sessions), len(h.Events),
		s.Audit.Epochs(), compared, restored,
		s.UnbegunWrites(), report.Outcomes, report)
	if !report.OK() {
		keepHistory(t, h)
		t.Errorf("seed %d: repeat its choices with %s=%d", plan.Seed, SeedVariable, plan.Seed)
		t.Log(s.Trace)
	}
	rejected := count(h.Writes, func(w check.Write) bool { return !w.Accepted })
	relayed := count(h.Ops, func(op check.Op) bool {
		return op.Client == rawClientHost && op.Outcome == check.OK
	})
	for _, host := range append(slices.Clone(webHosts), reservationHost) {
		done := count(h.Ops, func(op check.Op) bool {
			return op.Client == host && op.Outcome == check.OK
		})
		held := count(h.Holds, func(hold check.Hold) bool { return hold.Client == host })
		t.Logf("%s: %d calls answered, %d records of holds", host, done, held)
		assert.Greater(t, done, minutes, "too few calls of %s were answered", host)
	}
	deaths := count(h.Sessions, func(s check.Session) bool { return s.Died != 0 })
	t.Logf("%d writes, %d of them rejected; %d calls to any node; %d deaths", len(h.Writes),
		rejected, relayed, deaths)
	assert.Greater(t, happened, int64(faultsPerMinute*minutes), "too few faults")
	assert.Greater(t, s.Audit.Epochs(), minutes, "too few leader changes")
	assert.Greater(t, restored, minutes, "too few snapshots restored")
	assert.Positive(t, s.UnbegunWrites(),
		"no process lost an entry that it had sent and not begun to write")
	assert.Greater(t, compared, len(s.Audit.Entries()), "too little was compared")
	assert.Greater(t, deaths, minutes/2, "too few deaths")
	assert.Greater(t, relayed, 2*minutes, "too few calls were made to any node")
	if slices.Contains(plan.Faults, pauseClient) {
		assert.GreaterOrEqual(t, rejected, minutes/5,
			"too few writes came after a loss and after the write of another client")
	}
}

// rareTotal sums up rare states.
type rareTotal struct {
	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

func (r *rareTotal) add(counts map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, n := range counts {
		r.counts[name] += n
	}
}

func keepHistory(t *testing.T, h *check.History) {
	dir := os.Getenv(HistoryVariable)
	if dir == "" {
		return
	}
	file, err := os.Create(filepath.Join(dir, fmt.Sprintf("%d.json", h.Plan.Seed)))
	if assert.NoError(t, err) {
		assert.NoError(t, errors.Join(h.Write(file), file.Close()))
		t.Logf("the history is in %s", file.Name())
	}
}

// callEveryNode sends renewals, commands and read barriers to each node, leader or not, until the
// returned function is called. Run checks that each proposal is answered exactly once.
func (s *Sim) callEveryNode() (stop func()) {
	id := s.Leader().OpenSession("caller", 5*time.Second)
	stop = background(func(ctx context.Context) {
		for workload.Sleep(ctx, retryInterval) {
			for _, n := range s.Members() {
				bounded, done := context.WithTimeout(ctx, retryInterval)
				_, _ = n.Renew(bounded, id)
				_, _ = n.Propose(bounded, &fsm.Drop{Session: id, Ticket: 1})
				_, _ = n.ReadBarrier(bounded)
				done()
			}
		}
	})
	s.Cleanup(stop)
	return stop
}

// installAndHang makes what chance may leave out: a follower is sent a snapshot, a leader gives way
// because its disk hangs, and the watchdog of another one ends it. The watchdog does that only if
// the process has run for a minute, and no leader may give way yet again.
func installAndHang(s *Sim) {
	time.Sleep(backoffMax)
	away := s.Others(s.Leader())[0]
	_, before := s.Audit.Compared()
	s.Network.Isolate(away.Host)
	time.Sleep(time.Minute) // until the leader's log begins beyond the end of this follower's
	s.Network.HealAll()
	s.AwaitApplied(s.Leader(), away, 2*backoffMax)
	_, after := s.Audit.Compared()
	assert.Greater(s, after, before, "no snapshot was installed over the network")

	time.Sleep(time.Minute)
	moved := s.Moves()[raftnode.Moved]
	hangs := s.Leader()
	hangs.Disk.Stall()
	next := nextLeader(s, hangs)
	assert.Equal(s, moved+1, s.Moves()[raftnode.Moved])
	assert.NoError(s, hangs.Fatal())
	hangs.Disk.Resume()
	time.Sleep(backoffMax)
	stuck := s.Leader()
	assert.Same(s, next, stuck)
	stuck.Disk.Stall()
	s.Await(2*hangDuration, "the watchdog ends a leader whose disk hangs", stuck.processEnded)
	assert.Positive(s, s.Moves()[raftnode.StayedRecent])
	assert.ErrorIs(s, stuck.Fatal(), raftnode.ErrStuck)
	nextLeader(s, stuck).MustPropose(nil)
	stuck.Start()
	time.Sleep(backoffMax)
}

// nextLeader waits until another node leads. A leader gives way after 2 s, tries to transfer the
// leadership first, and earlier faults have made the timeouts longer.
func nextLeader(s *Sim, old *Node) *Node {
	s.Helper()
	s.Await(2*electionTimeMax, "another node leads", func() bool {
		return slices.ContainsFunc(s.Leaders(), func(n *Node) bool { return n != old })
	})
	return s.LeaderOtherThan(old)
}
