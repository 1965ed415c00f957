package sim

import (
	"fmt"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// violationsMax is how many breaches are kept: the first ones are those that explain.
const violationsMax = 20

// Audit is what the machines did, as they did it. Whoever applies an entry first writes it down;
// everybody who applies it later, also after a restart, must have had the same effect.
type Audit struct {
	began time.Time

	mu                sync.Mutex
	entries           []Effect
	byIndex           map[uint64]int // place in entries, by the index after the entry
	violations        []string
	effectsCompared   int // effects that a second or third machine had too
	snapshotsCompared int // snapshots that were compared with the log
	subscribers       map[fsm.TicketRef]chan<- fsm.Event
	renewals          map[session.ID]*renewal
	onFirstApply      func(*fsm.Machine, *Effect) // is told of each effect when it is first seen; nil = nobody is
}

// Effect is what one entry did, and when it was first applied anywhere.
type Effect struct {
	fsm.Applied
	Digest uint64
	At     time.Duration
	Node   string
}

// renewal is when the machines last heard a session.
type renewal struct {
	deadline clock.Time
	at       time.Duration
	time     clock.Time
	ended    bool // the session has ended
}

func newAudit() *Audit {
	return &Audit{
		began: time.Now(), byIndex: map[uint64]int{},
		subscribers: map[fsm.TicketRef]chan<- fsm.Event{}, renewals: map[session.ID]*renewal{},
	}
}

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
		a.publish(&e)
		a.trackRenewals(m, &e)
		if a.onFirstApply != nil {
			a.onFirstApply(m, &e)
		}
	}
}

// trackRenewals looks which of the watched sessions were heard.
func (a *Audit) trackRenewals(m *fsm.Machine, e *Effect) {
	for id, h := range a.renewals {
		if h.ended {
			continue
		}
		s, alive := m.Session(id)
		switch {
		case !alive:
			h.ended = h.deadline != 0
		case s.Deadline != h.deadline:
			h.deadline, h.at, h.time = s.Deadline, e.At, e.Time
		}
	}
}

// checkContinuity sees that the log has no hole: nobody applies what nobody applied the predecessor of.
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
				a.violationLocked("%s restored %v, which nobody has applied", node, m.Stamp())
			}
			return
		}
		a.snapshotsCompared++
		if e := &a.entries[at]; e.Digest != m.Digest() || e.Stamp != m.Stamp() || e.Time != m.Time() {
			a.violationLocked("%s restored %v with digest %x, and %s had applied %v with digest %x", node, m.Stamp(), m.Digest(), e.Node, e.Stamp, e.Digest)
		}
	}
}

// publish hands the events of tickets to who waits for them, as a push would.
func (a *Audit) publish(e *Effect) {
	for _, ev := range e.Events {
		if ev.Kind != fsm.EvGranted && ev.Kind != fsm.EvRefused && ev.Kind != fsm.EvLost {
			continue
		}
		if ch := a.subscribers[ev.TicketRef]; ch != nil {
			select {
			case ch <- ev:
			default: // a push is a hint
			}
		}
	}
}

// Subscribe lets a channel receive the events of one ticket, as far as it has room, until the returned
// function is called.
func (a *Audit) Subscribe(ref fsm.TicketRef, events chan<- fsm.Event) (stop func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.subscribers[ref] = events
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.subscribers, ref)
	}
}

// TrackRenewals begins to take down when a session is heard.
func (a *Audit) TrackRenewals(id session.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.renewals[id] == nil {
		a.renewals[id] = &renewal{}
	}
}

// LastRenewed is when a watched session was last heard, in virtual and in cluster time.
func (a *Audit) LastRenewed(id session.ID) (at time.Duration, t clock.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.renewals[id]; h != nil {
		return h.at, h.time
	}
	return 0, 0
}

func (a *Audit) violationLocked(format string, args ...any) {
	if len(a.violations) < violationsMax {
		a.violations = append(a.violations, fmt.Sprintf(format, args...))
	}
}

// Violation takes down what must not happen.
func (a *Audit) Violation(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.violationLocked(format, args...)
}

// Violations are the disagreements that were seen, the first ones.
func (a *Audit) Violations() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.violations...)
}

// Compared is how many effects, and how many snapshots, were held against those of another machine.
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

// Find returns the first event that which picks, and the effect it belongs to.
func (a *Audit) Find(match func(fsm.Event) bool) (fsm.Event, Effect, bool) {
	for _, e := range a.Entries() {
		for _, ev := range e.Events {
			if match(ev) {
				return ev, e, true
			}
		}
	}
	return fsm.Event{}, Effect{}, false
}

// Ended is when a session ended, and why.
func (a *Audit) Ended(id session.ID) (at time.Duration, reason fsm.Reason, ended bool) {
	ev, e, ended := a.Find(func(ev fsm.Event) bool { return ev.Kind == fsm.EvSessionEnded && ev.Session == id })
	return e.At, ev.Reason, ended
}

// Granted is when a ticket was granted, and its token.
func (a *Audit) Granted(ref fsm.TicketRef) (at time.Duration, token uint64, granted bool) {
	ev, e, granted := a.Find(func(ev fsm.Event) bool { return ev.Kind == fsm.EvGranted && ev.TicketRef == ref })
	return e.At, ev.Token, granted
}

// Epochs counts the epochs that were opened.
func (a *Audit) Epochs() int {
	n := 0
	for _, e := range a.Entries() {
		for _, ev := range e.Events {
			if ev.Kind == fsm.EvEpochStarted {
				n++
			}
		}
	}
	return n
}
