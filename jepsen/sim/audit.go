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
	"zamok/jepsen/workload"
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
	inLogs            map[clock.Stamp]storedEntry
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

// applied is called when a node has applied an entry.
func (a *Audit) applied(node string, m *fsm.Machine, applied fsm.Applied) {
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

// storedEntry is the checksum of an entry, and the first node whose disk was given it.
type storedEntry struct {
	checksum uint32
	node     string
}

// stored is called when a node writes entries: no two different ones have the same index and term, applied or not.
func (a *Audit) stored(node string, entries []*raft.Log) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range entries {
		at := clock.Stamp{Index: e.Index, Term: e.Term}
		now := storedEntry{crc32.ChecksumIEEE(append([]byte{byte(e.Type)}, e.Data...)), node}
		if first, known := a.inLogs[at]; !known {
			a.inLogs[at] = now
		} else if first.checksum != now.checksum {
			a.violationLocked("%s and %s have different entries of one index and term, %v", first.node, node, at)
		}
	}
}

// diskLost forgets the entries that a machine's disk, which is gone, was the first to be given: no other may have them,
// as the first entry of a cluster that then begins anew.
func (a *Audit) diskLost(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.inLogs, func(_ clock.Stamp, e storedEntry) bool { return e.node == node })
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

// restored is called when a node has restored a snapshot.
func (a *Audit) restored(node string, m *fsm.Machine) {
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

// AwaitCounts waits until this is what every machine has of sessions, locks, holders, waiters and delays.
func (s *Sim) AwaitCounts(within time.Duration, want fsm.Counts) {
	s.Helper()
	s.Await(within, fmt.Sprintf("every node has %+v", want), func() bool {
		others := false
		return s.viewMembers(func(m *fsm.Machine) { others = others || m.Counts() != want }) && !others
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

const (
	commitTimeMax = 100 * time.Millisecond // what a commit takes at most when nothing is wrong
	dueDelayMax   = 25 * time.Millisecond  // how late an epoch may notice that something is due
)

// recorder records a history for package check: what clients called and held, and what the nodes applied.
type recorder struct {
	workload.Recorder
	resource *workload.Resource
	sim      *Sim

	mu         sync.Mutex    // guards what follows
	recorded   check.History // as it was recorded
	sessions   map[session.ID]*recordedSession
	live       map[session.ID]*recordedSession
	dead       map[string]time.Duration // by label: when its process was killed
	enqueuedAt map[check.Ref]uint64     // of granted tickets: the index at which they were asked for
}

// recordedSession is a session.
type recordedSession struct {
	check.Session
	deadline  clock.Time
	renewedAt time.Duration // when its deadline last moved
}

func newRecorder(s *Sim) *recorder {
	r := &recorder{
		sim: s, sessions: map[session.ID]*recordedSession{}, live: map[session.ID]*recordedSession{},
		dead: map[string]time.Duration{}, enqueuedAt: map[check.Ref]uint64{},
	}
	r.Present, r.Put, r.resource = s.historyTime, r.put, workload.NewResource(&r.Recorder)
	s.Audit.onFirstApply = r.applied
	return r
}

// applied records the sessions, and when granted tickets were enqueued, which events do not show.
func (r *recorder) applied(m *fsm.Machine, e *Effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := e.At + historyBegin
	for _, ev := range e.Events {
		switch ev.Kind {
		case fsm.EvAttached:
			if s, alive := m.Session(ev.Session); alive && r.sessions[ev.Session] == nil {
				r.addSession(check.Session{
					Session: uint64(s.ID), Client: s.Label, TTL: s.TTL.Duration(), ReleaseOnDisconnect: s.Grace != 0,
				})
			}
		case fsm.EvGranted:
			if t, known := m.Ticket(ev.TicketRef); known {
				r.enqueuedAt[checkRef(ev.TicketRef)] = t.Enqueued
			}
		}
	}
	for id, is := range r.live {
		s, alive := m.Session(id)
		switch {
		case !alive:
			delete(r.live, id)
		case s.Deadline != is.deadline:
			is.deadline, is.renewedAt = s.Deadline, at
		}
	}
}

// addSession records a session. The caller holds the lock.
func (r *recorder) addSession(s check.Session) {
	recorded := &recordedSession{Session: s}
	r.sessions[session.ID(s.Session)], r.live[session.ID(s.Session)] = recorded, recorded
}

func (r *recorder) recordDeath(label string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead[label] = r.sim.historyTime()
}

// put adds to the history. A process that was killed does and sees nothing.
func (r *recorder) put(line check.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if line.Op != nil && r.dead[line.Op.Client] != 0 || line.Hold != nil && r.dead[line.Hold.Client] != 0 {
		return
	}
	r.recorded.Add(line)
}

// recordNodeStates records what each node shows.
func (r *recorder) recordNodeStates() {
	for _, n := range r.sim.Members() {
		var state check.NodeState
		n.View(func(m *fsm.Machine) {
			state = check.NodeState{
				Node: n.ID, Term: m.Stamp().Term, Index: m.Stamp().Index, Time: time.Duration(m.Time()), Digest: m.Digest(),
			}
		})
		if state.At = r.sim.historyTime(); state.Index != 0 {
			r.put(check.Record{NodeState: &state})
		}
	}
}

// history is all that was recorded.
func (r *recorder) history(plan check.Plan) *check.History {
	// A shorter time without a commit is no stall, and what is due in it may be done at its end.
	plan.ExpirationSlack = time.Second + commitTimeMax + dueDelayMax
	audit := r.sim.Audit
	audit.mu.Lock() // first, as when an entry is applied
	entries := audit.entries[:len(audit.entries):len(audit.entries)]
	r.mu.Lock()
	audit.mu.Unlock()
	defer r.mu.Unlock()
	h := r.recorded
	h.Plan, h.Events, h.Ops = plan, nil, nil
	for ev, e := range eventsOf(entries) { // before what the watch has shown, later
		if kind := eventKinds[ev.Kind]; kind != "" {
			h.Events = append(h.Events, check.Event{
				Node: e.Node, At: e.At + historyBegin, Index: ev.Index, Kind: kind, Ref: checkRef(ev.TicketRef),
				Token: ev.Token, Reason: reasonText(ev.Reason), Items: checkItems(ev.Items),
			})
		}
	}
	h.Events = append(h.Events, r.recorded.Events...)
	for _, id := range slices.Sorted(maps.Keys(r.sessions)) {
		s := r.sessions[id]
		if died := r.dead[s.Client]; died != 0 {
			s.Died = max(died, s.renewedAt) // what it had sent may arrive later
		}
		h.Sessions = append(h.Sessions, s.Session)
	}
	for _, label := range slices.Sorted(maps.Keys(r.dead)) { // also those that died before they had a session
		if r.dead[label] < plan.End && !slices.ContainsFunc(h.Sessions, func(s check.Session) bool { return s.Client == label }) {
			h.Sessions = append(h.Sessions, check.Session{Client: label, Died: r.dead[label]})
		}
	}
	for _, op := range r.recorded.LatestOps() {
		h.Ops = append(h.Ops, *op)
	}
	h.AddUnansweredGrants()
	for i := range h.Ops {
		op := &h.Ops[i]
		op.Queued = 0 // the log has it, of the ticket that was granted in the end
		if enqueued := r.enqueuedAt[op.Ref]; op.Outcome == check.OK && !op.Reads() && enqueued != 0 && enqueued < op.Token {
			op.Queued = appliedAt(entries, enqueued)
		}
	}
	h.Stalls = slices.Concat(h.Stalls, clusterTimeStalls(entries))
	return &h
}

// appliedAt is when an index was first applied anywhere.
func appliedAt(entries []Effect, index uint64) time.Duration {
	i, _ := slices.BinarySearchFunc(entries, index, func(e Effect, index uint64) int { return int(e.Stamp.Index) - int(index) })
	return entries[i].At + historyBegin
}

// clusterTimeStalls are the changes of leader, from the last that the old epoch did to the first of the new, and the
// times in which nothing was committed, though an entry leaves at least once a second: what is due then is
// done by the entry that is held up. (With one of three nodes down, raft may wait for seconds before it tries
// a second that has come back: see backoffMax.)
func clusterTimeStalls(entries []Effect) (all []check.Stall) {
	for i := 1; i < len(entries); i++ {
		from, to := entries[i-1].At, entries[i].At
		stall := check.Stall{Reason: "no commit", From: from + historyBegin, To: to + historyBegin, CommitsBlocked: true}
		switch {
		case startsEpoch(&entries[i]):
			stall.Reason, stall.CommitsBlocked, stall.From = "change of leader", false, lastReadingBefore(entries, i)+historyBegin
			stall.LostTime = stall.To - stall.From + time.Second
		case !commitDelayed(entries, i):
			continue
		}
		all = append(all, stall)
	}
	return all
}

// commitDelayed reports whether an entry was committed later after the one before than entries leave.
func commitDelayed(entries []Effect, i int) bool {
	return i > 0 && entries[i].At-entries[i-1].At >= time.Second+commitTimeMax
}

// lastReadingBefore is when the last entry before a change of leader left at the earliest, but for the second within
// which entries leave. Two may be on their way at once: if they were held up, they left before that.
func lastReadingBefore(entries []Effect, change int) time.Duration {
	from := change - 1
	for i := from; i > max(0, change-3) && !startsEpoch(&entries[i]); i-- {
		if commitDelayed(entries, i) {
			from = i - 1
		}
	}
	return entries[from].At
}

var eventKinds = map[fsm.EventKind]check.EventKind{
	fsm.EvGranted: check.EvGranted, fsm.EvRefused: check.EvRefused, fsm.EvLost: check.EvLost,
	fsm.EvReleased: check.EvReleased, fsm.EvDowngraded: check.EvDowngraded, fsm.EvSessionEnded: check.EvEnded,
}

// reasonText is a reason as clients see it.
func reasonText(w fsm.Reason) string {
	return [...]string{
		"", "dropped", "closed", check.Expired, "disconnected", "evicted", "revoked", "max hold exceeded", "wait timeout",
		"try failed", "deadlocked", "owner busy", "kind mismatch", "too many", "restored",
	}[w]
}

func checkRef(ref fsm.TicketRef) check.Ref {
	return check.Ref{Session: uint64(ref.Session), Ticket: ref.Ticket}
}

func checkItems(items []fsm.Item) (all []check.Item) {
	for _, it := range items {
		item := check.Item{Name: it.Name, Mode: check.Exclusive}
		switch it.Mode {
		case fsm.Shared:
			item.Mode = check.Shared
		case fsm.Permits:
			item.Mode, item.Permits, item.Limit = check.Permits, int(it.Permits), int(it.Limit)
		}
		all = append(all, item)
	}
	return all
}
