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
	"syscall"
	"time"

	"zamok/jepsen/check"
	"zamok/jepsen/report"
)

// options are what the command line says of one run.
type options struct {
	seed     uint64
	lasts    time.Duration
	most     time.Duration
	nodes    int
	programs int
	out      string
	program  string
	only     string
	minOK    int
	faults   int
	all      bool
	disks    bool
	net      string
	log      string
	minutes  int
	tries    int
}

func main() {
	if text := os.Getenv(orderVariable); text != "" {
		if err := obey(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.Uint64Var(&o.seed, "seed", 0, "repeats the choices of an earlier run; what the machine does in between differs (default: another each time)")
	flag.DurationVar(&o.lasts, "for", time.Minute, "how long faults strike")
	flag.DurationVar(&o.most, "at-most", 0, "go on beyond -for until everything has happened without which the run is invalid, as on a slow machine, but no longer than this")
	flag.IntVar(&o.nodes, "nodes", 3, "nodes of the cluster")
	flag.IntVar(&o.programs, "programs", 3, fmt.Sprintf("processes that use locks, with %d clients of %d goroutines each", clientsOf, threadsOf))
	flag.StringVar(&o.out, "out", "bin/jepsen", "the `directory` in which each run makes one of its own")
	flag.StringVar(&o.program, "zamok", "", "the binary (default: it is built)")
	flag.StringVar(&o.only, "only", ".", "the kinds of faults: a `regexp`")
	flag.IntVar(&o.minOK, "min-ok", 1000, "the run is invalid if fewer operations succeed")
	flag.IntVar(&o.faults, "min-faults", 1, "the run is invalid if fewer faults happen")
	flag.BoolVar(&o.all, "every-kind", false, "the run is invalid if a kind of fault never happens, of those that do not take long")
	flag.BoolVar(&o.disks, "disks", false, "also faults of disks; needs root and /dev/fuse, without them the run says so and goes on")
	flag.IntVar(&o.minutes, "minutes", 0, "make one run after the other, with seeds that follow each other, until so much time is over (default: one run)")
	flag.StringVar(&o.log, "log-store", "bolt", "how the nodes keep their logs: bolt or wal")
	flag.IntVar(&o.tries, "tries", 1, "a run that is invalid proves nothing, as on a machine that is too busy: make so many at most until one is not")
	flag.StringVar(&o.net, "net", "proxy", "proxy: loopback, and a proxy before each port; netns: network namespaces, which need root")
	flag.Parse()
	if o.net == "netns" && presentSpaces() == nil {
		if err := o.within(); err != nil {
			fmt.Fprintln(os.Stderr, "jepsen:", err)
			os.Exit(1)
		}
		return
	}
	if o.seed == 0 {
		o.seed = rand.Uint64() >> 32
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok := o.rounds(ctx)
	stop()
	if !ok {
		os.Exit(1)
	}
}

// rounds makes runs until the time is over, and adds them up. False: one was not good.
func (o *options) rounds(ctx context.Context) (ok bool) {
	ok = true
	began, good, bad, operations, faults, changes := now(), 0, 0, 0, 0, 0
	for first := true; first || now()-began+o.lasts < time.Duration(o.minutes)*time.Minute && ctx.Err() == nil; first = false {
		s, err := o.run(ctx)
		for try := 1; err == nil && s.Verdict == report.Invalid && try < o.tries; try++ {
			fmt.Printf("this run is invalid, and counts for nothing; here is another\n")
			o.seed++
			s, err = o.run(ctx)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "jepsen: %v\nagain: %s\n", err, o.again())
		}
		if s != nil {
			operations, faults, changes = operations+s.Operations, faults+s.FaultCount, changes+s.LeaderChanges
		}
		if good++; err != nil || s.Verdict != report.Good {
			ok, good, bad = false, good-1, bad+1
		}
		o.seed++
	}
	fmt.Printf("%d runs were good and %d were not, in %v: %d operations, %d faults, %d changes of leader\n",
		good, bad, (now() - began).Round(time.Second), operations, faults, changes)
	return ok
}

// again is the command that makes the same choices.
func (o *options) again() string {
	again := fmt.Sprintf("go run ./jepsen/real -seed %d -for %v -nodes %d -programs %d -only '%s'", o.seed, o.lasts, o.nodes, o.programs, o.only)
	if o.disks {
		again += " -disks"
	}
	if o.log != "bolt" {
		again += " -log-store " + o.log
	}
	if o.net == "netns" {
		again += " -net netns"
	}
	return again
}

// lonely chooses the kinds of faults that can't be made beside others.
const lonely = "wipe node"

// chosen are the kinds of faults that the run is to have; with disks, also theirs.
func (o *options) chosen(disks bool) (all []kind, err error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, err
	}
	every := append(kinds(), slowKinds()...)
	if disks {
		every = append(every, diskKinds()...)
	}
	if o.nodes >= 5 {
		every = append(every, bigKinds()...)
	}
	if o.only == lonely {
		every = loneKinds()
	}
	for _, k := range presentSpaces().possible(every) {
		if only.MatchString(k.name) {
			all = append(all, k)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no kind of fault is called %q", o.only)
	}
	return all, nil
}

// run makes a cluster, strikes it, heals it, and judges what was recorded.
func (o *options) run(ctx context.Context) (*report.Summary, error) {
	c, err := o.prepare(ctx)
	if err != nil {
		return nil, err
	}
	kinds, err := o.chosen(c.disks.shelf != nil)
	if err != nil {
		return nil, err
	}
	plan := check.Plan{
		Name: fmt.Sprintf("%d nodes", o.nodes), Seed: o.seed, Begin: now(), Drain: drainMost, Checks: mustLook, MinOK: o.minOK,
	}
	if o.all {
		for _, k := range kinds {
			if !slow(k) {
				plan.Faults = append(plan.Faults, k.name)
			}
		}
	}
	err = c.strike(o, kinds, &plan)
	c.close()
	if err == nil && ctx.Err() != nil {
		err = errors.New("it was interrupted")
	}
	if end := c.record.close(); err == nil {
		err = end
	}
	h, problem := c.gather(plan)
	if problem != nil {
		return nil, errors.Join(err, problem)
	}
	if err != nil {
		c.say("%v", err)
	}
	return c.judge(o, h, err)
}

// prepare makes the run's directory and everything in it that needs no node.
func (o *options) prepare(ctx context.Context) (*cluster, error) {
	dir, err := filepath.Abs(filepath.Join(o.out, fmt.Sprintf("%s-%d", time.Now().UTC().Format("20060102-150405"), o.seed)))
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, program: o.program, logStore: o.log, seed: o.seed, net: 16<<8 + os.Getpid()%(64<<8), counted: map[string]float64{}}
	if err := errors.Join(os.MkdirAll(c.parts(), 0o755), os.MkdirAll(c.logs(), 0o755)); err != nil {
		return nil, err
	}
	if c.program == "" {
		c.program = filepath.Join(dir, "zamok")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", c.program, "zamok/cmd/zamok").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	if c.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if c.log, err = os.Create(filepath.Join(c.logs(), "run.log")); err != nil {
		return nil, err
	}
	if c.record, err = newRecord(filepath.Join(c.parts(), "run.jsonl")); err != nil {
		return nil, err
	}
	c.over, c.finish = context.WithCancel(ctx)
	c.fabric = newFabric(c.owner)
	c.fabric.spaces = presentSpaces()
	if c.resource, err = newResource(c.ip(addressOwn)+":"+resourcePort, c.record); err != nil {
		return nil, err
	}
	c.say("seed %d, in %s", o.seed, dir)
	if o.disks {
		return c, c.openDisks(ctx)
	}
	return c, nil
}

// strike is the run itself: load and faults, then healing, then the end of all calls.
func (c *cluster) strike(o *options, kinds []kind, plan *check.Plan) error {
	if err := c.begin(o.nodes); err != nil {
		return err
	}
	c.rest(false)
	audit := c.order("audit", "audit", addressAudit)
	var err error
	if c.auditor, err = start("audit", filepath.Join(c.logs(), "audit.log"), audit.env(), c.self); err != nil {
		return err
	}
	for until := now() + startsWithin; ; pause(c.over, officesEvery) {
		if _, err := os.Stat(watching(audit.Gaps)); err == nil {
			break
		}
		if now() > until || c.over.Err() != nil {
			return fmt.Errorf("the audit did not begin to watch within %v", startsWithin)
		}
	}
	for range o.programs {
		if err := c.addProgram().start(); err != nil {
			return err
		}
	}
	pause(c.over, 2*time.Second) // for the load to begin
	f, err := c.newFaults(kinds)
	if err != nil {
		return err
	}
	pause(c.over, o.lasts)
	for until := now() + o.most - o.lasts; now() < until && !f.enough(plan, o.faults) && pause(c.over, time.Second); {
	}
	err = f.end()
	plan.Healed = now()
	c.say("healed after %v; faults: %v", (plan.Healed - plan.Begin).Round(time.Millisecond), f.counts)
	err = errors.Join(err, c.end())
	c.settle()
	c.rest(true)
	plan.End = now()
	return err
}

// resting are the counts of a node that must not grow.
var resting = []string{"zamok_sessions", "zamok_waiters", `zamok_locks_held{mode="exclusive"}`}

// settleMost is how long what was left behind may take to end: the longest lease, and far more, for a busy machine.
const settleMost = 2 * time.Minute

// settle waits until no node counts anything any more.
func (c *cluster) settle() {
	for until := now() + settleMost; now() < until; {
		busy := false
		for _, n := range c.members() {
			counts, err := n.metrics(c.over)
			busy = busy || err != nil || counts["zamok_sessions"] > 0
		}
		if !busy || !pause(c.over, officesEvery) {
			return
		}
	}
}

// rest takes down what each node counts when nothing is asked of it.
func (c *cluster) rest(after bool) {
	for _, n := range c.members() {
		counts, err := n.metrics(c.over)
		if err != nil {
			c.say("%s does not tell its counts: %v", n.id, err)
			continue
		}
		r := check.Rest{Who: n.id, After: after, Counts: map[string]int64{}}
		for _, what := range resting {
			r.Counts[what] = int64(counts[what])
		}
		c.record.put(check.Record{Rest: &r})
	}
}
