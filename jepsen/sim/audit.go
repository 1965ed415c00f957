package sim

import (
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/session"
)

// violationsMax is how many violations are kept: the first ones are those that explain.
const violationsMax = 20

// Audit is what the machines did, as they did it. The first node that applies an entry records its effect; every
// node that applies it later, also after a restart, must have the same effect.
type Audit struct {
	began time.Time

	mu                sync.Mutex
	entries           []Effect
	byIndex           map[uint64]int // place in entries, by the index after the entry
	violations        []string
	effectsCompared   int                         // effects that a second or third machine had too
	snapshotsCompared int                         // snapshots that were compared with the log
	onFirstApply      func(*fsm.Machine, *Effect) // is called with each effect when it is first seen
}

// Effect is what one entry did, and when it was first applied anywhere.
type Effect struct {
	fsm.Applied
	Digest uint64
	At     time.Duration
	Node   string
}

func newAudit() *Audit { return &Audit{began: time.Now(), byIndex: map[uint64]int{}} }

// applied is a node's Config.Applied.
func (a *Audit) applied(node string) func(*fsm.Machine, fsm.Applied) {
	return func(m *fsm.Machine, applied fsm.Applied) {
		e := Effect{Applied: applied, Digest: m.Digest(), At: time.Since(a.began), Node: node}
		a.mu.Lock()
		defer a.mu.Unlock()
		if at, known := a.byIndex[applied.Stamp.Index]; known {
			a.compare(node, &a.entries[at], &e)
			return
		}
		a.checkContinuity(&e)
		a.byIndex[applied.Stamp.Index] = len(a.entries)
		a.entries = append(a.entries, e)
		a.onFirstApply(m, &e)
	}
}

// checkContinuity sees that the log has no hole: an entry is applied after its predecessor.
func (a *Audit) checkContinuity(e *Effect) {
	if len(a.entries) == 0 {
		return
	}
	last := &a.entries[len(a.entries)-1]
	if e.Index != last.Stamp.Index+1 {
		a.violationLocked("%s applied an entry at %d, and the one before ended at %d", e.Node, e.Index, last.Stamp.Index)
	}
	if e.Time < last.Time || e.Stamp.Term < last.Stamp.Term {
		a.violationLocked("time or term fell from %v at %v to %v at %v", last.Time, last.Stamp, e.Time, e.Stamp)
	}
}

// compare sees that a machine had the effect that another one had.
func (a *Audit) compare(node string, first, e *Effect) {
	a.effectsCompared++
	if first.Stamp != e.Stamp || first.Digest != e.Digest || first.Time != e.Time || first.Refused != e.Refused ||
		len(first.Events) != len(e.Events) || len(first.Results) != len(e.Results) {
		a.violationLocked("%s applied %v (digest %x, time %v, %d events), and %s %v (digest %x, time %v, %d events)",
			first.Node, first.Stamp, first.Digest, first.Time, len(first.Events),
			node, e.Stamp, e.Digest, e.Time, len(e.Events))
	}
}

// restoredFrom is a node's Config.Restored.
func (a *Audit) restoredFrom(node string) func(*fsm.Machine) {
	return func(m *fsm.Machine) {
		a.mu.Lock()
		defer a.mu.Unlock()
		at, known := a.byIndex[m.Stamp().Index]
		if !known {
			if m.Stamp().Index != 0 { // a machine without history restores nothing
				a.violationLocked("%s restored %v, which no node has applied", node, m.Stamp())
			}
			return
		}
		a.snapshotsCompared++
		if e := &a.entries[at]; e.Digest != m.Digest() || e.Stamp != m.Stamp() || e.Time != m.Time() {
			a.violationLocked("%s restored %v with digest %x, and %s had applied %v with digest %x", node, m.Stamp(), m.Digest(), e.Node, e.Stamp, e.Digest)
		}
	}
}

func (a *Audit) violationLocked(format string, args ...any) {
	if len(a.violations) < violationsMax {
		a.violations = append(a.violations, fmt.Sprintf(format, args...))
	}
}

