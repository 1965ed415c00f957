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

// FaultKind is a kind of fault.
type FaultKind string

// The kinds.
const (
	CutOneWay   FaultKind = "cut one way"
	CutBothWays FaultKind = "cut both ways"
	Isolate     FaultKind = "isolate"
	SlowLink    FaultKind = "slow link"
	KillLeader  FaultKind = "kill the leader"
	KillOne     FaultKind = "kill one"
	KillAll     FaultKind = "kill all"
	StopOne     FaultKind = "orderly stop"
	StallDisk   FaultKind = "stall a disk"
	HangDisk    FaultKind = "hang the leader's disk"
	Transfer    FaultKind = "transfer"
	Freeze      FaultKind = "freeze an epoch"
	ClockLags   FaultKind = "clock stands and lags"

	LosePower    FaultKind = "lose power"
	LosePowerAll FaultKind = "lose power everywhere"
	PowerInWrite FaultKind = "lose power in a write" // to the log, or at the end of a snapshot
	PowerInVote  FaultKind = "lose power in a vote"
	FillDisk     FaultKind = "fill a disk"
)

// AllFaults are all kinds.
func AllFaults() []FaultKind {
	return []FaultKind{
		CutOneWay, CutBothWays, Isolate, SlowLink, KillLeader, KillOne, KillAll, StopOne,
		StallDisk, HangDisk, Transfer, Freeze, ClockLags,
		LosePower, LosePowerAll, PowerInWrite, PowerInVote, FillDisk, BreakDisk,
	}
}

const (
	// A fault lasts between faultDurationMin and faultDurationMax, short ones as often as long ones.
	faultDurationMin = 100 * time.Millisecond
	faultDurationMax = 6 * time.Second
	// pauseMax is the longest pause between two faults.
	pauseMax = 12 * time.Second
	// hangDuration is longer than a leader's watchdog waits.
	hangDuration = 8 * time.Second
	// writeTimeMax is what a write to a disk takes at most while there are faults.
	writeTimeMax = 5 * time.Millisecond
	// restartPollInterval is how often ended processes are looked for.
	restartPollInterval = 100 * time.Millisecond
)

// Nemesis makes random faults, several at a time, until it is stopped.
type Nemesis struct {
	sim        *Sim
	kinds      []FaultKind
	extraKinds map[FaultKind]func(context.Context, *rand.Rand, time.Duration) bool // kinds beside those of all runs
	stop       context.CancelFunc
	work       sync.WaitGroup

	mu              sync.Mutex // guards what follows
	counts          map[FaultKind]int
	leftAloneUntil  map[*Node]time.Time // until when a node that ended is left alone
	stalled         time.Duration       // how long clocks stood, all together
	unexpectedExits map[string]int      // what processes ended themselves for
	log             []check.Fault       // what was done; who looks after clients says to whom
}

// StartNemesis begins to make faults of these kinds, at most abreast of them at a time.
func (s *Sim) StartNemesis(parallel int, kinds ...FaultKind) *Nemesis {
	return s.startNemesis(parallel, nil, kinds)
}

func (s *Sim) startNemesis(parallel int, more map[FaultKind]func(context.Context, *rand.Rand, time.Duration) bool, kinds []FaultKind) *Nemesis {
	ctx, stop := context.WithCancel(context.Background())
	if s.config.WriteTimeMax == 0 { // or no write would be under way when something happens
		s.config.WriteTimeMax = writeTimeMax
		for _, n := range s.Nodes() {
			n.Disk.SetWriteTime(writeTimeMax)
		}
	}
	kinds = slices.Compact(slices.Sorted(slices.Values(kinds)))
	f := &Nemesis{
		sim: s, kinds: kinds, extraKinds: more, stop: stop,
		counts: map[FaultKind]int{}, leftAloneUntil: map[*Node]time.Time{}, unexpectedExits: map[string]int{},
	}
	for i := range parallel {
		random := s.Random(fmt.Sprintf("faults %d", i))
		f.work.Go(func() { f.injectLoop(ctx, random) })
	}
	f.work.Go(func() { f.restartLoop(ctx) })
	s.cleanup(func() {
		stop()
		f.work.Wait()
	})
	return f
}

