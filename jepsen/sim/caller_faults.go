package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"zamok/client"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/raftnode/store"
)

// Faults beside those of all runs: of clients, of what is between them and the nodes, and of membership.
const (
	KillClient  Fault = "kill a client"
	PauseClient Fault = "pause a client"
	CutClient   Fault = "cut a client off"
	SlowClient  Fault = "slow links of a client"
	FlapLink    Fault = "flapping link"
	Reconnects  Fault = "all clients reconnect"
	BreakDisk   Fault = "break a disk"
	ReplaceNode Fault = "replace a node"
)

// leaseAway is added to some pauses and cuts of clients, so that they are longer than most leases.
const leaseAway = 4 * time.Second

// moreFaults are those faults, as functions that make one. False: there was no occasion for it.
func (w *whole) moreFaults() map[Fault]func(context.Context, *rand.Rand, time.Duration) bool {
	type one = func(context.Context, *rand.Rand, time.Duration) bool
	return map[Fault]one{
		KillClient: func(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
			return w.killClient(ctx, w.callers[random.IntN(len(w.callers))], lasts)
		},
		PauseClient: func(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
			return w.pauseClient(ctx, w.callers[random.IntN(len(w.callers))], lasts+time.Duration(random.IntN(2))*leaseAway)
		},
		CutClient: func(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
			host := w.callers[random.IntN(len(w.callers))].host
			lasts += time.Duration(random.IntN(2)) * leaseAway
			w.Trace.Fault("%s: %s, for %v", CutClient, host, lasts)
			w.links(host, w.Network.Cut)
			_ = pauseFor(ctx, lasts)
			w.links(host, w.Network.Heal)
			return true
		},
		SlowClient: func(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
			host := w.callers[random.IntN(len(w.callers))].host
			w.Trace.Fault("%s: %s, for %v", SlowClient, host, lasts)
			w.links(host, func(a, b string) { w.Network.Slow(a, b, 100*time.Millisecond, 400*time.Millisecond) })
			_ = pauseFor(ctx, lasts)
			w.links(host, func(a, b string) { w.Network.Slow(a, b, delayLeast, delaySpread) })
			return true
		},
		FlapLink: w.flap,
		Reconnects: func(context.Context, *rand.Rand, time.Duration) bool {
			w.Trace.Fault("%s", Reconnects)
			for _, c := range w.callers {
				if p := c.running(); p != nil {
					p.stack.drop()
				}
			}
			return true
		},
		BreakDisk: func(_ context.Context, random *rand.Rand, _ time.Duration) bool {
			n := w.Members()[random.IntN(len(w.Members()))]
			if n.Up() == nil {
				return false
			}
			w.Trace.Fault("%s: %s", BreakDisk, n.ID)
			n.Disk.Break(errDisk)
			return true
		},
		ReplaceNode: w.replace,
	}
}

var errDisk = errors.New("input/output error")

// links does something to all links, both ways, between a host and the nodes.
func (w *whole) links(host string, do func(from, to string)) {
	for _, n := range w.Founders() {
		do(host, n.Host)
		do(n.Host, host)
	}
}

func (w *whole) killClient(ctx context.Context, c *caller, lasts time.Duration) bool {
	if c.running() == nil {
		return false
	}
	w.Trace.Fault("%s: %s, for %v", KillClient, c.host, lasts)
	c.kill()
	_ = pauseFor(ctx, lasts)
	w.begin(c)
	return true
}

func (w *whole) pauseClient(ctx context.Context, c *caller, lasts time.Duration) bool {
	p := c.running()
	if p == nil || !c.pause(p) {
		return false
	}
	from := w.moment()
	w.Trace.Fault("%s: %s, for %v", PauseClient, p.label, lasts)
	_ = pauseFor(ctx, lasts)
	c.wake(p)
	w.record.fault(check.Fault{Kind: string(PauseClient), Target: p.label, From: from, To: w.moment(), Voids: true})
	return true
}

