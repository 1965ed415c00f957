package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"zamok/clock"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

// fault is a kind of fault: a row of the tables below.
type fault struct {
	kind   string
	inject func(*injection) bool // false: the fault was not possible
}

const pauseClient = "pause a client"

const (
	// A fault lasts between faultDurationMin and faultDurationMax, short ones as often as long
	// ones.
	faultDurationMin = 100 * time.Millisecond
	faultDurationMax = 6 * time.Second
	// faultIntervalMax is the longest time between two faults of one worker.
	faultIntervalMax = 12 * time.Second
	// hangDuration is longer than a leader's watchdog waits.
	hangDuration = 8 * time.Second
	// endHangingAfter is how long the disk of a leader hangs before the leader is killed.
	endHangingAfter = time.Second
	// beyondLease is added to half of the pauses and cuts of programs, to outlast most leases.
	beyondLease = 4 * time.Second
	// flapMax is the longest time for which a flapping link is cut, and for which it is not.
	flapMax = 300 * time.Millisecond
	// writeTimeMax is what a write to a disk takes at most while there are faults.
	writeTimeMax = 5 * time.Millisecond
	// restartPollInterval is how often the nemesis checks for processes that have ended.
	restartPollInterval = 100 * time.Millisecond
)

var errDisk = errors.New("input/output error")

// injection is one fault: its kind, its duration, and its possible targets.
type injection struct {
	*Nemesis
	*rand.Rand
	ctx    context.Context
	kind   string
	lasts  time.Duration
	a, b   *Node        // two members
	leader *Node        // nil = none leads
	host   *programHost // of a program
}

// nodeFaults are the faults of nodes and of the links between them, and the death of a program.
var nodeFaults = []fault{
	{"kill a client", func(i *injection) bool {
		if i.host.running() == nil {
			return false
		}
		i.trace("%s", i.host.host)
		return i.during(i.lasts, i.host.kill, func() { i.load.startProgram(i.host) })
	}},
	{"cut one way", func(i *injection) bool { return i.cut(route{i.a.Host, i.b.Host}) }},
	{"cut both ways", func(i *injection) bool {
		return i.cut(route{i.a.Host, i.b.Host}, route{i.b.Host, i.a.Host})
	}},
	{"isolate", func(i *injection) bool { return i.cut(i.sim.routes(i.a.Host)...) }},
	{"slow link", func(i *injection) bool {
		return i.slow(20*time.Millisecond, 100*time.Millisecond, route{i.a.Host, i.b.Host})
	}},
	{"kill the leader", func(i *injection) bool {
		return i.leader != nil && i.end((*Node).Kill, i.leader)
	}},
	{"kill a node", func(i *injection) bool { return i.end((*Node).Kill, i.a) }},
	{"kill all", func(i *injection) bool { return i.end((*Node).Kill, i.sim.Members()...) }},
	{"stop a node", func(i *injection) bool { return i.end((*Node).Close, i.a) }},
	{"power failure", func(i *injection) bool { return i.end((*Node).LosePower, i.a) }},
	{"power failure of all nodes",
		func(i *injection) bool { return i.end((*Node).LosePower, i.sim.Members()...) }},
	// to the log, or at the end of a snapshot
	{"power failure during a write", func(i *injection) bool {
		ops := []diskOp{opAppend, opDelete, opSnapshot}
		return i.losePowerDuring(ops[i.IntN(len(ops))], i.lasts, i.a)
	}},
	{"power failure during a vote", func(i *injection) bool {
		return i.leader != nil && i.end((*Node).Kill, i.leader) &&
			i.losePowerDuring(opVote, hangDuration, i.sim.Others(i.leader)...)
	}},
	{"damage a log tail", func(i *injection) bool { return i.cutTail() }},
	{"damage a log tail, power failure of the others", func(i *injection) bool {
		return i.cutTail(i.sim.Others(i.a)...)
	}},
	// with entries that are not written
	{"kill a leader whose disk hangs", (*injection).endHangingLeader},
	{"stall a disk", func(i *injection) bool {
		return i.stop(i.a, i.lasts, i.a.Disk.Stall, i.a.Disk.Resume)
	}},
	{"hang the leader's disk", func(i *injection) bool {
		return i.leader != nil &&
			i.stop(i.leader, hangDuration, i.leader.Disk.Stall, i.leader.Disk.Resume)
	}},
	{"block a clock", func(i *injection) bool {
		return i.stop(i.a, i.lasts, i.a.Clock.Freeze, i.a.Clock.Thaw)
	}},
	{"stop a clock, which then lags", func(i *injection) bool {
		// A node that holds a lock for a connection is a client itself: its clock must not be slow.
		defer i.excuseHolds()()
		return i.stop(i.a, i.lasts, i.a.Clock.Stop, i.a.Clock.ResumeBehind)
	}},
	{"bend a clock", func(i *injection) bool { // slow at first, then fast enough to catch up
		i.trace("%s", i.a.ID)
		from := i.sim.historyTime()
		i.during(i.lasts, func() { i.a.Clock.Bend(-bendMax) }, func() { i.a.Clock.Bend(bendMax) })
		to := i.sim.historyTime()
		i.during(i.lasts, func() {}, func() { i.a.Clock.Bend(0) })
		i.sim.record.put(check.Record{
			Stall: &check.Stall{Reason: i.kind, From: from, To: to,
				LostTime: (to - from) / clock.BendDivisor}})
		return true
	}},
	// too little space for entries, or so little that the node warns
	{"fill a disk", func(i *injection) bool {
		room := uint64(i.IntN(2)) * (store.DefaultReservedSpace + store.DefaultLowSpace) / 2
		i.trace("%s, %d bytes are left", i.a.ID, room)
		return i.during(i.lasts, func() { i.a.Disk.SetFree(room) },
			func() { i.a.Disk.SetFree(math.MaxUint64) })
	}},
	{"break a disk", func(i *injection) bool {
		if i.a.Running() == nil {
			return false
		}
		i.trace("%s", i.a.ID)
		i.a.Disk.FailWrites(errDisk)
		return true
	}},
	{"transfer", func(i *injection) bool {
		if i.leader == nil || i.leader.Running() == nil {
			return false
		}
		i.trace("from %s", i.leader.ID)
		err := i.leader.Running().Transfer(i.sim.Within(faultDurationMax), "")
		i.sim.Trace.Logf(i.leader.ID, "transfer: %v", err)
		return err == nil
	}},
}

