package sim

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/check"
	"zamok/session"
)

// Record is a history for package check: what callers did and believed, and what the machines did.
type Record struct {
	sim *Sim

	mu       sync.Mutex // guards what follows
	ops      []*check.Op
	holds    []*check.Hold
	rest     check.History // everything that is never changed again
	sessions map[session.ID]*recorded
	live     map[session.ID]*recorded
	dead     map[string]time.Duration // by label: when its process was killed
	born     map[check.Ref]uint64     // of granted tickets: the index at which they were asked for
	resource map[string]uint64        // by lock: the greatest exclusive token that its resource has seen
}

// recorded is a session.
type recorded struct {
	check.Session
	deadline clock.Time
	heard    time.Duration // when its deadline last moved
}

// Record begins to take down what the machines do.
func (s *Sim) Record() *Record {
	r := &Record{
		sim: s, sessions: map[session.ID]*recorded{}, live: map[session.ID]*recorded{},
		dead: map[string]time.Duration{}, born: map[check.Ref]uint64{}, resource: map[string]uint64{},
	}
	s.Audit.first = r.applied
	return r
}

// applied takes down the sessions and the births of grants, which the events alone do not tell.
func (r *Record) applied(m *fsm.Machine, e *Effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := e.At + historyBegin
	for _, ev := range e.Events {
		switch ev.Kind {
		case fsm.EvAttached:
			if s, alive := m.Session(ev.Session); alive && r.sessions[ev.Session] == nil {
				is := &recorded{Session: check.Session{
					Session: uint64(s.ID), Client: s.Label, TTL: s.TTL.Duration(), Disconnect: s.Grace != 0,
				}}
				r.sessions[s.ID], r.live[s.ID] = is, is
			}
		case fsm.EvGranted:
			if t, known := m.Ticket(ev.TicketRef); known {
				r.born[refOf(ev.TicketRef)] = t.Enqueued
			}
		}
	}
	for id, is := range r.live {
		s, alive := m.Session(id)
		switch {
		case !alive:
			delete(r.live, id)
		case s.Deadline != is.deadline:
			is.deadline, is.heard = s.Deadline, at
		}
	}
}

// call takes down that something is called; its end is written into what is returned, by done.
func (r *Record) call(op check.Op) *check.Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.ID, op.Call, op.Outcome = uint64(len(r.ops)+1), r.sim.moment(), check.Unknown
	r.ops = append(r.ops, &op)
	return &op
}

// done takes down what came back, if the caller lived to see it.
func (r *Record) done(op *check.Op, change func(*check.Op)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead[op.Client] == 0 {
		op.Return = r.sim.moment()
		change(op)
	}
}

// believes takes down that a caller has a handle.
func (r *Record) believes(h check.Hold) *check.Hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	h.From = r.sim.moment()
	r.holds = append(r.holds, &h)
	return &h
}

// believed takes down that it does not believe in it any more.
func (r *Record) believed(h *check.Hold, how check.How, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead[h.Client] == 0 && h.To == 0 {
		h.To, h.How, h.Why = r.sim.moment(), how, why
	}
}

// shares takes down that an exclusive hold counts as shared from now on.
func (r *Record) shares(h *check.Hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead[h.Client] == 0 {
		h.Downgraded = r.sim.moment()
	}
}

func (r *Record) died(label string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead[label] = r.sim.moment()
}

func (r *Record) beat(b check.Beat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest.Beats = append(r.rest.Beats, b)
}

func (r *Record) fault(f check.Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest.Faults = append(r.rest.Faults, f)
}

// write has a resource decide about a write: it takes none with a token below the greatest it saw.
func (r *Record) write(client, resource string, token uint64, shared bool) (accepted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	accepted = token >= r.resource[resource]
	if accepted && !shared {
		r.resource[resource] = token
	}
	r.rest.Writes = append(r.rest.Writes, check.Write{
		Resource: resource, Client: client, Token: token, Shared: shared, At: r.sim.moment(), Accepted: accepted,
	})
	return accepted
}

