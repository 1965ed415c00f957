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
	KillClient  FaultKind = "kill a client"
	PauseClient FaultKind = "pause a client"
	CutClient   FaultKind = "cut a client off"
	SlowClient  FaultKind = "slow links of a client"
	FlapLink    FaultKind = "flapping link"
	Reconnects  FaultKind = "all clients reconnect"
	BreakDisk   FaultKind = "break a disk"
	ReplaceNode FaultKind = "replace a node"
)

// beyondLease is added to some pauses and cuts of clients, so that they are longer than most leases.
const beyondLease = 4 * time.Second

// stackFaults are those faults, as functions that make one. False: there was no occasion for it.
func (w *fullStack) stackFaults() map[FaultKind]func(context.Context, *rand.Rand, time.Duration) bool {
	type one = func(context.Context, *rand.Rand, time.Duration) bool
	return map[FaultKind]one{
		KillClient: func(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
			return w.killClient(ctx, w.callers[random.IntN(len(w.callers))], lasts)
		},
		PauseClient: func(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
			return w.pauseClient(ctx, w.callers[random.IntN(len(w.callers))], lasts+time.Duration(random.IntN(2))*beyondLease)
		},
		CutClient: func(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
			host := w.callers[random.IntN(len(w.callers))].host
			lasts += time.Duration(random.IntN(2)) * beyondLease
			w.Trace.Fault("%s: %s, for %v", CutClient, host, lasts)
			w.eachLink(host, w.Network.Cut)
			_ = sleepContext(ctx, lasts)
			w.eachLink(host, w.Network.Heal)
			return true
		},
		SlowClient: func(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
			host := w.callers[random.IntN(len(w.callers))].host
			w.Trace.Fault("%s: %s, for %v", SlowClient, host, lasts)
			w.eachLink(host, func(a, b string) { w.Network.SetDelay(a, b, 100*time.Millisecond, 400*time.Millisecond) })
			_ = sleepContext(ctx, lasts)
			w.eachLink(host, func(a, b string) { w.Network.SetDelay(a, b, delayMin, delaySpread) })
			return true
		},
		FlapLink: w.flapLink,
		Reconnects: func(context.Context, *rand.Rand, time.Duration) bool {
			w.Trace.Fault("%s", Reconnects)
			for _, c := range w.callers {
				if p := c.running(); p != nil {
					p.stack.closeConns()
				}
			}
			return true
		},
		BreakDisk: func(_ context.Context, random *rand.Rand, _ time.Duration) bool {
			n := w.Members()[random.IntN(len(w.Members()))]
			if n.Running() == nil {
				return false
			}
			w.Trace.Fault("%s: %s", BreakDisk, n.ID)
			n.Disk.FailWrites(errDisk)
			return true
		},
		ReplaceNode: w.replaceNode,
	}
}

var errDisk = errors.New("input/output error")

// eachLink does something to all links, both ways, between a host and the nodes.
func (w *fullStack) eachLink(host string, do func(from, to string)) {
	for _, n := range w.InitialMembers() {
		do(host, n.Host)
		do(n.Host, host)
	}
}

func (w *fullStack) killClient(ctx context.Context, c *clientHost, lasts time.Duration) bool {
	if c.running() == nil {
		return false
	}
	w.Trace.Fault("%s: %s, for %v", KillClient, c.host, lasts)
	c.kill()
	_ = sleepContext(ctx, lasts)
	w.startClient(c)
	return true
}

func (w *fullStack) pauseClient(ctx context.Context, c *clientHost, lasts time.Duration) bool {
	p := c.running()
	if p == nil || !c.pause(p) {
		return false
	}
	from := w.historyTime()
	w.Trace.Fault("%s: %s, for %v", PauseClient, p.label, lasts)
	_ = sleepContext(ctx, lasts)
	c.resume(p)
	w.record.recordFault(check.Fault{Kind: string(PauseClient), Target: p.label, From: from, To: w.historyTime(), ExcusesClient: true})
	return true
}

