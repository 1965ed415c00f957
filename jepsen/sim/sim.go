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

	"zamok/jepsen/workload"
	"zamok/raftnode"
)

// SeedVariable is the environment variable that repeats the random choices of a run.
const SeedVariable = "ZAMOK_SEED"

// timeLimitDefault is the virtual time that a run may take. A goroutine that waits forever does not
// stop a bubble: raft's timers keep virtual time running, with the processor at full speed.
const timeLimitDefault = 30 * time.Minute

// Config is what is simulated. All zeros: three nodes whose data is in memory.
type Config struct {
	// RunIndex is the number of this run among those of one test; its seed is that of the test plus
	// RunIndex.
	RunIndex int
	// Nodes is how many nodes the list of the cluster names. Zero: 3.
	Nodes int
	// OnDisk puts their data into directories of the test, with the real stores and their fsyncs.
	// Otherwise it is in memory: it survives the process and costs no time.
	OnDisk bool
	// WriteTimeMax is what a write to log or votes takes at most. Zero: no time.
	WriteTimeMax time.Duration
	// Limit is the virtual time after which the run is given up as lost. Zero: 30 minutes.
	Limit time.Duration
	// Drift is by how much clocks are too fast or too slow at most. Zero: all are right.
	Drift float64
	// AdaptiveTimeouts lets the nodes adapt their timeouts to measured latencies. Otherwise they
	// have the shortest, so that a story knows how long an election takes.
	AdaptiveTimeouts bool
	// Tune changes a node's configuration before each start. Nil: it stays as it is.
	Tune Tune
}

// Sim is one run: a cluster, its network, and what was recorded. It lives in one bubble.
type Sim struct {
	testing.TB
	Seed    uint64
	Network *Network
	Audit   *Audit
	Trace   *Trace

	config         Config
	record         *recorder
	rare           rareRecord
	unanswered     atomic.Int64 // proposals without an answer
	began          time.Time
	initialMembers int         // how many of the first nodes
	noneTorn       atomic.Bool // an append that is lost in a power failure leaves nothing behind

	// guards what follows: a story may add a node while clients look for a leader
	mu    sync.Mutex
	nodes []*Node        // in the order in which they were added
	moves map[string]int // outcomes of leaders without progress, from their logs
}

// Run runs a story in a bubble of testing/synctest, with a cluster that is not started yet, on a
// network of its own. At the end of the story all nodes are killed.
func Run(t *testing.T, c Config, story func(*Sim)) {
	t.Helper()
	run(t, c, newWatchdog(t), story)
}

