package sim

import (
	"maps"
	"slices"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/jepsen/workload"
	"zamok/session"
)

// recorder records a history for package check: what clients called and held, and what the nodes
// applied.
type recorder struct {
	workload.Recorder
	resource *workload.Resource
	sim      *Sim

	mu         sync.Mutex    // guards what follows
	recorded   check.History // as it was recorded
	sessions   map[session.ID]*recordedSession
	live       map[session.ID]*recordedSession
	dead       map[string]time.Duration // by label: when its process was killed
	enqueuedAt map[check.Ref]uint64     // of granted tickets: the index at which they were enqueued
}

// recordedSession is a session, with its deadline in the state machine.
type recordedSession struct {
	check.Session
	deadline  clock.Time
	renewedAt time.Duration // when its deadline last moved
}

func newRecorder(s *Sim) *recorder {
	r := &recorder{
		sim: s, sessions: map[session.ID]*recordedSession{},
		live: map[session.ID]*recordedSession{},
		dead: map[string]time.Duration{}, enqueuedAt: map[check.Ref]uint64{},
	}
	r.HistoryTime, r.Put, r.resource = s.historyTime, r.put, workload.NewResource(&r.Recorder)
	s.Audit.onFirstApply = r.applied
	return r
}

// applied records sessions, and when granted tickets were enqueued: events do not show that.
func (r *recorder) applied(m *fsm.Machine, e *Effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := e.At + historyBegin
	for _, ev := range e.Events {
		switch ev.Kind {
		case fsm.EvAttached:
			if s, alive := m.Session(ev.Session); alive {
				r.addSessionOf(s)
			}
		case fsm.EvGranted:
			// A session without a stream, as over HTTP. Sessions of stories have no label.
			if s, alive := m.Session(ev.TicketRef.Session); alive && s.Label != "" {
				r.addSessionOf(s)
			}
			if t, known := m.Ticket(ev.TicketRef); known {
				r.enqueuedAt[checkRef(ev.TicketRef)] = t.Enqueued
			}
		}
	}
	for id, recorded := range r.live {
		s, alive := m.Session(id)
		switch {
		case !alive:
			delete(r.live, id)
		case s.Deadline != recorded.deadline:
			recorded.deadline, recorded.renewedAt = s.Deadline, at
		}
	}
}

// addSessionOf records a session of the state machine, once. The caller holds the lock.
func (r *recorder) addSessionOf(s session.Session) {
	if r.sessions[s.ID] == nil {
		r.addSession(check.Session{
			Session: uint64(s.ID), Client: s.Label, TTL: s.TTL.Duration(),
			ReleaseOnDisconnect: s.ReleaseOnDisconnect != 0,
		})
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

// put adds a record to the history, unless its process was killed.
func (r *recorder) put(line check.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if line.Op != nil && r.dead[line.Op.Client] != 0 ||
		line.Hold != nil && r.dead[line.Hold.Client] != 0 {
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
				Node: n.ID, Term: m.Stamp().Term, Index: m.Stamp().Index,
				Time: time.Duration(m.Time()), Digest: m.Digest(),
			}
		})
		if state.At = r.sim.historyTime(); state.Index != 0 {
			r.put(check.Record{NodeState: &state})
		}
	}
}