// told takes down an event that a watch told.
func (r *Record) told(ev check.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ev.At = r.sim.moment()
	r.rest.Events = append(r.rest.Events, ev)
}

// look takes down what each node shows.
func (r *Record) look() {
	for _, n := range r.sim.Members() {
		up := n.Up()
		if up == nil {
			continue
		}
		var seen check.Seen
		up.View(func(m *fsm.Machine) {
			seen = check.Seen{
				Node: n.ID, Term: m.Stamp().Term, Index: m.Stamp().Index, Time: time.Duration(m.Time()), Digest: m.Digest(),
			}
		})
		r.mu.Lock()
		if seen.At = r.sim.moment(); seen.Index != 0 {
			r.rest.Seen = append(r.rest.Seen, seen)
		}
		r.mu.Unlock()
	}
}

// atRest takes down how much each machine holds when nobody asks for anything.
func (r *Record) atRest(after bool) {
	for i, n := range r.sim.Members() {
		n.Up().View(func(m *fsm.Machine) {
			c := m.Counts()
			r.rest.Rests = append(r.rest.Rests, check.Rest{Who: r.sim.Founders()[i].Host, After: after, Counts: map[string]int64{
				"sessions": int64(c.Sessions), "locks": int64(c.Locks), "delays": int64(c.Delayed),
				"tickets": int64(c.Granted + c.Waiting),
			}})
		})
	}
}

// history is all of it. Nothing may be recorded any more.
func (r *Record) history(plan check.Plan) *check.History {
	h := &r.rest
	h.Plan = plan
	entries := r.sim.Audit.Entries()
	for _, op := range r.ops {
		if op.Outcome == check.OK && (op.Kind == check.OpLock || op.Kind == check.OpTryLock) {
			if born := r.born[op.Ref]; born != 0 && born < op.Token {
				op.Queued = appliedAt(entries, born)
			}
		}
		h.Ops = append(h.Ops, *op)
	}
	h.Ops = append(h.Ops, r.passed(entries)...)
	for _, b := range r.holds {
		h.Holds = append(h.Holds, *b)
	}
	for _, id := range slices.Sorted(maps.Keys(r.sessions)) {
		s := r.sessions[id]
		if died := r.dead[s.Client]; died != 0 {
			s.Died = max(died, s.heard) // what it had sent may be heard later
		}
		h.Sessions = append(h.Sessions, s.Session)
	}
	for _, label := range slices.Sorted(maps.Keys(r.dead)) { // also of those who died before they had a session
		if r.dead[label] < plan.End && !slices.ContainsFunc(h.Sessions, func(s check.Session) bool { return s.Client == label }) {
			h.Sessions = append(h.Sessions, check.Session{Client: label, Died: r.dead[label]})
		}
	}
	for i := range entries {
		h.Events = appendEvents(h.Events, &entries[i])
	}
	h.Stalls = append(h.Stalls, stalls(entries)...)
	return h
}

// passed are acquisitions that were granted and that no answer names. A client that learns of a grant when it
// is over, or of the end of its session, asks again under another name; and it cancels what its caller gave
// up. So each belongs to a call of its client for the same locks, which was under way, or whose outcome is
// unknown. One that belongs to none is not among them, and is found to have been asked for by nobody.
func (r *Record) passed(entries []Effect) (ops []check.Op) {
	named := map[check.Ref]bool{}
	calls := map[string][]*check.Op{}
	for _, op := range r.ops {
		if op.Kind == check.OpLock || op.Kind == check.OpTryLock {
			named[op.Ref] = true
			key := op.Client + fmt.Sprint(op.Items)
			calls[key] = append(calls[key], op)
		}
	}
	for i := range entries {
		at := entries[i].At + historyBegin
		for _, ev := range entries[i].Events {
			s := r.sessions[ev.Session]
			if ev.Kind != fsm.EvGranted || named[refOf(ev.TicketRef)] || s == nil {
				continue
			}
			for _, op := range calls[s.Client+fmt.Sprint(itemsOf(ev.Items))] {
				if op.Call < at && (op.Return == 0 || op.Return >= at || op.Outcome == check.Unknown) {
					ops = append(ops, check.Op{
						Client: op.Client, ID: uint64(len(r.ops) + len(ops) + 1), Kind: op.Kind, Ref: refOf(ev.TicketRef),
						Items: op.Items, Call: op.Call, Return: op.Return, Outcome: check.Unknown,
					})
					break
				}
			}
		}
	}
	return ops
}

