package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"zamok/client"
	"zamok/jepsen/check"
)

// kind is a kind of fault. do makes one, lasts about as long as it says where that is free, and undoes it. It
// returns whom it struck; "" = there was no occasion for it now.
type kind struct {
	name string
	do   func(f *faults, t *turn) (target string)
}

// turn is one fault's: what it may take, and what it must give back.
type turn struct {
	*rand.Rand
	ctx   context.Context // ends when the faults are to end
	lasts time.Duration
	taken []*node
	progs []*program
}

// faults strikes: two workers take kind after kind from a shuffled deck, so that faults come alone and in
// pairs, and each kind comes once before any comes again. A third makes those that take long.
type faults struct {
	*cluster
	client *client.Client // an operator's
	tally  tally
	work   sync.WaitGroup
	stop   context.CancelFunc

	mu     sync.Mutex // guards what follows, the decks, and who is busy
	counts map[string]int
}

// deck is kinds in an order that a random number says, another one when it is used up; without, in their own.
type deck struct {
	kinds  []kind
	random *rand.Rand // nil = as they are
	left   []kind
	vain   int // so many in a row had no occasion, and were put back
}

// next takes the first of what is left. If all of that waits for an occasion, as those do that need every node
// while one is kept away, the others come again before it. The caller has the mutex of the faults.
func (d *deck) next() kind {
	if d.vain >= len(d.left) && len(d.left) < len(d.kinds) {
		fresh := slices.Clone(d.kinds)
		if d.random != nil {
			d.random.Shuffle(len(fresh), func(i, j int) { fresh[i], fresh[j] = fresh[j], fresh[i] })
		}
		d.left, d.vain = append(fresh, d.left...), 0
	}
	k := d.left[0]
	d.left = d.left[1:]
	return k
}

// back takes a kind back that had no occasion.
func (d *deck) back(k kind) {
	d.left = append(d.left, k)
	d.vain++
}

const (
	// lastsLeast and lastsMost bound faults, restMost the time between two of one worker.
	lastsLeast = 300 * time.Millisecond
	lastsMost  = 3 * time.Second
	restMost   = 3 * time.Second
	// noOccasion is how long a worker waits when its fault found nothing to strike.
	noOccasion = 200 * time.Millisecond
	readyMost  = 15 * time.Second
)

func (c *cluster) newFaults(kinds []kind) (*faults, error) {
	operator, err := c.operator()
	if err != nil {
		return nil, err
	}
	f := &faults{cluster: c, client: operator, counts: map[string]int{}}
	ctx, stop := context.WithCancel(c.over)
	f.stop = stop
	random := rand.New(rand.NewPCG(c.seed, 1))
	quick, long := &deck{random: random}, &deck{}
	for _, k := range kinds {
		d := quick
		if slow(k) {
			d = long
		}
		d.kinds = append(d.kinds, k)
	}
	for _, d := range []*deck{quick, quick, long} {
		own := rand.New(rand.NewPCG(c.seed, random.Uint64()))
		if len(d.kinds) == 0 {
			continue
		}
		f.work.Go(func() {
			for ctx.Err() == nil {
				f.one(ctx, d, own)
			}
		})
	}
	return f, nil
}

// end lets what is under way be undone, and waits for it.
func (f *faults) end() error {
	f.stop()
	f.work.Wait()
	return f.client.Close()
}

// enough says that everything has happened without which the run is invalid: so many faults, those kinds that were
// asked for, and so many calls that succeeded.
func (f *faults) enough(plan *check.Plan, least int) bool {
	f.mu.Lock()
	happened := 0
	for _, n := range f.counts {
		happened += n
	}
	missing := slices.ContainsFunc(plan.Faults, func(kind string) bool { return f.counts[kind] == 0 })
	f.mu.Unlock()
	return happened >= least && !missing && f.tally.succeeded(f.parts()) >= plan.MinOK
}