// clientFaults are the other faults of programs, of the links between them and the nodes, and of
// membership.
var clientFaults = []fault{
	{pauseClient, func(i *injection) bool {
		p := i.host.running()
		if p == nil || !i.host.pause(p) {
			return false
		}
		from := i.sim.historyTime()
		i.trace("%s", p.label)
		i.wait(i.perhapsBeyondLease())
		i.host.resume(p)
		i.sim.record.put(check.Record{Fault: &check.Fault{
			Kind: pauseClient, Target: p.label, From: from, To: i.sim.historyTime(),
			ExcusesClient: true,
		}})
		return true
	}},
	{"bend a client's clock", func(i *injection) bool { // so that its lease lasts longer for it
		p := i.host.running()
		if p == nil {
			return false
		}
		i.lasts = i.perhapsBeyondLease()
		i.trace("%s", p.label)
		return i.during(i.lasts, func() { p.clock.Bend(-bendMax) }, func() { p.clock.Bend(0) })
	}},
	{"isolate a client", func(i *injection) bool {
		i.lasts = i.perhapsBeyondLease()
		return i.cut(i.sim.routes(i.host.host)...)
	}},
	{"slow links of a client", func(i *injection) bool {
		return i.slow(100*time.Millisecond, 400*time.Millisecond, i.sim.routes(i.host.host)...)
	}},
	{"isolate programs that use HTTP", func(i *injection) bool {
		defer i.excuseHolds()() // events arrive late, and count from when they were sent
		var routes []route
		for _, host := range append(slices.Clone(webHosts), reservationHost) {
			routes = append(routes, i.sim.routes(host)...)
		}
		return i.cut(routes...)
	}},
	{"break connections of HTTP", func(i *injection) bool {
		i.trace("")
		for _, w := range i.load.web {
			w.stack.closeConns()
		}
		return len(i.load.web) > 0
	}},
	{"flapping link", func(i *injection) bool {
		link := route{i.a.Host, i.host.host}
		if i.IntN(2) == 0 {
			link.to = i.b.Host
		}
		i.trace("%v", link)
		for until := time.Now().Add(i.lasts); time.Now().Before(until) && i.ctx.Err() == nil; {
			i.sim.Network.Cut(link)
			i.wait(workload.UpTo(i.Rand, flapMax))
			i.sim.Network.Heal(link)
			i.wait(workload.UpTo(i.Rand, flapMax))
		}
		return true
	}},
	{"all clients reconnect", func(i *injection) bool {
		i.trace("")
		for _, h := range i.load.hosts {
			if p := h.running(); p != nil {
				p.stack.closeConns()
			}
		}
		return true
	}},
	{"replace a node", (*injection).replaceNode},
}