// history is all that was recorded.
func (r *recorder) history(plan check.Plan) *check.History {
	// A shorter time without a commit is too short to be recorded as a stall, but delays what is
	// due.
	plan.ExpirationSlack = time.Second + commitTimeMax + dueDelayMax
	audit := r.sim.Audit
	audit.mu.Lock() // first, as when an entry is applied
	entries := audit.entries[:len(audit.entries):len(audit.entries)]
	r.mu.Lock()
	audit.mu.Unlock()
	defer r.mu.Unlock()
	h := r.recorded
	h.Plan, h.Events, h.Ops = plan, nil, nil
	for ev, e := range eventsOf(entries) { // before those of the watch, which are later
		if kind := eventKinds[ev.Kind]; kind != "" {
			h.Events = append(h.Events, check.Event{
				Node: e.Node, At: e.At + historyBegin, Index: ev.Index, Kind: kind,
				Ref:   checkRef(ev.TicketRef),
				Token: ev.Token, Reason: reasonText(ev.Reason), Items: checkItems(ev.Items),
				Client: ev.Label,
			})
		}
	}
	h.Events = append(h.Events, r.recorded.Events...)
	for _, id := range slices.Sorted(maps.Keys(r.sessions)) {
		s := r.sessions[id]
		if died := r.dead[s.Client]; died != 0 {
			s.Died = max(died, s.renewedAt) // its last messages may arrive later
		}
		h.Sessions = append(h.Sessions, s.Session)
	}
	// also those that died before they had a session
	for _, label := range slices.Sorted(maps.Keys(r.dead)) {
		if r.dead[label] < plan.End && !slices.ContainsFunc(h.Sessions,
			func(s check.Session) bool { return s.Client == label }) {
			h.Sessions = append(h.Sessions, check.Session{Client: label, Died: r.dead[label]})
		}
	}
	for _, op := range r.recorded.LatestOps() {
		h.Ops = append(h.Ops, *op)
	}
	h.AddUnansweredGrants()
	for i := range h.Ops {
		op := &h.Ops[i]
		op.Queued = 0 // replaced by that of the granted ticket, from the log
		if enqueued := r.enqueuedAt[op.Ref]; op.Outcome == check.OK && !op.Reads() &&
			enqueued != 0 && enqueued < op.Token {
			op.Queued = appliedAt(entries, enqueued)
		}
	}
	h.Stalls = slices.Concat(h.Stalls, clusterTimeStalls(entries))
	return &h
}

// appliedAt is when an index was first applied anywhere.
func appliedAt(entries []Effect, index uint64) time.Duration {
	i, _ := slices.BinarySearchFunc(entries, index,
		func(e Effect, index uint64) int { return int(e.Stamp.Index) - int(index) })
	return entries[i].At + historyBegin
}

// clusterTimeStalls are the changes of leader, from the last entry of the old epoch to the first of
// the new one, and the times in which nothing was committed, although an entry is proposed at least
// once a second: the entry that is delayed does what is due then. (With one of three nodes down,
// raft may wait for seconds before it contacts a second one that has come back: see backoffMax.)
func clusterTimeStalls(entries []Effect) (all []check.Stall) {
	for i := 1; i < len(entries); i++ {
		from, to := entries[i-1].At, entries[i].At
		stall := check.Stall{Reason: "no commit", From: from + historyBegin, To: to + historyBegin,
			CommitsBlocked: true}
		switch {
		case startsEpoch(&entries[i]):
			stall.Reason, stall.CommitsBlocked, stall.From = "change of leader", false,
				lastReadingBefore(entries, i)+historyBegin
			stall.LostTime = stall.To - stall.From + time.Second
		case !commitDelayed(entries, i):
			continue
		}
		all = append(all, stall)
	}
	return all
}

// commitDelayed reports whether an entry was committed later than the interval of entries explains.
func commitDelayed(entries []Effect, i int) bool {
	return i > 0 && entries[i].At-entries[i-1].At >= time.Second+commitTimeMax
}

// lastReadingBefore is when the last entry before a change of leader was proposed at the earliest,
// less the second within which entries are proposed. Two may be in flight at once: if they were
// delayed, they were proposed before that.
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
	fsm.EvReleased: check.EvReleased, fsm.EvDowngraded: check.EvDowngraded,
	fsm.EvSessionEnded: check.EvEnded,
}

// reasonText is a reason as clients see it.
func reasonText(w fsm.Reason) string {
	return [...]string{
		"", "dropped", "closed", check.Expired, "disconnected", "expired_by_operator",
		"force_released", "max_hold_exceeded", "wait_timeout",
		"try_failed", "deadlocked", "owner_busy", "kind_mismatch", "too_many", "restored",
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
			item.Mode, item.Permits, item.Limit = check.Permits, int(it.Permits), int(it.Of)
		}
		all = append(all, item)
	}
	return all
}
