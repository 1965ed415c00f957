package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zamok/client"
	"zamok/client/admin"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
)

// faultKind is a kind of fault. inject injects one, lets it last and undoes it. It returns the
// target; "" = the fault was not possible now.
type faultKind struct {
	name   string
	needs  requirement
	inject func(t *injection) (target string)
}

// requirement restricts the runs in which a kind of fault is injected.
type requirement int

const (
	nothing     requirement = iota
	takesLong               // it takes long, and is injected by a worker of its own
	disks                   // disks that fail
	throttling              // control groups
	fiveNodes               // at least
	onlyIfNamed             // a run of only this kind: it needs a leader that stays, and takes long
)

func (k faultKind) isSlow() bool { return k.needs == takesLong || k.needs == onlyIfNamed }

// possible reports whether a run that lacks something can have a kind of fault.
func (k faultKind) possible(o *options, lacks []requirement) bool {
	return !slices.Contains(lacks, k.needs) && (k.needs != fiveNodes || o.nodes >= 5) &&
		(k.needs != onlyIfNamed || o.kindPattern == k.name)
}

// nemesis injects faults: two workers take kind after kind in shuffled order, so that faults come
// alone and in pairs, and each kind comes once before any comes again. A third worker makes those
// that take long.
type nemesis struct {
	*cluster
	client  *client.Client // an operator's
	workers sync.WaitGroup
	stop    context.CancelFunc

	mu     sync.Mutex // guards what follows, and the order of kinds
	counts map[string]int
	inUse  map[any]bool // nodes and programs that a fault has taken
}

// injection is one fault. It returns at its end what it has taken.
type injection struct {
	*nemesis
	*rand.Rand
	ctx      context.Context // ends when the faults are to end
	duration time.Duration
	taken    []any
}

// wait waits for d and returns true, or returns false if the faults are to end before.
func (t *injection) wait(d time.Duration) bool { return workload.Sleep(t.ctx, d) }

func (t *injection) upTo(most time.Duration) time.Duration {
	return workload.UpTo(t.Rand, most)
}

// shuffledKinds yields all kinds in random order, then all of them again in another order.
type shuffledKinds struct {
	kinds        []faultKind
	random       *rand.Rand
	remaining    []faultKind
	skippedInRow int // how many in a row were not possible, and were put back
}

// next takes the first of the remaining kinds. If none of them is possible, as those that need
// every node while one is kept away, the other kinds come again before them. The caller holds
// nemesis.mu.
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

// putBack takes a kind back that was not possible.
func (d *shuffledKinds) putBack(k faultKind) {
	d.remaining = append(d.remaining, k)
	d.skippedInRow++
}

const (
	// faultDurationMin and faultDurationMax bound faults, faultIntervalMax the time between two
	// faults of one worker.
	faultDurationMin = 300 * time.Millisecond
	faultDurationMax = 3 * time.Second
	faultIntervalMax = 3 * time.Second
	// noTargetDelay is how long a worker waits when its fault found no target.
	noTargetDelay    = 200 * time.Millisecond
	nodeReadyTimeout = 15 * time.Second
)