// excuseHolds excuses the program that holds locks by connections, until end is called, and for a
// ttl after that.
func (i *injection) excuseHolds() (end func()) {
	from := i.sim.historyTime()
	return func() {
		i.sim.record.put(check.Record{Fault: &check.Fault{
			Kind: i.kind, Target: webHoldHost, From: from, To: i.sim.historyTime() + webTTL,
			ExcusesClient: true,
		}})
	}
}

func (i *injection) wait(d time.Duration) { workload.Sleep(i.ctx, d) }

func (i *injection) perhapsBeyondLease() time.Duration {
	return i.lasts + time.Duration(i.IntN(2))*beyondLease
}

// during calls begin, waits, and calls end.
func (i *injection) during(lasts time.Duration, begin, end func()) bool {
	begin()
	i.wait(lasts)
	end()
	return true
}

func (i *injection) trace(format string, args ...any) {
	i.sim.Trace.Fault("%s: %s, for %v", i.kind, fmt.Sprintf(format, args...), i.lasts)
}

func (i *injection) cut(routes ...route) bool {
	i.trace("%v", routes)
	return i.during(i.lasts, func() { i.sim.Network.Cut(routes...) },
		func() { i.sim.Network.Heal(routes...) })
}

func (i *injection) slow(delay, spread time.Duration, routes ...route) bool {
	i.trace("%v", routes)
	set := i.sim.Network.SetDelay
	return i.during(i.lasts, func() { set(delay, spread, routes...) },
		func() { set(delayMin, delaySpread, routes...) })
}

// end ends processes at the same moment; restartLoop starts them again later.
func (i *injection) end(how func(*Node), nodes ...*Node) bool {
	ended := false
	for _, n := range nodes {
		if n.Running() == nil {
			continue
		}
		ended = true
		i.trace("%s", n.ID)
		i.delayRestart(n, i.lasts)
		i.work.Go(func() { how(n) })
	}
	return ended
}

// stop stops a node's clock or disk for a while. If the node leads, cluster time does not pass
// meanwhile.
func (i *injection) stop(n *Node, lasts time.Duration, begin, end func()) bool {
	if n.Running() == nil {
		return false
	}
	i.trace("%s", n.ID)
	from := i.sim.historyTime()
	i.during(lasts, begin, end)
	to := i.sim.historyTime()
	i.sim.record.put(check.Record{
		Stall: &check.Stall{Reason: i.kind, From: from, To: to, LostTime: to - from}})
	return true
}

// endHangingLeader kills a leader whose disk has just begun to hang. The leader loses the entries
// that have gathered, but the followers may have them.
func (i *injection) endHangingLeader() bool {
	how := []func(*Node){(*Node).Kill, (*Node).LosePower}[i.IntN(2)]
	ended := false
	return i.leader != nil && i.stop(i.leader, endHangingAfter, i.leader.Disk.Stall, func() {
		if ended = i.end(how, i.leader); !ended {
			i.leader.Disk.Resume()
		}
	}) && ended
}

func (i *injection) losePowerDuring(op diskOp, within time.Duration, nodes ...*Node) bool {
	bounded, cancel := context.WithTimeout(i.ctx, within)
	defer cancel()
	n := losePowerDuring(bounded, op, 2*writeTimeMax, workload.UpTo(i.Rand, 2*writeTimeMax),
		nodes...)
	if n != nil {
		i.delayRestart(n, faultDurationMax/2)
		i.trace("%s, %s", n.ID, op)
	}
	return n != nil
}

// Nemesis injects random faults, several at a time, until it is stopped.
type Nemesis struct {
	sim    *Sim
	load   *Load
	faults []fault
	cancel context.CancelFunc
	work   sync.WaitGroup

	replacement replacement

	mu              sync.Mutex          // guards what follows
	counts          map[string]int      // of faults, by kind
	restartAfter    map[*Node]time.Time // when a node may be restarted
	unexpectedExits int                 // processes that exited by themselves
	// no fault begins after this, until a node is replaced; 0: none is
	calmFrom time.Time
}

