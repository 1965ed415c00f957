package sim

import (
	"fmt"
	"hash/crc32"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/session"
)

// violationsMax is how many violations are kept: the first ones are those that explain.
const violationsMax = 20

// Audit records what the state machines do. The first node that applies an entry records its
// effect; every node that applies it later, also after a restart, must have the same effect.
type Audit struct {
	began    time.Time
	startsAt uint64 // the index of the backup from which the cluster was restored; 0 = it was not

	mu                sync.Mutex
	entries           []Effect
	byIndex           map[uint64]int // place in entries, by the index after the entry
	inLogs            map[clock.Stamp]storedEntry
	violations        []string
	effectsCompared   int                         // effects of a second or third machine
	snapshotsCompared int                         // snapshots that were compared with the log
	onFirstApply      func(*fsm.Machine, *Effect) // called with each effect when it first occurs
}

func newAudit(began time.Time) *Audit {
	return &Audit{began: began, byIndex: map[uint64]int{}, inLogs: map[clock.Stamp]storedEntry{}}
}

// Effect is what one entry did, and when it was first applied anywhere.
type Effect struct {
	fsm.Applied
	Digest uint64 // see sampledDigest
	At     time.Duration
	Node   string
}

// sampledDigest is the digest after each entry of a small state, and the more seldom the larger the
// state is; 0 = not sampled. It is a function of the state, so equal states are sampled alike.
func sampledDigest(m *fsm.Machine) uint64 {
	c := m.Counts()
	records := c.Sessions + c.Granted + c.Waiting + m.EndedSessions()
	if m.Stamp().Index%uint64(1+records/64) != 0 {
		return 0
	}
	return m.Digest()
}

// applied is called when a node has applied an entry.
func (a *Audit) applied(node string, m *fsm.Machine, applied fsm.Applied) {
	e := Effect{Applied: applied, Digest: sampledDigest(m), At: time.Since(a.began), Node: node}
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

// storedEntry is the checksum of an entry, and the first node that wrote it.
type storedEntry struct {
	checksum uint32
	node     string
}

// stored is called when a node writes entries: different ones never have the same index and term.
func (a *Audit) stored(node string, entries []*raft.Log) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range entries {
		at := clock.Stamp{Index: e.Index, Term: e.Term}
		this := storedEntry{crc32.ChecksumIEEE(append([]byte{byte(e.Type)}, e.Data...)), node}
		if first, known := a.inLogs[at]; !known {
			a.inLogs[at] = this
		} else if first.checksum != this.checksum {
			a.violationLocked("%s and %s have different entries of one index and term, %v",
				first.node, node, at)
		}
	}
}

// diskLost forgets the entries that only a lost disk may have had, as the first entry of a cluster
// that then begins anew.
func (a *Audit) diskLost(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.inLogs, func(_ clock.Stamp, e storedEntry) bool { return e.node == node })
}

// checkContinuity checks that the log has no hole: each entry is applied after its predecessor.
func (a *Audit) checkContinuity(e *Effect) {
	if len(a.entries) == 0 {
		return
	}
	last := &a.entries[len(a.entries)-1]
	if e.Index != last.Stamp.Index+1 {
		a.violationLocked("%s applied an entry at %d, and the one before ended at %d", e.Node,
			e.Index, last.Stamp.Index)
	}
	if e.Time < last.Time || e.Stamp.Term < last.Stamp.Term {
		a.violationLocked("time or term fell from %v at %v to %v at %v", last.Time, last.Stamp,
			e.Time, e.Stamp)
	}
}

// compare checks that an entry had the same effect on two machines.
func (a *Audit) compare(node string, first, e *Effect) {
	a.effectsCompared++
	if first.Stamp != e.Stamp || first.Digest != e.Digest || first.Time != e.Time ||
		first.Refused != e.Refused ||
		len(first.Events) != len(e.Events) || len(first.Results) != len(e.Results) {
		a.violationLocked("%s applied %v (digest %x, time %v, %d events), and %s %v (digest %x, "+
			"time %v, %d events)",
			first.Node, first.Stamp, first.Digest, first.Time, len(first.Events),
			node, e.Stamp, e.Digest, e.Time, len(e.Events))
	}
}