// flap cuts a link and heals it again, many times.
func (w *whole) flap(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
	nodes := w.Founders()
	a := nodes[random.IntN(len(nodes))].Host
	b := w.callers[random.IntN(len(w.callers))].host
	if random.IntN(2) == 0 {
		b = nodes[random.IntN(len(nodes))].Host
	}
	w.Trace.Fault("%s: %s, %s, for %v", FlapLink, a, b, lasts)
	for until := time.Now().Add(lasts); time.Now().Before(until) && ctx.Err() == nil; {
		w.Network.Cut(a, b)
		_ = pauseFor(ctx, time.Duration(random.Int64N(int64(300*time.Millisecond))))
		w.Network.Heal(a, b)
		_ = pauseFor(ctx, time.Duration(random.Int64N(int64(300*time.Millisecond))))
	}
	return true
}

// drop closes what is open; the process lives and may connect again.
func (s *Stack) drop() {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	for c := range s.conns {
		c.end()
	}
}

// replacement is a node whose disk was lost, and the one that takes its place: under its name, or under a
// new one after the lost one was removed.
type replacement struct {
	mu       sync.Mutex // one at a time; guards what follows
	old, new *Node      // nil = none is under way
	serial   int
	kept     map[string]bool // names that have come back already: a cluster takes one back once in ten minutes
}

// replace loses a node with its disk, and has the operator replace it. What faults hinder now is done
// after they have ended.
func (w *whole) replace(ctx context.Context, random *rand.Rand, _ time.Duration) bool {
	r := &w.replacement
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.old == nil {
		old := w.Members()[random.IntN(len(w.Members()))]
		up := old.Up()
		if up == nil {
			return false
		}
		var cluster store.ID
		up.View(func(m *fsm.Machine) { cluster = store.ID(m.Cluster()) })
		if cluster == (store.ID{}) {
			return false // it has just started, and has not read its log yet
		}
		id := old.ID
		if random.IntN(2) == 0 || r.kept[id] {
			r.serial++
			id = fmt.Sprintf("n%d", len(w.Founders())+r.serial)
		} else if r.kept == nil {
			r.kept = map[string]bool{id: true}
		} else {
			r.kept[id] = true
		}
		r.old, r.new = old, w.Replace(old, id, cluster)
		w.Trace.Fault("%s: %s by %s", ReplaceNode, old.ID, r.new.ID)
		old.Kill()
	}
	return w.exchange(ctx)
}

// exchange has the operator do what is left to do, until it is done or ctx ends.
func (w *whole) exchange(ctx context.Context) bool {
	r := &w.replacement
	for ctx.Err() == nil {
		op := w.operator.running()
		members, _, err := op.Members(ctx)
		at := func(id string) int {
			return slices.IndexFunc(members, func(m client.Member) bool { return m.ID == id })
		}
		limited, cancel := context.WithTimeout(ctx, callMost)
		switch {
		case err != nil:
		case r.new.ID != r.old.ID && at(r.old.ID) >= 0:
			err = op.Remove(limited, r.old.ID)
		case !r.new.hasBegun():
			r.new.Begin()
		case !r.new.votes():
			err = op.Join(limited, r.new.ID, r.new.Address())
		default:
			w.Trace.Note("op", "%s replaced %s", r.new.ID, r.old.ID)
			r.old, r.new = nil, nil
			cancel()
			return true
		}
		cancel()
		if err != nil {
			w.Trace.Note("op", "%v", err)
		}
		_ = pauseFor(ctx, 300*time.Millisecond)
	}
	return false
}

// votes tells whether the node runs and knows that it has a vote.
func (n *Node) votes() bool {
	up := n.Up()
	return up != nil && up.Voter()
}

// hasBegun tells whether a process was ever started here.
func (n *Node) hasBegun() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.starts > 0
}

// stood are the times in which a clock stood, or a disk hung, which stops a leader's epoch and its clock: so
// much longer live the dead.
func (f *Faults) stood() (all []check.Stall) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.log {
		switch Fault(x.Kind) {
		case Freeze, ClockLags, StallDisk, HangDisk:
			all = append(all, check.Stall{Why: x.Kind, From: x.From, To: x.To, Lost: x.To - x.From})
		}
	}
	return all
}
