package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
)

// faultKind is a kind of fault. inject makes one, lets it last and undoes it. It returns its target;
// "" = there was no occasion for it now.
type faultKind struct {
	name   string
	needs  requirement
	inject func(f *nemesis, t *injection) (target string)
}

// requirement restricts the runs in which a kind of fault is made.
type requirement int

const (
	nothing   requirement = iota
	long                  // it takes long, and is made by a worker of its own
	disks                 // disks that fail
	fiveNodes             // at least
	byName                // a run that asks for this kind only, since it needs a leader that stays; it takes long
)

func (k faultKind) isSlow() bool { return k.needs == long || k.needs == byName }

// possible reports whether a run can have a kind of fault.
func (k faultKind) possible(o *options, hasDisks bool) bool {
	switch k.needs {
	case disks:
		return hasDisks
	case fiveNodes:
		return o.nodes >= 5
	case byName:
		return o.kindPattern == k.name
	}
	return true
}

// injection is one fault's: what it may take, and what it must give back.
type injection struct {
	*rand.Rand
	ctx      context.Context // ends when the faults are to end
	duration time.Duration
	nodes    []*node
	programs []*clientProgram
}

// nemesis injects faults: two workers take kind after kind in shuffled order, so that faults come alone and in
// pairs, and each kind comes once before any comes again. A third worker makes those that take long.
type nemesis struct {
	*cluster
	client  *client.Client // an operator's
	workers sync.WaitGroup
	stop    context.CancelFunc

	mu     sync.Mutex // guards what follows, the order of kinds, and which targets are in use
	counts map[string]int
}

// shuffledKinds yields kinds in random order, and in another one when all were made.
type shuffledKinds struct {
	kinds        []faultKind
	random       *rand.Rand
	remaining    []faultKind
	skippedInRow int // how many in a row had no occasion, and were put back
}

// next takes the first of what is left. If all of that waits for an occasion, as those do that need every node
// while one is kept away, the others come again before it. The caller has the mutex of the faults.
func (d *shuffledKinds) next() faultKind {
	if d.skippedInRow >= len(d.remaining) && len(d.remaining) < len(d.kinds) {
		fresh := slices.Clone(d.kinds)
		d.random.Shuffle(len(fresh), func(i, j int) { fresh[i], fresh[j] = fresh[j], fresh[i] })
		d.remaining, d.skippedInRow = append(fresh, d.remaining...), 0
	}
	k := d.remaining[0]
	d.remaining = d.remaining[1:]
	return k
}

// putBack takes a kind back that had no occasion.
func (d *shuffledKinds) putBack(k faultKind) {
	d.remaining = append(d.remaining, k)
	d.skippedInRow++
}

const (
	// faultDurationMin and faultDurationMax bound faults, faultPauseMax the time between two of one worker.
	faultDurationMin = 300 * time.Millisecond
	faultDurationMax = 3 * time.Second
	faultPauseMax    = 3 * time.Second
	// notApplicablePause is how long a worker waits when its fault found no target.
	notApplicablePause = 200 * time.Millisecond
	nodeReadyTimeout   = 15 * time.Second
)

func (c *cluster) newNemesis(kinds []faultKind) (*nemesis, error) {
	operator, err := c.operator()
	if err != nil {
		return nil, err
	}
	f := &nemesis{cluster: c, client: operator, counts: map[string]int{}}
	ctx, stop := context.WithCancel(c.done)
	f.stop = stop
	random := rand.New(rand.NewPCG(c.seed, 1))
	fastKinds, slowKinds := &shuffledKinds{random: random}, &shuffledKinds{random: random}
	for _, k := range kinds {
		d := fastKinds
		if k.isSlow() {
			d = slowKinds
		}
		d.kinds = append(d.kinds, k)
	}
	for _, d := range []*shuffledKinds{fastKinds, fastKinds, slowKinds} {
		own := rand.New(rand.NewPCG(c.seed, random.Uint64()))
		if len(d.kinds) == 0 {
			continue
		}
		f.workers.Go(func() {
			for ctx.Err() == nil {
				f.injectNext(ctx, d, own)
			}
		})
	}
	return f, nil
}

// stopAndHeal lets what is under way be undone, and waits for it.
func (f *nemesis) stopAndHeal() error {
	f.stop()
	f.workers.Wait()
	return f.client.Close()
}

// provesEnough reports whether everything has happened without which the run is invalid: the least number of faults,
// the kinds that were asked for, and the least number of successful calls.
func (f *nemesis) provesEnough(plan *check.Plan, least int) bool {
	f.mu.Lock()
	happened := 0
	for _, n := range f.counts {
		happened += n
	}
	missing := slices.ContainsFunc(plan.Faults, func(kind string) bool { return f.counts[kind] == 0 })
	f.mu.Unlock()
	return happened >= least && !missing && countSucceeded(f.historyDir()) >= plan.OKMin
}