// StartNemesis begins to inject faults of these kinds, up to so many at the same time.
func (s *Sim) StartNemesis(parallel int, load *Load, faults []fault) *Nemesis {
	ctx, stop := context.WithCancel(context.Background())
	if s.config.WriteTimeMax == 0 { // else no write would be in flight when a fault happens
		s.config.WriteTimeMax = writeTimeMax
		for _, n := range s.Nodes() {
			n.Disk.writeTimeMax.set(writeTimeMax)
		}
	}
	f := &Nemesis{
		sim: s, load: load, faults: faults, cancel: stop,
		counts: map[string]int{}, restartAfter: map[*Node]time.Time{},
	}
	f.replacement.rejoined = map[string]bool{}
	for _, row := range faults {
		f.counts[row.kind] = 0
	}
	for i := range parallel {
		random := s.Random(fmt.Sprintf("faults %d", i))
		f.work.Go(func() { f.injectLoop(ctx, random) })
	}
	f.work.Go(func() { f.restartLoop(ctx) })
	s.Cleanup(func() {
		stop()
		f.work.Wait()
	})
	return f
}

// Run injects faults for so long, and then for up to as long again until each kind has happened.
func (f *Nemesis) Run(lasts time.Duration) {
	time.Sleep(lasts)
	for until := time.Now().Add(lasts); time.Now().Before(until); time.Sleep(time.Second) {
		if !slices.Contains(slices.Collect(maps.Values(f.Counts())), 0) {
			return
		}
	}
}

// Stop ends and heals all faults, starts the nodes that do not run, and finishes a replacement.
func (f *Nemesis) Stop() {
	f.sim.Helper()
	f.cancel()
	f.work.Wait()
	f.sim.Network.HealAll()
	for _, n := range f.sim.Members() {
		n.Disk.Resume()
		n.Disk.FailWrites(nil)
		n.Disk.SetFree(math.MaxUint64)
		n.Disk.SlowDown(0)
		n.Clock.Thaw()
		n.Clock.ResumeBehind()
		if n.Running() == nil {
			n.Kill() // waits for its end
			n.Start()
		}
	}
	f.sim.Trace.Fault("all healed")
	if f.replacement.old != nil {
		f.finishReplacement(f.sim.Within(drainMax))
	}
}

// Counts is how often each kind happened.
func (f *Nemesis) Counts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// injectLoop injects one fault after the other. It draws kinds as from a deck of cards, so that
// each comes soon; a kind that is not possible goes back under the deck.
func (f *Nemesis) injectLoop(ctx context.Context, random *rand.Rand) {
	var deck []fault
	for workload.Sleep(ctx, workload.UpTo(random, faultIntervalMax)) {
		if f.calm() {
			continue
		}
		if len(deck) == 0 {
			deck = slices.Clone(f.faults)
			random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		next := deck[0]
		deck = deck[1:]
		from := f.sim.historyTime()
		if !f.inject(ctx, random, next) {
			deck = append(deck, next)
			continue
		}
		f.mu.Lock()
		f.counts[next.kind]++
		f.mu.Unlock()
		f.sim.record.put(check.Record{
			Fault: &check.Fault{Kind: next.kind, From: from, To: f.sim.historyTime()}})
	}
}

// inject injects one fault, and reports whether that was possible.
func (f *Nemesis) inject(ctx context.Context, random *rand.Rand, what fault) bool {
	i := &injection{Nemesis: f, Rand: random, ctx: ctx, kind: what.kind}
	i.lasts = faultDurationMin<<random.IntN(7) + workload.UpTo(random, faultDurationMin)
	i.lasts = min(i.lasts, faultDurationMax)
	nodes := f.sim.Members()
	i.a = nodes[random.IntN(len(nodes))]
	i.b = f.sim.Others(i.a)[random.IntN(len(nodes)-1)]
	if leading := f.sim.Leaders(); len(leading) > 0 {
		i.leader = leading[0]
	}
	i.host = f.load.hosts[random.IntN(len(f.load.hosts))]
	return what.inject(i)
}

func (f *Nemesis) delayRestart(n *Node, lasts time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restartAfter[n] = time.Now().Add(lasts)
}

// restartLoop starts processes again, also those that exited by themselves.
func (f *Nemesis) restartLoop(ctx context.Context) {
	for workload.Sleep(ctx, restartPollInterval) {
		for _, n := range f.sim.Members() {
			f.mu.Lock()
			wait := time.Now().Before(f.restartAfter[n])
			f.mu.Unlock()
			if wait || !n.processEnded() {
				continue
			}
			broken := n.Disk.FailWrites(nil) // even if the process ended before a write failed
			if err := n.Fatal(); err != nil {
				f.sim.Trace.Fault("%s exited by itself: %v", n.ID, err)
				f.mu.Lock()
				f.unexpectedExits++
				f.mu.Unlock()
				if !errors.Is(err, raftnode.ErrStuck) && broken == nil {
					f.sim.Audit.Violation("%s exited by itself: %v", n.ID, err)
				}
			}
			n.StartProcess()
		}
	}
}