// Run lets faults happen for so long, and then as long again at most until each kind has happened: chance, and
// want of an occasion, may leave one out.
func (f *Nemesis) Run(lasts time.Duration) {
	time.Sleep(lasts)
	for until := time.Now().Add(lasts); time.Now().Before(until); time.Sleep(time.Second) {
		if !slices.Contains(slices.Collect(maps.Values(f.Counts())), 0) {
			return
		}
	}
}

// Stop ends the faults, heals everything and starts what does not run.
func (f *Nemesis) Stop() {
	f.sim.Helper()
	f.stop()
	f.work.Wait()
	f.sim.Network.HealAll()
	for _, n := range f.sim.Members() {
		n.Disk.Resume()
		n.Disk.FailWrites(nil)
		n.Disk.SetFree(math.MaxUint64)
		n.Clock.Thaw()
		n.Clock.ResumeBehind()
		if n.Running() == nil {
			n.awaitEnded()
			n.Restart()
		}
	}
	f.sim.Trace.Fault("all healed")
}

// Counts is how often each kind happened.
func (f *Nemesis) Counts() map[FaultKind]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[FaultKind]int{}
	for _, k := range f.kinds {
		counts[k] = f.counts[k]
	}
	return counts
}

// ClockStallTime is for how long clocks stood, all nodes together: so much cluster time may be cut off.
func (f *Nemesis) ClockStallTime() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stalled
}

// injectLoop makes one fault after the other. It draws kinds as from a deck of cards, so that none is left
// out for long; one without an occasion goes back under the deck.
func (f *Nemesis) injectLoop(ctx context.Context, random *rand.Rand) {
	var deck []FaultKind
	for sleepContext(ctx, time.Duration(random.Int64N(int64(pauseMax)))) == nil {
		if len(deck) == 0 {
			deck = slices.Clone(f.kinds)
			random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		kind := deck[0]
		deck = deck[1:]
		lasts := min(faultDurationMax, faultDurationMin<<random.IntN(7)+time.Duration(random.Int64N(int64(faultDurationMin))))
		from := f.sim.historyTime()
		if !f.inject(ctx, random, kind, lasts) {
			deck = append(deck, kind)
			continue
		}
		f.mu.Lock()
		f.counts[kind]++
		f.log = append(f.log, check.Fault{Kind: string(kind), From: from, To: f.sim.historyTime()})
		f.mu.Unlock()
	}
}

// inject makes one fault. False: there was no occasion for it.
func (f *Nemesis) inject(ctx context.Context, random *rand.Rand, kind FaultKind, lasts time.Duration) bool {
	if do := f.extraKinds[kind]; do != nil {
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
		return f.endProcesses(kind, lasts, a)
	case KillAll, LosePowerAll:
		return f.endProcesses(kind, lasts, nodes...)
	case StallDisk, Freeze, ClockLags:
		return f.onMachine(ctx, kind, a, lasts)
	case FillDisk:
		return f.fill(ctx, random, a, lasts)
	case BreakDisk:
		if a.Running() == nil {
			return false
		}
		f.sim.Trace.Fault("%s: %s", kind, a.ID)
		a.Disk.FailWrites(errDisk)
		return true
	case PowerInWrite:
		ops := []diskOp{opAppend, opDelete, opSnapshot}
		return f.losePowerDuring(ctx, random, kind, ops[random.IntN(len(ops))], lasts, a)
	}
	leading := f.sim.Leaders()
	if len(leading) == 0 {
		return false
	}
	switch kind {
	case KillLeader:
		return f.endProcesses(kind, lasts, leading[0])
	case PowerInVote:
		return f.endProcesses(kind, lasts, leading[0]) && f.losePowerDuring(ctx, random, kind, opVote, hangDuration, f.sim.Others(leading[0])...)
	case HangDisk:
		return f.onMachine(ctx, kind, leading[0], hangDuration)
	case Transfer:
		return f.transfer(leading[0])
	}
	panic("no such fault: " + kind)
}

func (f *Nemesis) onLinks(ctx context.Context, kind FaultKind, a, b *Node, lasts time.Duration) {
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
		net.SetDelay(a.Host, b.Host, 20*time.Millisecond, 100*time.Millisecond)
		_ = sleepContext(ctx, lasts)
		net.SetDelay(a.Host, b.Host, delayMin, delaySpread)
		return
	}
	for _, c := range cut {
		net.Cut(c[0], c[1])
	}
	_ = sleepContext(ctx, lasts)
	for _, c := range cut {
		net.Heal(c[0], c[1])
	}
	f.sim.Trace.Fault("%s: healed", kind)
}

