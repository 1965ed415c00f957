package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"zamok/jepsen/check"
	"zamok/jepsen/real/disk"
	"zamok/jepsen/workload"
)

// options are the settings of the command line.
type options struct {
	seed        uint64
	duration    time.Duration
	durationMax time.Duration
	measure     bool
	nodes       int
	programs    int
	out         string
	program     string
	kindPattern string
	minOK       int
	faults      int
	all         bool
	disks       bool
	minutes     int
	attempts    int
	recheck     bool
}

func main() {
	if text := os.Getenv(subprocessVariable); text != "" {
		if err := runSubprocess(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.Uint64Var(&o.seed, "seed", 0,
		"repeat the random choices of an earlier run (default: random)")
	flag.DurationVar(&o.duration, "for", time.Minute, "duration of the faults")
	flag.DurationVar(&o.durationMax, "at-most", 0,
		"maximum `duration`: continue beyond -for until the run fulfills its minimums")
	flag.IntVar(&o.nodes, "nodes", 3, "number of nodes")
	flag.IntVar(&o.programs, "programs", 3,
		fmt.Sprintf("number of client processes, each with %d clients of %d goroutines",
			clientsPerProgram, threadsPerClient))
	flag.StringVar(&o.out, "out", "bin/jepsen",
		"`directory` for the directories of the runs; with -recheck, for the report")
	flag.StringVar(&o.program, "zamok", "", "zamok binary (default: built from source)")
	flag.StringVar(&o.kindPattern, "only", ".", "`regexp` of the kinds of faults")
	flag.IntVar(&o.minOK, "min-ok", 1000,
		"minimum number of successful calls; with fewer the run is invalid")
	flag.IntVar(&o.faults, "min-faults", 1,
		"minimum number of faults; with fewer the run is invalid")
	flag.BoolVar(&o.all, "every-kind", false, "require every kind of fault that does not take long")
	flag.BoolVar(&o.disks, "disks", false,
		"include disk faults, where root and /dev/fuse are available")
	flag.IntVar(&o.minutes, "minutes", 0,
		"repeat runs with successive seeds for this many minutes (default: one run)")
	flag.IntVar(&o.attempts, "tries", 1,
		"maximum number of attempts while a run is invalid, as on a busy machine")
	flag.BoolVar(&o.measure, "measure-leader", false,
		"only measure what clients see of an impaired leader, under the impairments that "+
			"-only names")
	flag.BoolVar(&o.recheck, "recheck", false,
		"check the recorded histories that the arguments name, and write a report")
	flag.Parse()
	if o.recheck {
		recheckAndExit(o.out, flag.Args())
	}
	if o.disks {
		if err := disk.Isolate(); err != nil {
			fmt.Fprintln(os.Stderr, "jepsen:", err) // the run continues without
		}
	}
	if o.seed == 0 {
		o.seed = rand.Uint64() >> 32
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok := true
	if o.measure {
		err := o.measureLeader(ctx)
		ok = err == nil
		if err != nil {
			fmt.Fprintln(os.Stderr, "jepsen:", err)
		}
	} else {
		ok = o.runAll(ctx)
	}
	stop()
	if !ok {
		os.Exit(1)
	}
}

func recheckAndExit(out string, histories []string) {
	v, err := recheck(out, histories)
	if err != nil {
		fmt.Fprintln(os.Stderr, "jepsen:", err)
		os.Exit(2)
	}
	if v != passed {
		os.Exit(1)
	}
	os.Exit(0)
}

// runAll makes runs until the time is over, and prints their sums. It reports whether all were
// good.
func (o *options) runAll(ctx context.Context) (ok bool) {
	began, good, bad, calls, faults := monotonicNow(), 0, 0, 0, 0
	moreTime := func() bool {
		return monotonicNow()-began+o.duration < time.Duration(o.minutes)*time.Minute
	}
	for first := true; first || moreTime() && ctx.Err() == nil; first = false {
		r, err := o.runOnce(ctx)
		for try := 1; err == nil && verdictOf(r.Report) == invalid && try < o.attempts; try++ {
			fmt.Printf("this run is invalid and is repeated\n")
			o.seed++
			r, err = o.runOnce(ctx)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "jepsen: %v\nagain: %s\n", err, o.reproduceCommand())
		}
		if r != nil {
			calls, faults = calls+len(r.calls), faults+len(r.faults)
		}
		if err == nil && r.OK() {
			good++
		} else {
			bad++
		}
		o.seed++
	}
	fmt.Printf("%d runs were good and %d were not, in %v: %d calls, %d faults\n",
		good, bad, (monotonicNow() - began).Round(time.Second), calls, faults)
	return bad == 0
}

// reproduceCommand is the command that makes the same choices. If a flag occurs twice, the last one
// counts.
func (o *options) reproduceCommand() string {
	args := slices.Clone(os.Args)
	for i, arg := range args {
		if strings.ContainsAny(arg, " |()*$") {
			args[i] = "'" + arg + "'"
		}
	}
	return fmt.Sprintf("%s -minutes 0 -seed %d", strings.Join(args, " "), o.seed)
}

// selectKinds are the kinds of faults of a run whose machine lacks some requirements.
func (o *options) selectKinds(lacks ...requirement) (all []faultKind, err error) {
	only, err := regexp.Compile(o.kindPattern)
	if err != nil {
		return nil, err
	}
	for _, k := range faultKinds() {
		if only.MatchString(k.name) && k.possible(o, lacks) {
			all = append(all, k)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no kind of fault is called %q", o.kindPattern)
	}
	return all, nil
}

// runOnce makes a cluster, injects faults, heals it, and checks what was recorded.
func (o *options) runOnce(ctx context.Context) (*runReport, error) {
	c, err := o.prepare(ctx)
	if err != nil {
		return nil, err
	}
	var lacks []requirement
	if c.disks == nil {
		lacks = append(lacks, disks)
	}
	if c.throttled == nil {
		lacks = append(lacks, throttling)
	}
	kinds, err := o.selectKinds(lacks...)
	if err != nil {
		return nil, err
	}
	plan := check.Plan{
		Name: fmt.Sprintf("%d nodes", o.nodes), Seed: o.seed, Begin: monotonicNow(),
		Drain:  drainMax,
		Checks: requiredChecks, OKMin: o.minOK, ExpirationSlack: expirationSlack,
	}
	if o.all {
		for _, k := range kinds {
			if !k.isSlow() {
				plan.Faults = append(plan.Faults, k.name)
			}
		}
	}
	err = c.runLoadAndFaults(o, kinds, &plan)
	c.close()
	if err == nil && ctx.Err() != nil {
		err = errors.New("it was interrupted")
	}
	if end := c.record.close(); err == nil {
		err = end
	}
	h, problem := c.collectHistory(plan)
	if problem != nil {
		return nil, errors.Join(err, problem)
	}
	if err != nil {
		c.logf("%v", err)
	}
	return c.checkAndReport(o, h, err)
}

// prepare makes the run's directory and everything in it that needs no node.
func (o *options) prepare(ctx context.Context) (*cluster, error) {
	name := fmt.Sprintf("%s-%d", time.Now().UTC().Format("20060102-150405"), o.seed)
	dir, err := filepath.Abs(filepath.Join(o.out, name))
	if err != nil {
		return nil, err
	}
	c := &cluster{
		dir: dir, binary: o.program, seed: o.seed, subnet: 16<<8 + os.Getpid()%(64<<8),
		deaths: map[string]time.Duration{},
	}
	if err := errors.Join(os.MkdirAll(c.historyDir(), 0o755),
		os.MkdirAll(c.logDir(), 0o755)); err != nil {
		return nil, err
	}
	if c.binary == "" {
		c.binary = filepath.Join(dir, "zamok")
		build := exec.CommandContext(ctx, "go", "build", "-o", c.binary, "zamok/cmd/zamok")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	if c.ownBinary, err = os.Executable(); err != nil {
		return nil, err
	}
	if c.log, err = os.Create(filepath.Join(c.logDir(), "run.log")); err != nil {
		return nil, err
	}
	if c.record, err = newRecorder(filepath.Join(c.historyDir(), "run.jsonl")); err != nil {
		return nil, err
	}
	for i := range o.programs {
		c.programs = append(c.programs,
			&clientProgram{cluster: c, name: fmt.Sprint("c", i+1),
				ip: c.ip(hostOfFirstProgram + i)})
	}
	c.done, c.cancel = context.WithCancel(ctx)
	c.network = newProxyNetwork(c.connectionOwner)
	if c.resource, err = serveResource(c.ip(hostOfRun)+":"+resourcePort, c.record); err != nil {
		return nil, err
	}
	c.logf("seed %d, in %s", o.seed, dir)
	c.openCgroup()
	if o.disks {
		return c, c.openDisks(ctx)
	}
	return c, nil
}

// runLoadAndFaults runs load and faults, heals all faults, and waits for the end of all calls.
func (c *cluster) runLoadAndFaults(o *options, kinds []faultKind, plan *check.Plan) error {
	if err := c.start(o.nodes); err != nil {
		return err
	}
	c.recordIdleCounts(false)
	var err error
	if c.auditor, err = c.startSubprocess("audit", c.ip(hostOfAudit)); err != nil {
		return err
	}
	began := func() bool { _, err := os.Stat(readyFile(c.historyDir())); return err == nil }
	if !await(c.done, startTimeout, leaderPollInterval, began) {
		return fmt.Errorf("the audit did not begin to watch within %v", startTimeout)
	}
	for _, p := range c.programs {
		if err := p.start(); err != nil {
			return err
		}
	}
	workload.Sleep(c.done, 2*time.Second) // for the load to begin
	f, err := c.newNemesis(kinds)
	if err != nil {
		return err
	}
	workload.Sleep(c.done, o.duration)
	await(c.done, o.durationMax-o.duration, 3*time.Second,
		func() bool { return f.provesEnough(plan, o.faults) })
	f.stop()
	f.workers.Wait() // each undoes its fault
	err = f.client.Close()
	plan.Healed = monotonicNow()
	c.logf("healed after %v; faults: %v", (plan.Healed - plan.Begin).Round(time.Millisecond),
		f.counts)
	err = errors.Join(err, c.stop(plan))
	c.awaitIdle()
	c.recordIdleCounts(true)
	plan.End = monotonicNow()
	return err
}

// idleMetrics are counts of a node at rest, which must not grow.
var idleMetrics = []string{"zamok_sessions", "zamok_waiters", "zamok_locks_held"}

// idleTimeout is how long leftover sessions may take to end: the longest lease, and far more for a
// busy machine.
const idleTimeout = 2 * time.Minute

// awaitIdle waits until no node has a session.
func (c *cluster) awaitIdle() {
	await(c.done, idleTimeout, leaderPollInterval, func() bool {
		return !slices.ContainsFunc(c.members(), func(n *node) bool {
			counts, err := n.metrics(c.done)
			return err != nil || counts["zamok_sessions"] > 0
		})
	})
}

// recordIdleCounts records each node's counts while it has no load.
func (c *cluster) recordIdleCounts(after bool) {
	for _, n := range c.members() {
		counts, err := n.metrics(c.done)
		if err != nil {
			c.logf("%s does not return its counts: %v", n.id, err)
			continue
		}
		r := check.IdleCount{Process: n.id, AfterLoad: after, Counts: map[string]int64{}}
		for _, what := range idleMetrics {
			if count, known := counts[what]; known {
				r.Counts[what] = int64(count)
			} else {
				c.logf("%s does not return %s, so it is not checked", n.id, what)
			}
		}
		c.record.put(check.Record{IdleCount: &r})
	}
}
