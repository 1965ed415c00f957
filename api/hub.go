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
// H3  The hub waits for nobody: it appends to bounded send queues, and cuts the stream of a full one.
// H4  Without an epoch here no session is attached here.
type hub struct {
	node     *raftnode.Node // set by start
	observer *Observer

	lazyWake, positionWake chan struct{} // capacity 1

	// mu guards what follows, and every send queue. It is taken under the machine's lock, so its holder
	// never reads the machine.
	mu          sync.Mutex
	leading     bool // there is an epoch here
	attached    map[session.ID]*sendQueue
	expected    map[session.ID]*expectation
	waiting     map[fsm.TicketRef][]*waiter
	touched     []*sendQueue // to be woken when the entry is told
	lazy        []*sendQueue // to be woken a little later
	bytes       int          // of all send queues that a stream adopted, with what they send
	positions   positions
	disconnects map[session.ID]*disconnect
}

// expectation is one or more streams whose Attach to one session is on its way.
type expectation struct {
	streams int
	latest  *sendQueue // of the latest attachment that was applied meanwhile
}

func newHub(observer *Observer) *hub {
	return &hub{
		observer: observer,
		lazyWake: make(chan struct{}, 1), positionWake: make(chan struct{}, 1),
		attached: make(map[session.ID]*sendQueue), expected: make(map[session.ID]*expectation),
		waiting: make(map[fsm.TicketRef][]*waiter), positions: newPositions(), disconnects: make(map[session.ID]*disconnect),
	}
}

// run flushes what is lazy and tells places, until stopping is closed. The node must be set.
func (h *hub) run(stopping <-chan struct{}) {
	lazy, place := stoppedTimer(), stoppedTimer()
	defer lazy.Stop()
	defer place.Stop()
	defer h.stopDisconnects()
	resting := false // places were told less than positionEvery ago
	for {
		select {
		case <-h.lazyWake:
			lazy.Reset(lazyWait)
		case <-lazy.C:
			h.flush()
		case <-h.positionWake:
			if !resting {
				resting = true
				place.Reset(positionFirst)
			}
		case <-place.C:
			if resting = h.sendPositions(); resting {
				place.Reset(positionEvery)
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
		if len(o.messages) > 0 || o.ack.pending {
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
	if len(h.attached)+len(h.expected)+len(h.waiting)+len(h.disconnects) == 0 {
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
	case fsm.EvSessionEnded:
		h.cancelDisconnect(e.Session)
		if o := h.attached[e.Session]; o != nil {
			o.enqueue(message{kind: messageSessionEnded, state: fsm.TicketState{Reason: e.Reason}, text: e.Text})
			h.end(o, nil)
		}
	case fsm.EvQueueChanged:
		if h.positions.queueMoved(e.Text) {
			signal(h.positionWake)
		}
	default:
		state, ok := eventState(e)
		if !ok {
			return
		}
		if h.positions.granted(e.Items) {
			signal(h.positionWake)
		}
		if o := h.attached[e.Session]; o != nil {
			o.change(e, state)
			h.positions.cancel(o, e.Ticket)
		}
		if len(h.waiting) > 0 && e.Kind != fsm.EvDowngraded {
			h.resolve(e.TicketRef, waitResult{state: state, index: e.Index})
		}
	}
}

// attach makes the expected stream the session's, if there is one, and ends the one before.
func (h *hub) attach(m *fsm.Machine, e *fsm.Event) {
	h.cancelDisconnect(e.Session)
	if old := h.attached[e.Session]; old != nil {
		h.end(old, streamEnded(zamokpb.Code_CODE_SUPERSEDED, "a newer stream of session %d took over", e.Session))
	}
	exp := h.expected[e.Session]
	if exp == nil || !h.leading {
		return
	}
	s, _ := m.Session(e.Session) // not there if it ended later in the same entry
	o := newSendQueue(h, e.Session, s.Grace, e.Index)
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

// attachApplied takes one stream off an expectation. The caller holds the lock.
func (h *hub) attachApplied(id session.ID) *sendQueue {
	exp := h.expected[id]
	if exp.streams--; exp.streams == 0 {
		delete(h.expected, id)
	}
	return exp.latest
}

// adopt hands the send queue of an attachment to its stream, which leaves it in the end. The answer of the
// Attach is the proof in its SessionState.
func (h *hub) adopt(id session.ID, sent []byte, a raftnode.Answer) (*sendQueue, *failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.attachApplied(id)
	switch {
	case o == nil || o.attachment < a.Result.Index:
		return nil, streamEnded(zamokpb.Code_CODE_NOT_LEADER, "this node's leadership ended meanwhile; attach anew")
	case o.attachment > a.Result.Index:
		return nil, streamEnded(zamokpb.Code_CODE_SUPERSEDED, "a newer stream of session %d took over", id)
	case o.ended && o.reason != nil:
		return nil, o.reason
	}
	o.adopted = true
	o.sendState(sent, a)
	return o, nil
}

// abandonAttach says that an expected stream does not come.
func (h *hub) abandonAttach(id session.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o := h.attachApplied(id); o != nil && !o.adopted && h.expected[id] == nil && h.attached[id] == o {
		delete(h.attached, id)
	}
}

// leave says that a stream is over: nothing is queued for it any more.
func (h *hub) leave(o *sendQueue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(o, nil)
	o.empty()
}

// end ends a stream when it has told what is queued; a slow one at once. why nil: cleanly. The
// caller holds the lock.
func (h *hub) end(o *sendQueue, reason *failure) {
	if o.ended {
		return
	}
	o.ended, o.reason = true, reason
	close(o.done)
	signal(o.wake)
	h.positions.disconnected(o)
	if h.attached[o.session] == o {
		delete(h.attached, o.session)
	}
}

// streamEnded says why a stream ends. What was on its way then may have been done or not.
func streamEnded(code zamokpb.Code, format string, args ...any) *failure {
	f := fail(code, format, args...)
	f.info.Outcome = zamokpb.Outcome_OUTCOME_UNKNOWN
	return f
}

// setLeading is told when an epoch opens here and when it ends. In an ended one nobody is served.
func (h *hub) setLeading(open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leading = open
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

func (h *hub) endAll(reason string) {
	for _, o := range h.attached {
		h.end(o, streamEnded(zamokpb.Code_CODE_NOT_LEADER, "%s; attach to the leader", reason))
	}
	for _, exp := range h.expected {
		exp.latest = nil
	}
	for ref := range h.waiting {
		h.resolve(ref, waitResult{failure: streamEnded(zamokpb.Code_CODE_NOT_LEADER, "%s; ask the leader for the same ticket", reason)})
	}
	for id := range h.disconnects {
		h.cancelDisconnect(id)
	}
	h.positions = newPositions()
}