// appliedAt is when an index was first applied anywhere.
func appliedAt(entries []Effect, index uint64) time.Duration {
	i, _ := slices.BinarySearchFunc(entries, index, func(e Effect, index uint64) int { return int(e.Stamp.Index) - int(index) })
	return entries[i].At + historyBegin
}

// stalls are the changes of leader, from the last that the old epoch did to the first of the new, and the
// times in which nothing was committed, though an entry leaves at least once a second: what is due then is
// done by the entry that is held up. (With one of three nodes down, raft may wait for seconds before it tries
// a second that has come back: see backoffMax.)
func stalls(entries []Effect) (all []check.Stall) {
	for i := 1; i < len(entries); i++ {
		from, to := entries[i-1].At, entries[i].At
		stall := check.Stall{Why: "no commit", From: from + historyBegin, To: to + historyBegin, Held: true}
		switch {
		case opensOffice(&entries[i]):
			stall.Why, stall.Held, stall.From = "change of leader", false, lastReading(entries, i)+historyBegin
			stall.Lost = stall.To - stall.From + time.Second
		case !isHeld(entries, i):
			continue
		}
		all = append(all, stall)
	}
	return all
}

// isHeld tells whether an entry was committed later after the one before than entries leave.
func isHeld(entries []Effect, i int) bool {
	return i > 0 && entries[i].At-entries[i-1].At >= time.Second+commitMax
}

// lastReading is when the last entry before a change of leader left at the earliest, but for the second within
// which entries leave. Two may be on their way at once: if they were held up, they left before that.
func lastReading(entries []Effect, change int) time.Duration {
	from := change - 1
	for i := from; i > max(0, change-3) && !opensOffice(&entries[i]); i-- {
		if isHeld(entries, i) {
			from = i - 1
		}
	}
	return entries[from].At
}

func appendEvents(events []check.Event, e *Effect) []check.Event {
	for _, ev := range e.Events {
		happened := happenedOf[ev.Kind]
		if happened == "" {
			continue
		}
		told := check.Event{
			Node: e.By, At: e.At + historyBegin, Index: ev.Index, Happened: happened, Ref: refOf(ev.TicketRef),
			Token: ev.Token, Why: whyOf(ev.Reason), Items: itemsOf(ev.Items),
		}
		events = append(events, told)
	}
	return events
}

var happenedOf = map[fsm.EventKind]check.Happened{
	fsm.EvGranted: check.EvGranted, fsm.EvRefused: check.EvRefused, fsm.EvLost: check.EvLost,
	fsm.EvReleased: check.EvReleased, fsm.EvDowngraded: check.EvDowngraded, fsm.EvEnded: check.EvEnded,
}

// whyOf is a reason in the words that clients are told.
func whyOf(w fsm.Reason) string {
	return [...]string{
		"", "dropped", "closed", check.Expired, "disconnected", "evicted", "revoked", "held out", "waited out",
		"try failed", "deadlocked", "owner busy", "wrong kind", "too many", "restored",
	}[w]
}

func refOf(ref fsm.TicketRef) check.Ref {
	return check.Ref{Session: uint64(ref.Session), Ticket: ref.Ticket}
}

func itemsOf(items []fsm.Item) (all []check.Item) {
	for _, it := range items {
		item := check.Item{Name: it.Name, Mode: check.Exclusive}
		switch it.Mode {
		case fsm.Shared:
			item.Mode = check.Shared
		case fsm.Permits:
			item.Mode, item.Permits, item.Of = check.Permits, int(it.Permits), int(it.Limit)
		}
		all = append(all, item)
	}
	return all
}
