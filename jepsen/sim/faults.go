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

	"zamok/jepsen/check"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

// Fault is a kind of fault.
type Fault string

// The kinds.
const (
	CutOneWay   Fault = "cut one way"
	CutBothWays Fault = "cut both ways"
	Isolate     Fault = "isolate"
	SlowLink    Fault = "slow link"
	KillLeader  Fault = "kill the leader"
	KillOne     Fault = "kill one"
	KillAll     Fault = "kill all"
	StopOne     Fault = "orderly stop"
	StallDisk   Fault = "stall a disk"
	HangDisk    Fault = "hang the leader's disk"
	Transfer    Fault = "transfer"
	Freeze      Fault = "freeze an epoch"
	ClockLags   Fault = "clock stands and lags"

	LosePower    Fault = "lose power"
	LosePowerAll Fault = "lose power everywhere"
	PowerInWrite Fault = "lose power in a write" // to the log, or at the end of a snapshot
	PowerInVote  Fault = "lose power in a vote"
	FillDisk     Fault = "fill a disk"
)

// AllFaults are all kinds.
func AllFaults() []Fault {
	return []Fault{
		CutOneWay, CutBothWays, Isolate, SlowLink, KillLeader, KillOne, KillAll, StopOne,
		StallDisk, HangDisk, Transfer, Freeze, ClockLags,
		LosePower, LosePowerAll, PowerInWrite, PowerInVote, FillDisk, BreakDisk,
	}
}

const (
	// A fault lasts between faultLeast and faultMax, short ones as often as long ones.
	faultLeast = 100 * time.Millisecond
	faultMax   = 6 * time.Second
	// pauseMax is the longest pause between two faults.
	pauseMax = 12 * time.Second
	// hangFor is longer than a leader's watchdog waits.
	hangFor = 8 * time.Second
	// writeTakes is what a write to a disk takes at most while there are faults.
	writeTakes = 5 * time.Millisecond
	// nurseEvery is how often ended processes are looked for.
	nurseEvery = 100 * time.Millisecond
)

// Faults makes random faults, several at a time, until it is stopped.
type Faults struct {
	sim   *Sim
	kinds []Fault
	more  map[Fault]func(context.Context, *rand.Rand, time.Duration) bool // kinds beside those of all runs
	stop  context.CancelFunc
	work  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	counts  map[Fault]int
	down    map[*Node]time.Time // until when a node that ended is left alone
	stalled time.Duration       // how long clocks stood, all together
	ended   map[string]int      // what processes ended themselves for
	log     []check.Fault       // what was done; who looks after clients says to whom
}

// Faults begins to make faults of these kinds, at most abreast of them at a time.
func (s *Sim) Faults(abreast int, kinds ...Fault) *Faults { return s.faults(abreast, nil, kinds) }

func (s *Sim) faults(abreast int, more map[Fault]func(context.Context, *rand.Rand, time.Duration) bool, kinds []Fault) *Faults {
	ctx, stop := context.WithCancel(context.Background())
	if s.config.WriteTakes == 0 { // or no write would be under way when something happens
		s.config.WriteTakes = writeTakes
		for _, n := range s.Nodes() {
			n.Disk.Takes(writeTakes)
		}
	}
	kinds = slices.Compact(slices.Sorted(slices.Values(kinds)))
	f := &Faults{
		sim: s, kinds: kinds, more: more, stop: stop,
		counts: map[Fault]int{}, down: map[*Node]time.Time{}, ended: map[string]int{},
	}
	for i := range abreast {
		random := s.Random(fmt.Sprintf("faults %d", i))
		f.work.Go(func() { f.run(ctx, random) })
	}
	f.work.Go(func() { f.nurse(ctx) })
	s.atEnd(func() {
		stop()
		f.work.Wait()
	})
	return f
}

// Rage lets faults happen for so long, and then as long again at most until each kind has happened: chance, and
// want of an occasion, may leave one out.
func (f *Faults) Rage(lasts time.Duration) {
	time.Sleep(lasts)
	for until := time.Now().Add(lasts); time.Now().Before(until); time.Sleep(time.Second) {
		if !slices.Contains(slices.Collect(maps.Values(f.Counts())), 0) {
			return
		}
	}
}