// restored is called when a node has restored a snapshot.
func (a *Audit) restored(node string, m *fsm.Machine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, known := a.byIndex[m.Stamp().Index]
	if !known && len(a.entries) == 0 && a.startsAt != 0 && m.Stamp().Index == a.startsAt {
		a.byIndex[a.startsAt] = 0
		first := fsm.Applied{Stamp: m.Stamp(), Time: m.Time()}
		a.entries = append(a.entries, Effect{
			Applied: first, Digest: sampledDigest(m), At: time.Since(a.began), Node: node,
		})
		return
	}
	if !known {
		if m.Stamp().Index != 0 { // a machine without history restores nothing
			a.violationLocked("%s restored %v, which no node has applied", node, m.Stamp())
		}
		return
	}
	a.snapshotsCompared++
	digest := sampledDigest(m)
	if e := &a.entries[at]; e.Digest != digest || e.Stamp != m.Stamp() || e.Time != m.Time() {
		a.violationLocked("%s restored %v with digest %x, and %s had applied %v with digest %x",
			node, m.Stamp(), digest, e.Node, e.Stamp, e.Digest)
	}
}

func (a *Audit) violationLocked(format string, args ...any) {
	if len(a.violations) < violationsMax {
		a.violations = append(a.violations, fmt.Sprintf(format, args...))
	}
}

// Violation records a violation.
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

// Compared is how many effects, and how many snapshots, were compared with those of another
// machine.
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
func (a *Audit) events() iter.Seq2[fsm.Event, *Effect] { return eventsOf(a.Entries()) }

func eventsOf(entries []Effect) iter.Seq2[fsm.Event, *Effect] {
	return func(yield func(fsm.Event, *Effect) bool) {
		for i := range entries {
			for _, ev := range entries[i].Events {
				if !yield(ev, &entries[i]) {
					return
				}
			}
		}
	}
}

// Ended is when a session ended, and whether it has.
func (a *Audit) Ended(id session.ID) (at time.Duration, ended bool) {
	for ev, e := range a.events() {
		if ev.Kind == fsm.EvSessionEnded && ev.Session == id {
			return e.At, true
		}
	}
	return 0, false
}

// Granted is when a ticket was granted, its token, and whether it was granted.
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
	return slices.ContainsFunc(e.Events,
		func(ev fsm.Event) bool { return ev.Kind == fsm.EvEpochStarted })
}

// Check checks everything that must hold in any run, and fails the test if it does not.
func (s *Sim) Check() {
	s.Helper()
	s.checkNodes()
	now := s.historyTime()
	h := s.record.history(check.Plan{
		Begin: historyBegin, Healed: now, End: now, Drain: drainMax, CompleteEvents: true,
		ClockRate: 1 + s.config.Drift,
	})
	for _, f := range check.Check(h).Violations {
		s.Errorf("%v", f)
	}
}

// checkNodes checks what histories do not show: each node's state, and that the nodes agree.
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

// AwaitCounts waits until every machine has these counts of sessions, locks, waiters and others.
func (s *Sim) AwaitCounts(within time.Duration, want fsm.Counts) {
	s.Helper()
	s.Await(within, fmt.Sprintf("every node has %+v", want), func() bool {
		others := false
		return s.viewMembers(func(m *fsm.Machine) {
			others = others || m.Counts() != want
		}) && !others
	})
}

// viewMembers reads the machines of all members. It returns false if one does not run.
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

const (
	commitTimeMax = 100 * time.Millisecond // what a commit takes at most when nothing is wrong
	dueDelayMax   = 25 * time.Millisecond  // how late an epoch may notice that something is due
)
