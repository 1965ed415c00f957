package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"zamok/clock"
	"zamok/jepsen/workload"
	"zamok/raftnode"
)

// SeedVariable is the environment variable that repeats the random choices of a run.
const SeedVariable = "ZAMOK_SEED"

// timeLimitDefault is the virtual time that a run may take. A goroutine that is lost does not stop a
// bubble: raft's own timers keep virtual time running, with the processor at full speed.
const timeLimitDefault = 30 * time.Minute

// Config is what is simulated. All zeros: three nodes whose data is in memory.
type Config struct {
	// RunIndex is the number of this run among those of one test; its seed is the one that was asked for plus RunIndex.
	RunIndex int
	// Nodes is how many nodes the list of the cluster names. Zero: 3.
	Nodes int
	// OnDisk puts their data into directories of the test, with the real stores and their fsyncs. Otherwise it is in
	// memory: it survives the process, not the run, and costs no time.
	OnDisk bool
	// WriteTimeMax is what a write to log or votes takes at most. Zero: no time.
	WriteTimeMax time.Duration
	// Limit is the virtual time after which the run is given up as lost. Zero: 30 minutes.
	Limit time.Duration
	// Drift is by how much, at most, clocks go too fast or too slow. Zero: none does.
	Drift float64
	// AdaptiveTimeouts has the nodes' timeouts follow what is measured. Otherwise they are the shortest, so that a story knows
	// how long an election takes.
	AdaptiveTimeouts bool
	// Tune changes a node's configuration before each start. Nil: it stays as it is.
	Tune Tune
}

// Sim is one run: a cluster, the network it is on, and what was seen. It lives in one bubble.
type Sim struct {
	testing.TB
	Seed    uint64
	Network *Network
	Audit   *Audit
	Trace   *Trace

	config         Config
	record         *recorder
	unanswered     atomic.Int64 // proposals without an answer
	began          time.Time
	initialMembers int         // so many nodes of the first
	noneTorn       atomic.Bool // an append that is lost in a power failure leaves nothing behind

	mu    sync.Mutex     // guards what follows: a story may add a node while clients look for a leader
	nodes []*Node        // in the order in which they were added
	moves map[string]int // what became of leaders that made no progress, by what they logged
}

// Run runs a story in a bubble of testing/synctest: a cluster that is not started yet, on a network
// of its own. Whatever still runs at the end of the story is killed.
func Run(t *testing.T, c Config, story func(*Sim)) {
	t.Helper()
	run(t, c, newWatchdog(t), story)
}

// RunParallel is Run in a test that runs in parallel with others.
func RunParallel(t *testing.T, c Config, story func(*Sim)) {
	t.Helper()
	t.Parallel()
	Run(t, c, story)
}

// runStarted is RunParallel with a cluster that is started and has a leader.
func runStarted(t *testing.T, c Config, story func(s *Sim, leader *Node)) {
	t.Helper()
	RunParallel(t, c, func(s *Sim) { story(s, s.Start()) })
}

func run(t *testing.T, c Config, dog *watchdog, story func(*Sim)) {
	t.Helper()
	seed := testSeed(t) + uint64(c.RunIndex)
	defer dog.watch()()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, c, seed)
		stop, still := time.AfterFunc(s.config.Limit, s.abortStuck), dog.startHeartbeat(s)
		t.Cleanup(func() { // last, because it is the first: what a story has started ends before
			for _, n := range s.Nodes() {
				n.Kill()
			}
			if n := s.unanswered.Load(); n != 0 {
				t.Errorf("proposals were not answered exactly once: %d more proposals than answers", n)
			}
			stop.Stop()
			still()
			if t.Failed() {
				t.Logf("seed %d: repeat its choices with %s=%d", seed, SeedVariable, seed)
				t.Log(s.Trace)
			}
		})
		story(s)
	})
}

func newSim(t testing.TB, c Config, seed uint64) *Sim {
	if c.Nodes == 0 {
		c.Nodes = 3
	}
	if c.Limit == 0 {
		c.Limit = timeLimitDefault
	}
	began := time.Now()
	s := &Sim{
		TB: t, Seed: seed, Audit: &Audit{began: began, byIndex: map[uint64]int{}, inLogs: map[clock.Stamp]storedEntry{}}, Trace: &Trace{began: began},
		config: c, began: began, initialMembers: c.Nodes, moves: map[string]int{},
	}
	s.record = newRecorder(s)
	s.Network = newNetwork(s.Random("network"))
	for i := range c.Nodes {
		id := fmt.Sprintf("n%d", i+1)
		s.AddNode(id, id)
	}
	return s
}

// testSeed is the seed of this run: the one asked for, or a new one.
func testSeed(t *testing.T) uint64 {
	text := os.Getenv(SeedVariable)
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is not a number: %v", SeedVariable, text, err)
	}
	return seed
}

// rateOf is how fast the clock of a host goes: as far off as may be, one time in two.
func (s *Sim) rateOf(host string) float64 {
	random := s.Random("rate of " + host)
	off := 2*random.Float64() - 1
	if random.IntN(2) == 0 {
		off = float64(2*random.IntN(2) - 1)
	}
	return 1 + off*s.config.Drift
}

// Random is a source of random choices of its own for each purpose, so that one more draw for one
// does not change the others. It belongs to one goroutine.
func (s *Sim) Random(purpose string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(s.Seed, h.Sum64()))
}