// flapLink cuts a link and heals it again, many times.
func (w *fullStack) flapLink(ctx context.Context, random *rand.Rand, lasts time.Duration) bool {
	nodes := w.InitialMembers()
	a := nodes[random.IntN(len(nodes))].Host
	b := w.callers[random.IntN(len(w.callers))].host
	if random.IntN(2) == 0 {
		b = nodes[random.IntN(len(nodes))].Host
	}
	w.Trace.Fault("%s: %s, %s, for %v", FlapLink, a, b, lasts)
	for until := time.Now().Add(lasts); time.Now().Before(until) && ctx.Err() == nil; {
		w.Network.Cut(a, b)
		_ = sleepContext(ctx, time.Duration(random.Int64N(int64(300*time.Millisecond))))
		w.Network.Heal(a, b)
		_ = sleepContext(ctx, time.Duration(random.Int64N(int64(300*time.Millisecond))))
	}
	return true
}

// closeConns closes what is open; the process lives and may connect again.
func (s *Stack) closeConns() {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	for c := range s.conns {
		c.closeLocked()
	}
}

// replacement is a node whose disk was lost, and the one that takes its place: under its name, or under a
// new one after the lost one was removed.
type replacement struct {
	mu       sync.Mutex // one at a time; guards what follows
	old, new *Node      // nil = none is under way
	serial   int
	rejoined map[string]bool // names that have come back already: a cluster takes one back once in ten minutes
}

// replaceNode loses a node with its disk, and has the operator replace it. What faults hinder now is done
// after they have ended.
func (w *fullStack) replaceNode(ctx context.Context, random *rand.Rand, _ time.Duration) bool {
	r := &w.replacement
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.old == nil {
		old := w.Members()[random.IntN(len(w.Members()))]
		up := old.Running()
		if up == nil {
			return false
		}
		var cluster store.ID
		up.View(func(m *fsm.Machine) { cluster = store.ID(m.Cluster()) })
		if cluster == (store.ID{}) {
			return false // it has just started, and has not read its log yet
		}
		id := old.ID
		if random.IntN(2) == 0 || r.rejoined[id] {
			r.serial++
			id = fmt.Sprintf("n%d", len(w.InitialMembers())+r.serial)
		} else if r.rejoined == nil {
			r.rejoined = map[string]bool{id: true}
		} else {
			r.rejoined[id] = true
		}
		r.old, r.new = old, w.Replace(old, id, cluster)
		w.Trace.Fault("%s: %s by %s", ReplaceNode, old.ID, r.new.ID)
		old.Kill()
	}
	return w.finishReplacement(ctx)
}

// finishReplacement has the operator do what is left to do, until it is done or ctx ends.
func (w *fullStack) finishReplacement(ctx context.Context) bool {
	r := &w.replacement
	for ctx.Err() == nil {
		op := w.operator.running()
		members, _, err := op.Members(ctx)
		at := func(id string) int {
			return slices.IndexFunc(members, func(m client.Member) bool { return m.ID == id })
		}
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		switch {
		case err != nil:
		case r.new.ID != r.old.ID && at(r.old.ID) >= 0:
			err = op.Remove(limited, r.old.ID)
		case !r.new.everStarted():
			r.new.StartProcess()
		case !r.new.isVoter():
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
		_ = sleepContext(ctx, 300*time.Millisecond)
	}
	return false
}

// isVoter reports whether the node runs and knows that it has a vote.
func (n *Node) isVoter() bool {
	up := n.Running()
	return up != nil && up.Voter()
}

// everStarted reports whether a process was ever started here.
func (n *Node) everStarted() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.starts > 0
}

// clockStalls are the times in which a clock stood, or a disk hung, which stops a leader's epoch and its clock: so
// much longer live the dead.
func (f *Nemesis) clockStalls() (all []check.Stall) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.log {
		switch FaultKind(x.Kind) {
		case Freeze, ClockLags, StallDisk, HangDisk:
			all = append(all, check.Stall{Reason: x.Kind, From: x.From, To: x.To, LostTime: x.To - x.From})
		}
	}
	return all
}