// injectNext injects a fault of the next kind.
func (f *nemesis) injectNext(ctx context.Context, d *shuffledKinds, random *rand.Rand) {
	f.mu.Lock()
	k := d.next()
	f.mu.Unlock()
	t := &injection{Rand: random, ctx: ctx}
	t.duration = faultDurationMin + t.upTo(faultDurationMax-faultDurationMin)
	from := monotonicNow()
	target := k.inject(f, t)
	f.releaseTargets(t)
	if target == "" {
		f.mu.Lock()
		d.putBack(k)
		f.mu.Unlock()
		sleepContext(ctx, notApplicablePause)
		return
	}
	f.record.put(check.Record{Fault: &check.Fault{Kind: k.name, Target: target, From: from, To: monotonicNow()}})
	f.logf("%s: %s, for %v", k.name, target, (monotonicNow() - from).Round(time.Millisecond))
	f.mu.Lock()
	f.counts[k.name]++
	d.skippedInRow = 0
	f.mu.Unlock()
	sleepContext(ctx, t.upTo(faultPauseMax))
}

// acquire takes up to most nodes that run and that no other fault works on, in random order.
func (f *nemesis) acquire(t *injection, most int, fits func(leads bool) bool) (all []*node) {
	leader, members := f.leader(), f.members()
	f.mu.Lock()
	defer f.mu.Unlock()
	t.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	for _, n := range members {
		if !n.inUse && n.runningProcess() != nil && fits(n == leader) && len(all) < most {
			n.inUse = true
			all = append(all, n)
		}
	}
	t.nodes = append(t.nodes, all...)
	return all
}

// A selection takes the target nodes of a fault; none = there is no occasion for it now.
type selection func(f *nemesis, t *injection) []*node

func leaderNode(f *nemesis, t *injection) []*node {
	return f.acquire(t, 1, func(leads bool) bool { return leads })
}

func followerNode(f *nemesis, t *injection) []*node {
	return f.acquire(t, 1, func(leads bool) bool { return !leads })
}

func anyNode(f *nemesis, t *injection) []*node {
	return f.acquire(t, 1, func(bool) bool { return true })
}

func majority(f *nemesis, t *injection) []*node { return f.acquireMany(t, len(f.members())/2+1) }

func everyNode(f *nemesis, t *injection) []*node { return f.acquireMany(t, len(f.members())) }

// acquireMany takes many nodes, or all that run if they are fewer. It returns none if another fault works on one of
// them, or if that is a single node.
func (f *nemesis) acquireMany(t *injection, many int) []*node {
	running := 0
	for _, n := range f.members() {
		if n.runningProcess() != nil {
			running++
		}
	}
	all := f.acquire(t, many, func(bool) bool { return true })
	if len(all) < min(many, running) || len(all) <= 1 {
		return nil
	}
	return all
}

// acquirePrograms takes many programs that no other fault works on, or none.
func (f *nemesis) acquirePrograms(t *injection, many int) (all []*clientProgram) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range t.Perm(len(f.programs)) {
		if p := f.programs[i]; !p.busy && len(all) < many {
			all = append(all, p)
		}
	}
	if len(all) < many {
		return nil
	}
	for _, p := range all {
		p.busy = true
	}
	t.programs = append(t.programs, all...)
	return all
}

func (f *nemesis) releaseTargets(t *injection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range t.nodes {
		n.inUse = false
	}
	for _, p := range t.programs {
		p.busy = false
	}
}

// awaitAnswers waits until nodes answer, beside the proxies.
func (f *nemesis) awaitAnswers(nodes ...*node) {
	for _, n := range nodes {
		err := errors.New("it was not asked")
		for until := time.Now().Add(nodeReadyTimeout); err != nil && time.Now().Before(until); {
			if _, err = n.metrics(f.done); err != nil && !sleepContext(f.done, 50*time.Millisecond) {
				return
			}
		}
		if err != nil {
			f.logf("%s does not answer within %v: %v", n.id, nodeReadyTimeout, err)
		}
	}
}

// restart starts nodes again and waits until they answer.
func (f *nemesis) restart(nodes ...*node) {
	for _, n := range nodes {
		if err := n.start(); err != nil {
			f.logf("%v", err)
		}
	}
	f.awaitAnswers(nodes...)
}

// others are the members but one.
func (f *nemesis) others(n *node) (all []*node) {
	for _, m := range f.members() {
		if m != n {
			all = append(all, m)
		}
	}
	return all
}

// linksBetween are the links from some to others.
func linksBetween(from, to []string) (all []linkID) {
	for _, a := range from {
		for _, b := range to {
			all = append(all, linkID{a, b})
		}
	}
	return all
}

func bothDirections(pairs []linkID) (all []linkID) {
	for _, p := range pairs {
		all = append(all, p, p.reverse())
	}
	return all
}

func nodeIDs(nodes []*node) (all []string) {
	for _, n := range nodes {
		all = append(all, n.id)
	}
	return all
}