// Elapsed is the virtual time since the beginning of the run.
func (s *Sim) Elapsed() time.Duration { return time.Since(s.began) }

// countMoves counts the lines of leaders that make no progress.
func (s *Sim) countMoves(line string) {
	outcome := raftnode.Moved
	if !strings.Contains(line, "this leader gives way") {
		if !strings.Contains(line, "makes no progress, and stays") {
			return
		}
		_, outcome, _ = strings.Cut(line, "because=")
		outcome, _, _ = strings.Cut(outcome, " ")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moves[outcome]++
}

// Moves are what became of leaders that made no progress: how often one gave way (raftnode.Moved),
// and stayed and why.
func (s *Sim) Moves() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.moves)
}

// historyTime is the present in a recorded history, where no moment is 0.
func (s *Sim) historyTime() time.Duration { return s.Elapsed() + historyBegin }

// historyBegin is where the moments of recorded histories begin.
const historyBegin = time.Second

// Within is a context that ends after so much virtual time, or with the test.
func (s *Sim) Within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), d, fmt.Errorf("nothing after %v of virtual time", d))
	s.Cleanup(cancel)
	return ctx
}

// awaitPollInterval is how often a condition is looked at.
const awaitPollInterval = 5 * time.Millisecond

// Await waits until something holds, and ends the test when it does not within d of virtual time.
func (s *Sim) Await(d time.Duration, what string, holds func() bool) {
	s.Helper()
	from := time.Now()
	for !holds() {
		if time.Since(from) > d {
			s.Fatalf("at %v, not after %v of virtual time: %s", s.Elapsed(), d, what)
		}
		time.Sleep(awaitPollInterval)
	}
}

// background runs something until the returned function is called, which waits for its end.
func background(run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// abortStuck ends the run and prints all stacks: some goroutine waits without end.
func (s *Sim) abortStuck() {
	panic(fmt.Sprintf("sim: the run is not over after %v of virtual time (seed %d)\n%s\n%s",
		s.config.Limit, s.Seed, s.Trace, allStacks()))
}

func allStacks() []byte {
	stacks := make([]byte, 16<<20)
	return stacks[:runtime.Stack(stacks, true)]
}

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
	s := w.sim.Load()
	if s == nil {
		return fmt.Sprintf("sim: the run did not begin\n%s", allStacks())
	}
	return fmt.Sprintf("sim: virtual time stands, for %v of real time (seed %d): something spins, or waits for a mutex "+
		"whose owner waits for something else; look for both among the stacks of its bubble\n%s\n%s",
		time.Duration(w.missedMax)*w.pollInterval, s.Seed, s.Trace, allStacks())
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

// traceMax is how many lines are kept at least: the last ones, all faults, and the lines with keptWords.
const traceMax = 3000

// Trace is what happened, with virtual time. It is printed when a test fails: scheduling can't be replayed, so a
// failure has to be understood from it.
type Trace struct {
	began time.Time

	mu      sync.Mutex
	lines   []traceLine
	dropped int
}

type traceLine struct {
	at     time.Duration
	source string
	text   string
	kept   bool // never dropped
}

// Note adds a line.
func (t *Trace) Note(source, format string, args ...any) {
	t.add(source, fmt.Sprintf(format, args...), false)
}

// Fault adds a line about what was done to the cluster.
func (t *Trace) Fault(format string, args ...any) { t.add("FAULT", fmt.Sprintf(format, args...), true) }

func (t *Trace) add(source, text string, kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, traceLine{time.Since(t.began), source, text, kept})
	if len(t.lines) >= 2*traceMax {
		old := t.lines[:len(t.lines)-traceMax]
		left := slices.DeleteFunc(slices.Clone(old), func(l traceLine) bool { return !l.kept })
		t.dropped += len(old) - len(left)
		t.lines = append(left, t.lines[len(old):]...)
	}
}

// String prints the trace.
func (t *Trace) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "trace (%d lines dropped):\n", t.dropped)
	for _, l := range t.lines {
		fmt.Fprintf(&b, "%12.6fs %-6s %s\n", l.at.Seconds(), l.source, l.text)
	}
	return b.String()
}

// Has reports whether a line of this source, if it was not dropped, contains all these words.
func (t *Trace) Has(source string, words ...string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.lines, func(l traceLine) bool {
		missing := func(word string) bool { return !strings.Contains(l.text, word) }
		return l.source == source && !slices.ContainsFunc(words, missing)
	})
}

// Count is how many lines, of those that were not dropped, contain this word.
func (t *Trace) Count(word string) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lines {
		if strings.Contains(l.text, word) {
			n++
		}
	}
	return n
}

// logger is a node's logger, which writes into the trace, and calls each of watch with each line.
func (t *Trace) logger(source string, watch ...func(line string)) *slog.Logger {
	return slog.New(slog.NewTextHandler(traceWriter{t, source, watch}, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{} // the trace has its own
			}
			return a
		},
	}))
}

type traceWriter struct {
	trace  *Trace
	source string
	watch  []func(line string)
}

func (w traceWriter) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	w.trace.add(w.source, text, slices.ContainsFunc(keptWords, func(w string) bool { return strings.Contains(text, w) }))
	for _, call := range w.watch {
		call(text)
	}
	return len(line), nil
}

// keptWords are in the few messages without which a run can't be understood.
var keptWords = []string{
	"ALARM", "leading", "Installed remote snapshot", "two processes", "clone detected",
	"lost its end", "nothing above this end", "has what it had lost",
}