// endProcesses ends processes; the nurse starts them again after a while.
func (f *Nemesis) endProcesses(kind FaultKind, lasts time.Duration, nodes ...*Node) bool {
	any := false
	for _, n := range nodes {
		if n.Running() == nil {
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

// losePowerDuring has the first of these nodes that begins such a write lose its power in the middle of it.
func (f *Nemesis) losePowerDuring(ctx context.Context, random *rand.Rand, kind FaultKind, op diskOp, within time.Duration, nodes ...*Node) bool {
	struck := make(chan *Node, len(nodes))
	for _, n := range nodes {
		n.Disk.hookNextWrite(op, 2*writeTimeMax, func() { struck <- n })
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	defer func() {
		for _, n := range nodes {
			n.Disk.clearHook()
		}
	}()
	select {
	case n := <-struck:
		f.sim.Trace.Fault("%s: %s, %s", kind, n.ID, op)
		f.leaveAlone(n, faultDurationMax/2)
		_ = sleepContext(ctx, time.Duration(random.Int64N(int64(2*writeTimeMax))))
		n.LosePower()
		return true
	case <-limited.Done():
		return false
	}
}

// fill leaves too little room on a disk for entries, or so little that the node warns.
func (f *Nemesis) fill(ctx context.Context, random *rand.Rand, n *Node, lasts time.Duration) bool {
	room := uint64(random.IntN(2)) * (store.DefaultReservedSpace + store.DefaultLowSpace) / 2
	f.sim.Trace.Fault("%s: %s, %d bytes are left, for %v", FillDisk, n.ID, room, lasts)
	n.Disk.SetFree(room)
	_ = sleepContext(ctx, lasts)
	n.Disk.SetFree(math.MaxUint64)
	return true
}

func (f *Nemesis) leaveAlone(n *Node, lasts time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leftAloneUntil[n] = time.Now().Add(lasts)
}

func (f *Nemesis) onMachine(ctx context.Context, kind FaultKind, n *Node, lasts time.Duration) bool {
	if n.Running() == nil {
		return false
	}
	f.sim.Trace.Fault("%s: %s, for %v", kind, n.ID, lasts)
	switch kind {
	case StallDisk, HangDisk:
		n.Disk.Stall()
		_ = sleepContext(ctx, lasts)
		n.Disk.Resume()
		return true
	}
	begin, end := n.Clock.Stop, n.Clock.ResumeBehind
	if kind == Freeze {
		begin, end = n.Clock.Freeze, n.Clock.Thaw
	}
	begin()
	_ = sleepContext(ctx, lasts)
	stood := end()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stalled += stood
	return true
}

func (f *Nemesis) transfer(n *Node) bool {
	up := n.Running()
	if up == nil {
		return false
	}
	f.sim.Trace.Fault("%s: from %s", Transfer, n.ID)
	limited, cancel := context.WithTimeout(context.Background(), faultDurationMax)
	defer cancel()
	err := up.Transfer(limited, "")
	f.sim.Trace.Note(n.ID, "transfer: %v", err)
	return err == nil
}

// restartLoop starts processes again, those that ended themselves too.
func (f *Nemesis) restartLoop(ctx context.Context) {
	for sleepContext(ctx, restartPollInterval) == nil {
		for _, n := range f.sim.Members() {
			f.mu.Lock()
			wait := time.Now().Before(f.leftAloneUntil[n])
			f.mu.Unlock()
			if wait || !n.processEnded() {
				continue
			}
			if err := n.Fatal(); err != nil {
				f.sim.Trace.Fault("%s ended itself: %v", n.ID, err)
				f.mu.Lock()
				f.unexpectedExits[n.ID]++
				f.mu.Unlock()
				if !errors.Is(err, raftnode.ErrStuck) && !n.Disk.repair() {
					f.sim.Audit.Violation("%s ended itself: %v", n.ID, err)
				}
			}
			n.Disk.FailWrites(nil) // whoever was killed before it met its broken disk gets another one as well
			n.StartProcess()
		}
	}
}

// UnexpectedExits is how many processes ended themselves.
func (f *Nemesis) UnexpectedExits() (times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.unexpectedExits {
		times += n
	}
	return times
}