// Stop ends the faults, heals everything and starts what does not run.
func (f *Faults) Stop() {
	f.sim.Helper()
	f.stop()
	f.work.Wait()
	f.sim.Network.HealAll()
	for _, n := range f.sim.Members() {
		n.Disk.Resume()
		n.Disk.Break(nil)
		n.Disk.Fill(math.MaxUint64)
		n.Clock.Thaw()
		n.Clock.Resume()
		if n.Up() == nil {
			n.waitEnded()
			n.Restart()
		}
	}
	f.sim.Trace.Fault("all healed")
}

// Counts is how often each kind happened.
func (f *Faults) Counts() map[Fault]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[Fault]int{}
	for _, k := range f.kinds {
		counts[k] = f.counts[k]
	}
	return counts
}

// ClocksStood is for how long clocks stood, all nodes together: so much cluster time may be cut off.
func (f *Faults) ClocksStood() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stalled
}

// run makes one fault after the other. It draws kinds as from a deck of cards, so that none is left
// out for long; one without an occasion goes back under the deck.
func (f *Faults) run(ctx context.Context, random *rand.Rand) {
	var deck []Fault
	for pauseFor(ctx, time.Duration(random.Int64N(int64(pauseMax)))) == nil {
		if len(deck) == 0 {
			deck = slices.Clone(f.kinds)
			random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		kind := deck[0]
		deck = deck[1:]
		lasts := min(faultMax, faultLeast<<random.IntN(7)+time.Duration(random.Int64N(int64(faultLeast))))
		from := f.sim.moment()
		if !f.one(ctx, random, kind, lasts) {
			deck = append(deck, kind)
			continue
		}
		f.mu.Lock()
		f.counts[kind]++
		f.log = append(f.log, check.Fault{Kind: string(kind), From: from, To: f.sim.moment()})
		f.mu.Unlock()
	}
}

// one makes one fault. False: there was no occasion for it.
func (f *Faults) one(ctx context.Context, random *rand.Rand, kind Fault, lasts time.Duration) bool {
	if do := f.more[kind]; do != nil {
		return do(ctx, random, lasts)
	}
	nodes := f.sim.Members()
	a := nodes[random.IntN(len(nodes))]
	b := f.sim.Others(a)[random.IntN(len(nodes)-1)]
	switch kind {
	case CutOneWay, CutBothWays, Isolate, SlowLink:
		f.onLinks(ctx, kind, a, b, lasts)
		return true
	case KillOne, StopOne, LosePower:
		return f.end(kind, lasts, a)
	case KillAll, LosePowerAll:
		return f.end(kind, lasts, nodes...)
	case StallDisk, Freeze, ClockLags:
		return f.onMachine(ctx, kind, a, lasts)
	case FillDisk:
		return f.fill(ctx, random, a, lasts)
	case BreakDisk:
		if a.Up() == nil {
			return false
		}
		f.sim.Trace.Fault("%s: %s", kind, a.ID)
		a.Disk.Break(errDisk)
		return true
	case PowerInWrite:
		ops := []diskOp{opAppend, opDelete, opSnapshot}
		return f.powerIn(ctx, random, kind, ops[random.IntN(len(ops))], lasts, a)
	}
	leading := f.sim.Leading()
	if len(leading) == 0 {
		return false
	}
	switch kind {
	case KillLeader:
		return f.end(kind, lasts, leading[0])
	case PowerInVote:
		return f.end(kind, lasts, leading[0]) && f.powerIn(ctx, random, kind, opVote, hangFor, f.sim.Others(leading[0])...)
	case HangDisk:
		return f.onMachine(ctx, kind, leading[0], hangFor)
	case Transfer:
		return f.transfer(leading[0])
	}
	panic("no such fault: " + kind)
}

func (f *Faults) onLinks(ctx context.Context, kind Fault, a, b *Node, lasts time.Duration) {
	net := f.sim.Network
	f.sim.Trace.Fault("%s: %s, %s, for %v", kind, a.Host, b.Host, lasts)
	cut := [][2]string{{a.Host, b.Host}}
	switch kind {
	case CutBothWays:
		cut = append(cut, [2]string{b.Host, a.Host})
	case Isolate:
		for _, n := range f.sim.Others(a) {
			cut = append(cut, [2]string{a.Host, n.Host}, [2]string{n.Host, a.Host})
		}
	case SlowLink:
		net.Slow(a.Host, b.Host, 20*time.Millisecond, 100*time.Millisecond)
		_ = pauseFor(ctx, lasts)
		net.Slow(a.Host, b.Host, delayLeast, delaySpread)
		return
	}
	for _, c := range cut {
		net.Cut(c[0], c[1])
	}
	_ = pauseFor(ctx, lasts)
	for _, c := range cut {
		net.Heal(c[0], c[1])
	}
	f.sim.Trace.Fault("%s: healed", kind)
}

// end ends processes; the nurse starts them again after a while.
func (f *Faults) end(kind Fault, lasts time.Duration, nodes ...*Node) bool {
	any := false
	for _, n := range nodes {
		if n.Up() == nil {
			continue
		}
		any = true
		f.sim.Trace.Fault("%s: %s, for %v", kind, n.ID, lasts)
		f.leaveAlone(n, lasts)
		switch kind { // all at one moment, but for the orderly end
		case StopOne:
			n.Close()
		case LosePower, LosePowerAll:
			f.work.Go(n.LosePower)
		default:
			f.work.Go(n.Kill)
		}
	}
	return any
}

// powerIn has the first of these nodes that begins such a write lose its power in the middle of it.
func (f *Faults) powerIn(ctx context.Context, random *rand.Rand, kind Fault, op diskOp, within time.Duration, nodes ...*Node) bool {
	struck := make(chan *Node, len(nodes))
	for _, n := range nodes {
		n.Disk.atNext(op, 2*writeTakes, func() { struck <- n })
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	defer func() {
		for _, n := range nodes {
			n.Disk.unset()
		}
	}()
	select {
	case n := <-struck:
		f.sim.Trace.Fault("%s: %s, %s", kind, n.ID, op)
		f.leaveAlone(n, faultMax/2)
		_ = pauseFor(ctx, time.Duration(random.Int64N(int64(2*writeTakes))))
		n.LosePower()
		return true
	case <-limited.Done():
		return false
	}
}

// fill leaves too little room on a disk for entries, or so little that the node warns.
func (f *Faults) fill(ctx context.Context, random *rand.Rand, n *Node, lasts time.Duration) bool {
	room := uint64(random.IntN(2)) * (store.DefaultReservedSpace + store.DefaultLowSpace) / 2
	f.sim.Trace.Fault("%s: %s, %d bytes are left, for %v", FillDisk, n.ID, room, lasts)
	n.Disk.Fill(room)
	_ = pauseFor(ctx, lasts)
	n.Disk.Fill(math.MaxUint64)
	return true
}

func (f *Faults) leaveAlone(n *Node, lasts time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down[n] = time.Now().Add(lasts)
}

func (f *Faults) onMachine(ctx context.Context, kind Fault, n *Node, lasts time.Duration) bool {
	if n.Up() == nil {
		return false
	}
	f.sim.Trace.Fault("%s: %s, for %v", kind, n.ID, lasts)
	switch kind {
	case StallDisk, HangDisk:
		n.Disk.Stall()
		_ = pauseFor(ctx, lasts)
		n.Disk.Resume()
		return true
	}
	begin, end := n.Clock.Stop, n.Clock.Resume
	if kind == Freeze {
		begin, end = n.Clock.Freeze, n.Clock.Thaw
	}
	begin()
	_ = pauseFor(ctx, lasts)
	stood := end()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stalled += stood
	return true
}

func (f *Faults) transfer(n *Node) bool {
	up := n.Up()
	if up == nil {
		return false
	}
	f.sim.Trace.Fault("%s: from %s", Transfer, n.ID)
	limited, cancel := context.WithTimeout(context.Background(), faultMax)
	defer cancel()
	err := up.Transfer(limited, "")
	f.sim.Trace.Note(n.ID, "transfer: %v", err)
	return err == nil
}

// nurse starts processes again, those that ended themselves too.
func (f *Faults) nurse(ctx context.Context) {
	for pauseFor(ctx, nurseEvery) == nil {
		for _, n := range f.sim.Members() {
			f.mu.Lock()
			wait := time.Now().Before(f.down[n])
			f.mu.Unlock()
			if wait || !n.hasEnded() {
				continue
			}
			if err := n.Fatal(); err != nil {
				f.sim.Trace.Fault("%s ended itself: %v", n.ID, err)
				f.mu.Lock()
				f.ended[n.ID]++
				f.mu.Unlock()
				if !errors.Is(err, raftnode.ErrStuck) && !n.Disk.mended() {
					f.sim.Audit.Breach("%s ended itself: %v", n.ID, err)
				}
			}
			n.Disk.Break(nil) // whoever was killed before it met its broken disk gets another one as well
			n.Begin()
		}
	}
}

// EndedThemselves is how many processes ended themselves.
func (f *Faults) EndedThemselves() (times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.ended {
		times += n
	}
	return times
}