// one takes a kind from the deck and makes it happen.
func (f *faults) one(ctx context.Context, d *deck, random *rand.Rand) {
	f.mu.Lock()
	k := d.next()
	f.mu.Unlock()
	t := &turn{Rand: random, ctx: ctx, lasts: lastsLeast + time.Duration(random.Int64N(int64(lastsMost-lastsLeast)))}
	from := now()
	target := k.do(f, t)
	f.giveBack(t)
	if target == "" {
		f.mu.Lock()
		d.back(k)
		f.mu.Unlock()
		pause(ctx, noOccasion)
		return
	}
	f.record.put(check.Record{Fault: &check.Fault{Kind: k.name, Target: target, From: from, To: now()}})
	f.say("%s: %s, for %v", k.name, target, (now() - from).Round(time.Millisecond))
	f.mu.Lock()
	f.counts[k.name]++
	d.vain = 0
	f.mu.Unlock()
	pause(ctx, time.Duration(random.Int64N(int64(restMost))))
}

// take gives nodes that run and that no other fault works on, the leader or others, at most so many.
func (f *faults) take(t *turn, leads bool, most int) (all []*node) {
	leader, members := f.leader(), f.members()
	f.mu.Lock()
	defer f.mu.Unlock()
	t.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	for _, n := range members {
		if !n.busy && n.up() != nil && (n == leader) == leads && len(all) < most {
			n.busy = true
			all = append(all, n)
		}
	}
	t.taken = append(t.taken, all...)
	return all
}

// takeAny gives so many nodes that run, or none. As all of them count those that run: who is down is down.
func (f *faults) takeAny(t *turn, many int) []*node {
	run := 0
	for _, n := range f.members() {
		if n.up() != nil {
			run++
		}
	}
	want := min(many, run)
	all := append(f.take(t, true, 1), f.take(t, false, many)...)
	if len(all) < want || want == 1 && many > 1 {
		return nil
	}
	many = want
	t.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:many]
}

// takeProgram gives a program that runs and that no other fault works on.
func (f *faults) takeProgram(t *turn) *program {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range t.Perm(len(f.programs)) {
		if p := f.programs[i]; !p.busy {
			p.busy = true
			t.progs = append(t.progs, p)
			return p
		}
	}
	return nil
}

func (f *faults) giveBack(t *turn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range t.taken {
		n.busy = false
	}
	for _, p := range t.progs {
		p.busy = false
	}
}

// ready waits until a node answers, beside the fabric.
func (f *faults) ready(n *node) bool {
	for until := time.Now().Add(readyMost); time.Now().Before(until); {
		if _, err := n.metrics(f.over); err == nil {
			return true
		}
		if !pause(f.over, 50*time.Millisecond) {
			return false
		}
	}
	return false
}

// names are those of nodes, for people.
func names(nodes []*node) (all string) {
	for i, n := range nodes {
		if i > 0 {
			all += ","
		}
		all += n.id
	}
	return all
}

// restart starts nodes again and waits until they answer.
func (f *faults) restart(nodes ...*node) {
	for _, n := range nodes {
		if err := n.start(); err != nil {
			f.say("%v", err)
		}
	}
	for _, n := range nodes {
		if !f.ready(n) {
			f.say("%s does not answer %v after its start", n.id, readyMost)
		}
	}
}

// others are the members but one.
func (f *faults) others(n *node) (all []*node) {
	for _, m := range f.members() {
		if m != n {
			all = append(all, m)
		}
	}
	return all
}

// between are the links from some to others.
func between(from, to []string) (all []pair) {
	for _, a := range from {
		for _, b := range to {
			all = append(all, pair{a, b})
		}
	}
	return all
}

func both(pairs []pair) (all []pair) {
	for _, p := range pairs {
		all = append(all, p, p.back())
	}
	return all
}

func ids(nodes []*node) (all []string) {
	for _, n := range nodes {
		all = append(all, n.id)
	}
	return all
}

// present are the names of the programs' present lives, as the fabric knows them.
func (f *faults) present() (all []string) {
	for _, p := range f.programs {
		p.mu.Lock()
		all = append(all, fmt.Sprintf("%s-%d", p.name, p.lives))
		p.mu.Unlock()
	}
	return all
}