// Violation records what must not happen.
func (a *Audit) Violation(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.violationLocked(format, args...)
}

// Violations are the first violations that were recorded.
func (a *Audit) Violations() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.violations...)
}

// Compared is how many effects, and how many snapshots, were compared with those of another machine.
func (a *Audit) Compared() (effects, snapshots int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.effectsCompared, a.snapshotsCompared
}

// Entries are the effects of the log so far, in order. They are shared and must not be changed.
func (a *Audit) Entries() []Effect {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.entries[:len(a.entries):len(a.entries)]
}

// events are the events of the log so far, each with the effect that it belongs to, in order.
func (a *Audit) events() iter.Seq2[fsm.Event, *Effect] {
	return func(yield func(fsm.Event, *Effect) bool) {
		entries := a.Entries()
		for i := range entries {
			for _, ev := range entries[i].Events {
				if !yield(ev, &entries[i]) {
					return
				}
			}
		}
	}
}

// Ended is when a session ended, if it has.
func (a *Audit) Ended(id session.ID) (at time.Duration, ended bool) {
	for ev, e := range a.events() {
		if ev.Kind == fsm.EvSessionEnded && ev.Session == id {
			return e.At, true
		}
	}
	return 0, false
}

// Granted is when a ticket was granted, and its token.
func (a *Audit) Granted(ref fsm.TicketRef) (at time.Duration, token uint64, granted bool) {
	for ev, e := range a.events() {
		if ev.Kind == fsm.EvGranted && ev.TicketRef == ref {
			return e.At, ev.Token, true
		}
	}
	return 0, 0, false
}

// Epochs counts the epochs that began.
func (a *Audit) Epochs() (n int) {
	for ev := range a.events() {
		if ev.Kind == fsm.EvEpochStarted {
			n++
		}
	}
	return n
}

// startsEpoch reports whether an epoch began with an entry.
func startsEpoch(e *Effect) bool {
	return slices.ContainsFunc(e.Events, func(ev fsm.Event) bool { return ev.Kind == fsm.EvEpochStarted })
}

// Check checks the run so far against everything that must hold of any run, and reports what does not.
func (s *Sim) Check() {
	s.Helper()
	s.checkNodes()
	now := s.historyTime()
	h := s.record.history(check.Plan{
		Begin: historyBegin, Healed: now, End: now, Drain: drainMax, CompleteEvents: true, ClockRate: 1 + s.config.Drift,
	})
	for _, f := range check.Check(h).Violations {
		s.Errorf("%v", f)
	}
}

// checkNodes checks what histories do not show: each node's state, and how it differs from the others'.
func (s *Sim) checkNodes() {
	s.Helper()
	for _, violation := range s.Audit.Violations() {
		s.Errorf("%s", violation)
	}
	for _, n := range s.Nodes() {
		n.View(func(m *fsm.Machine) {
			if err := m.Check(); err != nil {
				s.Errorf("%s: %v", n.ID, err)
			}
		})
	}
}

// AwaitConverged waits until all members have applied the same. The audit compares their states.
func (s *Sim) AwaitConverged(within time.Duration) {
	s.Helper()
	stamps := map[clock.Stamp]bool{}
	s.Await(within, "all nodes have applied the same", func() bool {
		clear(stamps)
		return s.viewMembers(func(m *fsm.Machine) { stamps[m.Stamp()] = true }) && len(stamps) == 1
	})
}

// AwaitDrained waits until no machine has a session, a holder, a waiter or a delay.
func (s *Sim) AwaitDrained(within time.Duration) {
	s.Helper()
	s.Await(within, "everything has drained", func() bool {
		left := false
		return s.viewMembers(func(m *fsm.Machine) { left = left || m.Counts() != (fsm.Counts{}) }) && !left
	})
}

// viewMembers reads the machines of all members. False: one does not run.
func (s *Sim) viewMembers(read func(*fsm.Machine)) (all bool) {
	for _, n := range s.Members() {
		up := n.Running()
		if up == nil {
			return false
		}
		up.View(read)
	}
	return true
}
