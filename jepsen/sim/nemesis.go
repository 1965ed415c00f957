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

	"zamok/client"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
	"zamok/raftnode"
	"zamok/raftnode/store"
)

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
	leftAloneUntil  map[*Node]time.Time // until when the nemesis does not restart a node
	unexpectedExits int                 // processes that ended themselves
}

// StartNemesis begins to inject faults of these kinds, so many in parallel at most.
func (s *Sim) StartNemesis(parallel int, load *Load, faults []fault) *Nemesis {
	ctx, stop := context.WithCancel(context.Background())
	if s.config.WriteTimeMax == 0 { // no write would be under way when a fault happens
		s.config.WriteTimeMax = writeTimeMax
		for _, n := range s.Nodes() {
			n.Disk.writeTimeMax.set(writeTimeMax)
		}
	}
	f := &Nemesis{
		sim: s, load: load, faults: faults, cancel: stop,
		counts: map[string]int{}, leftAloneUntil: map[*Node]time.Time{},
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
	s.cleanup(func() {
		stop()
		f.work.Wait()
	})
	return f
}

// Run lets faults happen for so long, and then for as long again at most until each kind has happened.
func (f *Nemesis) Run(lasts time.Duration) {
	time.Sleep(lasts)
	for until := time.Now().Add(lasts); time.Now().Before(until); time.Sleep(time.Second) {
		if !slices.Contains(slices.Collect(maps.Values(f.Counts())), 0) {
			return
		}
	}
}

// Stop ends the faults, heals everything, starts what does not run, and finishes a replacement.
func (f *Nemesis) Stop() {
	f.sim.Helper()
	f.cancel()
	f.work.Wait()
	f.sim.Network.HealAll()
	for _, n := range f.sim.Members() {
		n.Disk.Resume()
		n.Disk.FailWrites(nil)
		n.Disk.SetFree(math.MaxUint64)
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

// injectLoop injects one fault after the other. It draws kinds as from a deck of cards, so that none is left
// out for long; one without an occasion goes back under the deck.
func (f *Nemesis) injectLoop(ctx context.Context, random *rand.Rand) {
	var deck []fault
	for workload.Sleep(ctx, time.Duration(random.Int64N(int64(pauseMax)))) {
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
		f.sim.record.put(check.Record{Fault: &check.Fault{Kind: next.kind, From: from, To: f.sim.historyTime()}})
	}
}

// inject injects one fault. False: there was no occasion for it.
func (f *Nemesis) inject(ctx context.Context, random *rand.Rand, what fault) bool {
	i := &injection{Nemesis: f, Rand: random, ctx: ctx, kind: what.kind}
	i.lasts = faultDurationMin<<random.IntN(7) + time.Duration(random.Int64N(int64(faultDurationMin)))
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

func (f *Nemesis) leaveAlone(n *Node, lasts time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leftAloneUntil[n] = time.Now().Add(lasts)
}

// restartLoop starts processes again, also those that ended themselves.
func (f *Nemesis) restartLoop(ctx context.Context) {
	for workload.Sleep(ctx, restartPollInterval) {
		for _, n := range f.sim.Members() {
			f.mu.Lock()
			wait := time.Now().Before(f.leftAloneUntil[n])
			f.mu.Unlock()
			if wait || !n.processEnded() {
				continue
			}
			broken := n.Disk.FailWrites(nil) // also if the process ended before it noticed
			if err := n.Fatal(); err != nil {
				f.sim.Trace.Fault("%s ended itself: %v", n.ID, err)
				f.mu.Lock()
				f.unexpectedExits++
				f.mu.Unlock()
				if !errors.Is(err, raftnode.ErrStuck) && broken == nil {
					f.sim.Audit.Violation("%s ended itself: %v", n.ID, err)
				}
			}
			n.StartProcess()
		}
	}
}

// replacement is a node whose disk was lost, and the one that replaces it: under its name, or under a new one
// after the lost one was removed.
type replacement struct {
	mu       sync.Mutex // one at a time; guards what follows
	old, new *Node      // nil = none is under way
	serial   int
	rejoined map[string]bool // names that have come back: a cluster takes one back once in ten minutes
}

// replaceNode loses a node with its disk, and has the operator replace it. What faults prevent now is done
// after they have ended.
func (i *injection) replaceNode() bool {
	r := &i.replacement
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.old == nil {
		var cluster store.ID
		i.a.View(func(m *fsm.Machine) { cluster = store.ID(m.Cluster()) })
		if cluster == (store.ID{}) {
			return false // it is down, or has just started and has not read its log yet
		}
		id := i.a.ID
		if i.IntN(2) == 0 || r.rejoined[id] {
			r.serial++
			id = fmt.Sprintf("n%d", len(i.sim.InitialMembers())+r.serial)
		} else {
			r.rejoined[id] = true
		}
		r.old, r.new = i.a, i.sim.Replace(i.a, id, cluster)
		i.trace("%s by %s", r.old.ID, r.new.ID)
		r.old.Kill()
	}
	return i.finishReplacement(i.ctx)
}

// finishReplacement has the operator do what is left to do, until it is done or ctx ends.
func (f *Nemesis) finishReplacement(ctx context.Context) bool {
	r := &f.replacement
	for ; ctx.Err() == nil; workload.Sleep(ctx, 300*time.Millisecond) {
		op := f.load.operator.running()
		members, _, err := op.Members(ctx)
		isMember := slices.ContainsFunc(members, func(m client.Member) bool { return m.ID == r.old.ID })
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		switch {
		case err != nil:
		case r.new.ID != r.old.ID && isMember:
			err = op.Remove(limited, r.old.ID)
		case !r.new.everStarted():
			r.new.StartProcess()
		case !r.new.isVoter():
			err = op.Join(limited, r.new.ID, r.new.Address())
		default:
			f.sim.Trace.Note("op", "%s replaced %s", r.new.ID, r.old.ID)
			r.old, r.new = nil, nil
			cancel()
			return true
		}
		cancel()
		if err != nil {
			f.sim.Trace.Note("op", "%v", err)
		}
	}
	return false
}

// isVoter reports whether the node runs and knows that it has a vote.
func (n *Node) isVoter() bool {
	up := n.Running()
	return up != nil && up.Voter()
}