func (c *cluster) newNemesis(kinds []faultKind) (*nemesis, error) {
	operator, err := client.New(
		client.Config{Endpoints: c.endpoints(), Dialer: dialFrom(c.ip(hostOfAudit)), Label: "run"})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(c.done)
	f := &nemesis{cluster: c, client: operator, stop: stop, counts: map[string]int{},
		inUse: map[any]bool{}}
	random := rand.New(rand.NewPCG(c.seed, 1))
	fast := &shuffledKinds{random: random,
		kinds: slices.DeleteFunc(slices.Clone(kinds), faultKind.isSlow)}
	slow := &shuffledKinds{random: random,
		kinds: slices.DeleteFunc(slices.Clone(kinds),
			func(k faultKind) bool { return !k.isSlow() })}
	for _, d := range []*shuffledKinds{fast, fast, slow} {
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

// provesEnough reports whether the run is valid already: it has enough faults, the required kinds,
// and enough successful calls.
func (f *nemesis) provesEnough(plan *check.Plan, least int) bool {
	f.mu.Lock()
	happened := 0
	for _, n := range f.counts {
		happened += n
	}
	missing := slices.ContainsFunc(plan.Faults,
		func(kind string) bool { return f.counts[kind] == 0 })
	f.mu.Unlock()
	return happened >= least && !missing && countSucceeded(f.historyDir()) >= plan.OKMin
}

// injectNext injects a fault of the next kind.
func (f *nemesis) injectNext(ctx context.Context, d *shuffledKinds, random *rand.Rand) {
	f.mu.Lock()
	k := d.next()
	f.mu.Unlock()
	t := &injection{nemesis: f, Rand: random, ctx: ctx}
	t.duration = faultDurationMin + t.upTo(faultDurationMax-faultDurationMin)
	delay, from := noTargetDelay, monotonicNow()
	target := k.inject(t)
	if target != "" {
		f.record.put(check.Record{
			Fault: &check.Fault{Kind: k.name, Target: target, From: from, To: monotonicNow()}})
		f.logf("%s: %s, for %v", k.name, target, (monotonicNow() - from).Round(time.Millisecond))
		delay = t.upTo(faultIntervalMax)
	}
	f.mu.Lock()
	for _, target := range t.taken {
		delete(f.inUse, target)
	}
	if target == "" {
		d.putBack(k)
	} else {
		f.counts[k.name]++
		d.skippedInRow = 0
	}
	f.mu.Unlock()
	t.wait(delay)
}

// take takes so many random targets that no other fault has taken; none if there are fewer.
func take[T any](t *injection, from []*T, many int) (all []*T) {
	t.nemesis.mu.Lock()
	defer t.nemesis.mu.Unlock()
	for _, i := range t.Perm(len(from)) {
		if target := from[i]; len(all) < many && !t.inUse[target] {
			t.inUse[target] = true
			t.taken = append(t.taken, target)
			all = append(all, target)
		}
	}
	if len(all) < many {
		return nil
	}
	return all
}

// running are the members that run and fulfill a condition.
func (t *injection) running(condition func(*node) bool) []*node {
	return slices.DeleteFunc(t.members(), func(n *node) bool {
		return n.runningProcess() == nil || !condition(n)
	})
}

// A selection takes the target nodes of a fault, of those that run; none = the fault is impossible
// now.
type selection func(t *injection) []*node

func leaderNode(t *injection) []*node {
	l := t.leader()
	return take(t, t.running(func(n *node) bool { return n == l }), 1)
}

func followerNode(t *injection) []*node {
	l := t.leader()
	return take(t, t.running(func(n *node) bool { return n != l }), 1)
}

func anyNode(t *injection) []*node {
	return take(t, t.running(func(*node) bool { return true }), 1)
}

func majority(t *injection) []*node { return t.takeMany(len(t.members())/2 + 1) }

func everyNode(t *injection) []*node { return t.takeMany(len(t.members())) }

// takeMany takes so many nodes, or all that run if they are fewer, but at least two.
func (t *injection) takeMany(many int) []*node {
	running := t.running(func(*node) bool { return true })
	if many = min(many, len(running)); many <= 1 {
		return nil
	}
	return take(t, running, many)
}

// awaitResponses waits until nodes respond, not through the proxies.
func (f *nemesis) awaitResponses(nodes ...*node) {
	for _, n := range nodes {
		var err error
		responds := func() bool { _, err = n.metrics(f.done); return err == nil }
		if !await(f.done, nodeReadyTimeout, 50*time.Millisecond, responds) {
			f.logf("%s does not respond within %v: %v", n.id, nodeReadyTimeout, err)
		}
	}
}

// restart starts nodes again and waits until they respond.
func (f *nemesis) restart(nodes ...*node) {
	for _, n := range nodes {
		if err := n.start(); err != nil {
			f.logf("%v", err)
		}
	}
	f.awaitResponses(nodes...)
}

// others are the members except one.
func (f *nemesis) others(except *node) []*node {
	return slices.DeleteFunc(f.members(), func(n *node) bool { return n == except })
}

func nodeIDs(nodes []*node) (all []string) {
	for _, n := range nodes {
		all = append(all, n.id)
	}
	return all
}

// Faults that take long have a worker of their own, so that the others continue.

const (
	// trailingEntries is how many entries nodes keep before a snapshot: a node further behind needs
	// the snapshot.
	trailingEntries = 4096
	// laggingMax is how long a follower may be kept down for that.
	laggingMax     = 110 * time.Second
	replaceTimeout = 60 * time.Second
	// wipeTimeout is how long a wiped node may take to get its place back: the lost directory has
	// to be silent for 30 s of one leadership first.
	wipeTimeout = 2 * time.Minute
)

// forceSnapshotInstall keeps a follower down until it needs a snapshot, and kills the leader when
// the follower comes back. The others must be a majority meanwhile, so every node must have a vote.
func (t *injection) forceSnapshotInstall() string {
	nodes := followerNode(t)
	if len(nodes) == 0 || !t.allVoters() {
		return ""
	}
	n := nodes[0]
	n.kill()
	at := t.appliedIndex()
	await(t.ctx, laggingMax, time.Second,
		func() bool { return t.oldestSnapshotIndex(n) >= at+trailingEntries })
	installed := func() int {
		text, _ := os.ReadFile(n.log) // it is there since the node was started first
		return bytes.Count(text, []byte("Installed remote snapshot"))
	}
	before := installed()
	t.restart(n)
	if l := leaderNode(t); len(l) > 0 {
		l[0].kill()
		t.wait(t.duration)
		t.restart(l...)
	}
	if !await(t.done, nodeReadyTimeout, 200*time.Millisecond,
		func() bool { return installed() > before }) {
		t.logf("%s was kept down and needed no snapshot", n.id)
		return ""
	}
	return n.id
}

// appliedIndex is the greatest index that a node has applied.
func (t *injection) appliedIndex() (index uint64) {
	for _, n := range t.members() {
		if counts, err := n.metrics(t.done); err == nil {
			index = max(index, uint64(counts["zamok_applied_index"]))
		}
	}
	return index
}

// oldestSnapshotIndex is the least index of the newest snapshots of all nodes except one. The logs
// of those nodes begin trailingEntries before it at the earliest.
func (t *injection) oldestSnapshotIndex(except *node) uint64 {
	least := ^uint64(0)
	for _, n := range t.others(except) {
		// its error is about the pattern
		names, _ := filepath.Glob(filepath.Join(n.data, "snapshots", "*-*-*"))
		newest := uint64(0)
		for _, name := range names {
			index, err := strconv.ParseUint(strings.Split(filepath.Base(name), "-")[1], 10, 64)
			if err == nil && !strings.HasSuffix(name, ".tmp") {
				newest = max(newest, index)
			}
		}
		least = min(least, newest)
	}
	return least
}

// replaceNode kills a node whose disk is lost, and adds another under a new id in its place.
func (t *injection) replaceNode() string {
	nodes := anyNode(t)
	if len(nodes) == 0 || !t.allVoters() {
		return ""
	}
	old := nodes[0]
	old.kill()
	t.wait(t.duration)
	ctx, cancel := context.WithTimeout(t.done, replaceTimeout)
	defer cancel()
	gone := func(m *admin.Member) bool { return m == nil }
	remove := func() error { return admin.New(t.client).Remove(ctx, old.id) }
	if !t.awaitMember(ctx, old, gone, remove) {
		t.logf("%s could not be removed within %v", old.id, replaceTimeout)
		t.restart(old)
		return ""
	}
	old.removed.Store(true)
	fresh, err := t.addNode("--join", t.others(old)[0].listed())
	if err != nil {
		t.logf("%v", err)
		return ""
	}
	voter := func(m *admin.Member) bool { return m != nil && m.Voter }
	if !t.awaitMember(ctx, fresh, voter, fresh.start) {
		t.logf("%s did not become a voter within %v", fresh.id, replaceTimeout)
	}
	return old.id + " by " + fresh.id
}

// wipeNode deletes the data of a node and starts it again with the same flags: it takes its own
// place again. The cluster accepts a new directory under an old name once in ten minutes.
func (t *injection) wipeNode() string {
	nodes := anyNode(t)
	if len(nodes) == 0 || nodes[0].dataWiped || !t.allVoters() {
		return ""
	}
	n := nodes[0]
	all, _, err := admin.New(t.client).Members(t.ctx)
	before := memberOf(all, n.id)
	if err != nil || before == nil || before.Incarnation == "" {
		return ""
	}
	n.kill()
	n.dataWiped = true
	if err := os.RemoveAll(n.data); err != nil {
		t.logf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.done, wipeTimeout)
	defer cancel()
	back := func(m *admin.Member) bool {
		return m != nil && m.Voter && m.Incarnation != "" && m.Incarnation != before.Incarnation
	}
	if !t.awaitMember(ctx, n, back, n.start) {
		t.logf("%s did not take its own place again within %v", n.id, wipeTimeout)
		return ""
	}
	return n.id
}

// allVoters reports whether every node has a vote, so that the others can do without one of them.
func (t *injection) allVoters() bool {
	ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
	defer cancel()
	all, _, err := admin.New(t.client).Members(ctx)
	return err == nil && !slices.ContainsFunc(all, func(m admin.Member) bool { return !m.Voter })
}

// memberOf finds a member by its id; nil if there is none.
func memberOf(all []admin.Member, id string) *admin.Member {
	if i := slices.IndexFunc(all, func(m admin.Member) bool { return m.ID == id }); i >= 0 {
		return &all[i]
	}
	return nil
}

// awaitMember calls do again and again until a node's membership satisfies a condition. The
// condition gets nil if the node is no member.
func (t *injection) awaitMember(ctx context.Context, n *node, satisfied func(*admin.Member) bool,
	do func() error) bool {
	return await(ctx, max(replaceTimeout, wipeTimeout), 500*time.Millisecond, func() bool {
		if all, _, err := admin.New(t.client).Members(ctx); err == nil &&
			satisfied(memberOf(all, n.id)) {
			return true
		}
		if err := do(); err != nil {
			t.logf("%v", err)
		}
		return false
	})
}
