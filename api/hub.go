package api

import (
	"sync"
	"time"

	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// lazyWait is how long a proof of life, or an answer that nobody waits for, may stay for company.
const lazyWait = 10 * time.Millisecond

// hub carries what the machine tells to the streams of the sessions that are attached here, and to the
// unary calls that wait for a ticket.
//
// H1  A session has at most one stream here, and that is the one of its latest attachment: it becomes
//
//	so at the EvAttached event, between the events before and those after it.
//
// H2  On one stream everything of its session is told, in the machine's order, or the stream ends.
// H3  The hub waits for nobody: it appends to bounded outboxes, and cuts the stream of a full one.
// H4  Without an office here no session is attached here.
type hub struct {
	node     *raftnode.Node // set by start
	observer *Observer

	lazyWake, placeWake chan struct{} // capacity 1

	// mu guards what follows, and every outbox. It is taken under the machine's lock, so whoever has
	// it never reads the machine.
	mu       sync.Mutex
	open     bool // there is an office here
	attached map[session.ID]*outbox
	expected map[session.ID]*expectation
	awaited  map[fsm.TicketRef][]*awaited
	touched  []*outbox // to be woken when the entry is told
	lazy     []*outbox // to be woken a little later
	bytes    int       // of all outboxes that a stream adopted, with what they send
	places   places
	breaks   map[session.ID]*disconnect
}

// expectation is one or more streams whose Attach to one session is on its way.
type expectation struct {
	streams int
	latest  *outbox // of the latest attachment that was applied meanwhile
}

func newHub(observer *Observer) *hub {
	return &hub{
		observer: observer,
		lazyWake: make(chan struct{}, 1), placeWake: make(chan struct{}, 1),
		attached: make(map[session.ID]*outbox), expected: make(map[session.ID]*expectation),
		awaited: make(map[fsm.TicketRef][]*awaited), places: newPlaces(), breaks: make(map[session.ID]*disconnect),
	}
}

// run flushes what is lazy and tells places, until stopping is closed. The node must be set.
func (h *hub) run(stopping <-chan struct{}) {
	lazy, place := stoppedTimer(), stoppedTimer()
	defer lazy.Stop()
	defer place.Stop()
	defer h.stopBreaks()
	resting := false // places were told less than placeEvery ago
	for {
		select {
		case <-h.lazyWake:
			lazy.Reset(lazyWait)
		case <-lazy.C:
			h.flush()
		case <-h.placeWake:
			if !resting {
				resting = true
				place.Reset(placeFirst)
			}
		case <-place.C:
			if resting = h.tellPlaces(); resting {
				place.Reset(placeEvery)
			}
		case <-stopping:
			return
		}
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// flush wakes every stream that something lazy waits for.
func (h *hub) flush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.lazy {
		o.lazy = false
		if len(o.notes) > 0 || o.proof.pending {
			signal(o.wake)
		}
	}
	clear(h.lazy)
	h.lazy = h.lazy[:0]
}

// applied tells an entry's events. It runs under the machine's lock.
func (h *hub) applied(m *fsm.Machine, a fsm.Applied) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.attached)+len(h.expected)+len(h.awaited)+len(h.breaks) == 0 {
		return
	}
	for i := range a.Events {
		h.event(m, &a.Events[i])
	}
	h.wakeTouched()
}

// wakeTouched wakes the streams that got something. The caller holds the lock.
func (h *hub) wakeTouched() {
	for _, o := range h.touched {
		o.touched = false
		signal(o.wake)
	}
	clear(h.touched)
	h.touched = h.touched[:0]
}

func (h *hub) event(m *fsm.Machine, e *fsm.Event) {
	switch e.Kind {
	case fsm.EvAttached:
		h.attach(m, e)
	case fsm.EvEnded:
		h.disarm(e.Session)
		if o := h.attached[e.Session]; o != nil {
			o.put(note{kind: noteEnded, state: fsm.TicketState{Reason: e.Reason}, text: e.Text})
			h.end(o, nil)
		}
	case fsm.EvQueueMoved:
		if h.places.moved(e.Text) {
			signal(h.placeWake)
		}
	default:
		state, ok := eventState(e)
		if !ok {
			return
		}
		if h.places.held(e.Items) {
			signal(h.placeWake)
		}
		if o := h.attached[e.Session]; o != nil {
			o.change(e, state)
			h.places.forget(o, e.Ticket)
		}
		if len(h.awaited) > 0 && e.Kind != fsm.EvDowngraded {
			h.resolve(e.TicketRef, awaitedEnd{state: state, index: e.Index})
		}
	}
}