// RunParallel is Run, in parallel with other tests.
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
		t.Cleanup(func() { // the first one, so it runs after those of the story
			for _, n := range s.Nodes() {
				n.Kill()
			}
			if n := s.unanswered.Load(); n != 0 {
				t.Errorf("proposals were not answered exactly once: %d more proposals than answers",
					n)
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
		TB: t, Seed: seed, Audit: newAudit(began), Trace: &Trace{began: began},
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

// testSeed is the seed of this run: that of the environment, or a new one.
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

// rateOf is the rate of a host's clock: in half of the cases as far off as allowed.
func (s *Sim) rateOf(host string) float64 {
	random := s.Random("rate of " + host)
	off := 2*random.Float64() - 1
	if random.IntN(2) == 0 {
		off = float64(2*random.IntN(2) - 1)
	}
	return 1 + off*s.config.Drift
}

// Random is a source of random choices for one purpose, so that one more draw does not change those
// of other purposes. It belongs to one goroutine.
func (s *Sim) Random(purpose string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(s.Seed, h.Sum64()))
}

// Elapsed is the virtual time since the beginning of the run.
func (s *Sim) Elapsed() time.Duration { return time.Since(s.began) }

// countMoves counts the log lines of leaders without progress.
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

// Moves are the outcomes of leaders without progress: how often one gave way (raftnode.Moved), and
// how often one stayed, by reason.
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
	ctx, cancel := context.WithTimeoutCause(context.Background(), d,
		fmt.Errorf("nothing after %v of virtual time", d))
	s.Cleanup(cancel)
	return ctx
}

// awaitPollInterval is how often a condition is checked.
const awaitPollInterval = 5 * time.Millisecond

// Await waits until a condition holds, and fails the test if it does not within d of virtual time.
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

// background runs a function in a goroutine. The returned function ends its context and waits for
// its end.
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

// abortStuck ends the run and prints all stacks: some goroutine waits forever.
func (s *Sim) abortStuck() {
	panic(fmt.Sprintf("sim: the run is not over after %v of virtual time (seed %d)\n%s\n%s",
		s.config.Limit, s.Seed, s.Trace, allStacks()))
}

func allStacks() []byte {
	stacks := make([]byte, 16<<20)
	return stacks[:runtime.Stack(stacks, true)]
}

const (
	// watchdogInterval is how often, in real time, the watchdog checks whether virtual time
	// continues.
	watchdogInterval = time.Second
	// watchdogMissedMax is how many checks may find no progress. It counts checks, not time: a
	// suspended machine makes none.
	watchdogMissedMax = 180
	// heartbeatInterval is how often, in virtual time, a bubble shows that time continues: on a
	// busy machine with a slow disk a virtual second can take a minute.
	heartbeatInterval = 50 * time.Millisecond
)

// watchdog watches a bubble from outside. No limit in virtual time ends a run in which virtual time
// stands: a goroutine spins, or waits for a mutex whose owner waits for something else.
type watchdog struct {
	pollInterval time.Duration // real time between two checks
	missedMax    int           // how many checks may find no progress
	abort        func(why string)
	heartbeats   atomic.Int64 // of virtual time
	sim          atomic.Pointer[Sim]
}

func newWatchdog(t *testing.T) *watchdog {
	return &watchdog{pollInterval: watchdogInterval, missedMax: watchdogMissedMax,
		abort: func(reason string) {
			panic(t.Name() + ": " + reason)
		}}
}

// watch checks until it is stopped.
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
	return fmt.Sprintf(
		"sim: virtual time stands, for %v of real time (seed %d): something spins, or waits for "+
			"a mutex whose owner waits for something else; look for both among the stacks of its "+
			"bubble\n%s\n%s",
		time.Duration(w.missedMax)*w.pollInterval, s.Seed, s.Trace, allStacks())
}

// startHeartbeat counts up within the bubble while time continues there.
func (w *watchdog) startHeartbeat(s *Sim) (stop func()) {
	w.sim.Store(s)
	return background(func(ctx context.Context) {
		for workload.Sleep(ctx, heartbeatInterval) {
			w.heartbeats.Add(1)
		}
	})
}

// traceMax is how many of the last lines are kept at least. All faults, and lines with keptWords,
// are kept.
const traceMax = 3000

// Trace is a log of the run in virtual time. It is printed when a test fails: scheduling can't be
// replayed, so the trace has to explain the failure.
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

// Logf adds a line.
func (t *Trace) Logf(source, format string, args ...any) {
	t.add(source, fmt.Sprintf(format, args...), false)
}

// Fault adds a line about a fault.
func (t *Trace) Fault(format string, args ...any) {
	t.add("FAULT", fmt.Sprintf(format, args...), true)
}

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

// Has reports whether a kept line of this source contains all these words.
func (t *Trace) Has(source string, words ...string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.lines, func(l traceLine) bool {
		missing := func(word string) bool { return !strings.Contains(l.text, word) }
		return l.source == source && !slices.ContainsFunc(words, missing)
	})
}

// Count is how many kept lines contain this word.
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
	w.trace.add(w.source, text,
		slices.ContainsFunc(keptWords, func(w string) bool { return strings.Contains(text, w) }))
	for _, call := range w.watch {
		call(text)
	}
	return len(line), nil
}

// keptWords mark the few messages that are always needed to understand a run.
var keptWords = []string{
	"ALARM", "leading", "Installed remote snapshot", "two processes", "clone detected",
	"lost its end", "nothing above this end", "has what it had lost",
}