// attach makes the expected stream the session's, if there is one, and ends the one before.
func (h *hub) attach(m *fsm.Machine, e *fsm.Event) {
	h.disarm(e.Session)
	if old := h.attached[e.Session]; old != nil {
		h.end(old, over(zamokpb.Code_CODE_SUPERSEDED, "a newer stream of session %d took over", e.Session))
	}
	exp := h.expected[e.Session]
	if exp == nil || !h.open {
		return
	}
	s, _ := m.Session(e.Session) // not there if it ended later in the same entry
	o := newOutbox(h, e.Session, s.Grace, e.Index)
	o.tickets = e.Tickets
	exp.latest = o
	h.attached[e.Session] = o
}

// expect announces a stream whose Attach is about to be submitted. Exactly one adopt or forsake
// follows.
func (h *hub) expect(id session.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	exp := h.expected[id]
	if exp == nil {
		exp = new(expectation)
		h.expected[id] = exp
	}
	exp.streams++
}

// fulfil takes one stream off an expectation. The caller holds the lock.
func (h *hub) fulfil(id session.ID) *outbox {
	exp := h.expected[id]
	if exp.streams--; exp.streams == 0 {
		delete(h.expected, id)
	}
	return exp.latest
}

// adopt hands the outbox of an attachment to its stream, which leaves it in the end. The answer of the
// Attach is the proof in its Welcome.
func (h *hub) adopt(id session.ID, sent []byte, a raftnode.Answer) (*outbox, *failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.fulfil(id)
	switch {
	case o == nil || o.attachment < a.Result.Index:
		return nil, over(zamokpb.Code_CODE_NOT_LEADER, "this node's leadership ended meanwhile; attach anew")
	case o.attachment > a.Result.Index:
		return nil, over(zamokpb.Code_CODE_SUPERSEDED, "a newer stream of session %d took over", id)
	case o.over && o.why != nil:
		return nil, o.why
	}
	o.adopted = true
	o.greet(sent, a)
	return o, nil
}

// forsake says that an expected stream does not come.
func (h *hub) forsake(id session.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o := h.fulfil(id); o != nil && !o.adopted && h.expected[id] == nil && h.attached[id] == o {
		delete(h.attached, id)
	}
}

// leave says that a stream is over: nothing is queued for it any more.
func (h *hub) leave(o *outbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(o, nil)
	o.empty()
}

// end ends a stream when it has told what is queued; a slow one at once. why nil: in good order. The
// caller holds the lock.
func (h *hub) end(o *outbox, why *failure) {
	if o.over {
		return
	}
	o.over, o.why = true, why
	close(o.ended)
	signal(o.wake)
	h.places.left(o)
	if h.attached[o.session] == o {
		delete(h.attached, o.session)
	}
}

// over says why a stream ends. What was on its way then may have been done or not.
func over(code zamokpb.Code, format string, args ...any) *failure {
	f := fail(code, format, args...)
	f.info.Outcome = zamokpb.Outcome_OUTCOME_UNKNOWN
	return f
}

// office is told when an office opens here and when it ends. In an ended one nobody is served.
func (h *hub) office(open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = open
	if !open {
		h.endAll("this node's leadership ended")
	}
}

// restored is told that a snapshot replaced the machine: what happened between is not told.
func (h *hub) restored(*fsm.Machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endAll("this node took over a snapshot of another")
}

func (h *hub) endAll(why string) {
	for _, o := range h.attached {
		h.end(o, over(zamokpb.Code_CODE_NOT_LEADER, "%s; attach to the leader", why))
	}
	for _, exp := range h.expected {
		exp.latest = nil
	}
	for ref := range h.awaited {
		h.resolve(ref, awaitedEnd{failure: over(zamokpb.Code_CODE_NOT_LEADER, "%s; ask the leader for the same ticket", why)})
	}
	for id := range h.breaks {
		h.disarm(id)
	}
	h.places = newPlaces()
}
