package push

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"zamok/api/metrics"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// releaseEvery is how long the hub waits before it proposes a release on disconnect again.
const releaseEvery = 100 * time.Millisecond

// Hub delivers events to the streams of the sessions that are attached here, and to the unary calls
// that wait for a ticket.
type Hub struct {
	node    Node // set by Start
	metrics *metrics.Metrics
	moved   chan struct{} // capacity 1: a queue of waiters changed

	// mu guards what follows, and every Queue. It is taken under the state machine's lock, so its
	// holder never reads the state machine.
	mu       sync.Mutex
	leading  bool
	attached map[session.ID]*Queue       // those that ended, until their streams know it, too
	waiting  map[fsm.TicketRef][]*Waiter // until each is cancelled
	// until the release on disconnect of sessions whose client broke their stream
	broken map[session.ID]*time.Timer
	// of all queues that a stream claimed, with what they are sending
	bytes int

	positions int                 // the sum of all Queue.positions
	dirty     map[string]struct{} // locks whose queue changed
}

// Node is what the hub needs of its node.
type Node interface {
	View(func(*fsm.Machine)) // reads the state machine, during which nothing is applied
	Submit(context.Context, fsm.Command, raftnode.Done)
}

// NewHub returns a hub for a node that does not lead yet.
func NewHub(metrics *metrics.Metrics) *Hub {
	return &Hub{
		metrics: metrics, moved: make(chan struct{}, 1),
		attached: make(map[session.ID]*Queue), waiting: make(map[fsm.TicketRef][]*Waiter),
		broken: make(map[session.ID]*time.Timer), dirty: make(map[string]struct{}),
	}
}

// Start gives the hub its node, before the first stream.
func (h *Hub) Start(node Node) { h.node = node }

// Run sends queue positions until stopping is closed: positionFirst after a queue changed, and then
// every positionEvery until none has changed.
func (h *Hub) Run(stopping <-chan struct{}) {
	timer := time.NewTimer(positionFirst)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-stopping:
			return
		}
		interval := positionEvery
		if !h.sendPositions() {
			interval = positionFirst
			select {
			case <-h.moved:
			case <-stopping:
				return
			}
		}
		timer.Reset(interval)
	}
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// Applied delivers the events of an entry. It runs under the state machine's lock.
func (h *Hub) Applied(m *fsm.Machine, a fsm.Applied) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := 0; i < len(a.Events) && h.leading; i++ {
		h.event(m, &a.Events[i])
	}
}

func (h *Hub) event(m *fsm.Machine, e *fsm.Event) {
	switch e.Kind {
	case fsm.EvAttached:
		h.cancelRelease(e.Session)
		h.attach(m, e)
	case fsm.EvSessionEnded:
		h.cancelRelease(e.Session)
		if q := h.attached[e.Session]; q != nil {
			q.add(&zamokpb.ServerMessage{
				Message: &zamokpb.ServerMessage_SessionEnded{SessionEnded: &zamokpb.SessionEnded{
					Reason: zamokpb.Reason(e.Reason), Text: e.Text,
				}}}, true)
			h.end(q, nil)
		}
	case fsm.EvQueueChanged:
		if len(h.attached) > 0 {
			h.queueMoved(e.Lock)
		}
	default:
		state, ok := wire.EventState(e)
		if !ok {
			return
		}
		h.holdersChanged(m, e.Items)
		if q := h.attached[e.Session]; q != nil {
			q.change(e, state)
			h.cancelRequest(q, e.Ticket)
		}
		if len(h.waiting) > 0 && e.Kind != fsm.EvDowngraded {
			h.resolve(e.TicketRef, Waited{State: state})
		}
	}
}

// attach gives a session the queue of its new stream, and ends the one before. While this node
// leads, each attachment that is applied was proposed by a stream here: an epoch begins when all
// entries of earlier ones are applied. Should the stream never claim the queue, because leadership
// was lost before the answer, the end of the epoch removes it.
func (h *Hub) attach(m *fsm.Machine, e *fsm.Event) {
	if old := h.attached[e.Session]; old != nil {
		h.end(old, superseded(e.Session))
	}
	// The first message, to which Claim adds the rest.
	state := &zamokpb.SessionState{Tickets: wire.Each(e.Tickets, wire.TicketState)}
	first := &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Session{Session: state}}
	s, _ := m.Session(e.Session) // absent if it ended later in the same entry
	wake := make(chan struct{}, 1)
	h.attached[e.Session] = &Queue{
		Session: e.Session, ReleaseOnDisconnect: s.ReleaseOnDisconnect, number: e.Index, hub: h,
		wake: wake, done: make(chan struct{}),
		state: state, messages: []*zamokpb.ServerMessage{first}, bytes: size(first),
		queued: time.Now(),
		// the first time for nothing
		flushTimer:  time.AfterFunc(lazyWait, func() { signal(wake) }),
		waitersSent: make(map[uint64]uint32), requested: make(map[uint64]time.Time),
		positions: make(map[uint64]*positionRequest),
	}
}

func superseded(id session.ID) *wire.Error {
	return wire.StreamEnded(zamokpb.Code_CODE_SUPERSEDED,
		"a newer stream of session %d took over", id)
}

// Claim returns the queue of an attachment to its stream, which calls Leave in the end. Its first
// message is state, to which the hub adds the tickets.
func (h *Hub) Claim(state *zamokpb.SessionState) (*Queue, *wire.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := session.ID(state.Session)
	q := h.attached[id]
	switch {
	case q == nil || q.number < state.Attachment:
		return nil, wire.StreamEnded(zamokpb.Code_CODE_NOT_LEADER,
			"this node's leadership ended meanwhile; attach anew")
	case q.number > state.Attachment:
		return nil, superseded(id)
	case q.ended:
		delete(h.attached, id)
	}
	if q.reason != nil {
		return nil, q.reason
	}
	state.Tickets = q.state.Tickets
	q.messages[0].Message = &zamokpb.ServerMessage_Session{Session: state}
	q.state = nil
	h.bytes += q.bytes
	signal(q.wake)
	return q, nil
}

// Leave ends a stream: nothing is queued for it any more.
func (h *Hub) Leave(q *Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(q, nil)
	q.clear()
}

// end ends a stream after what is queued was sent; that of a slow reader at once. With reason nil
// it ends without an error. The caller holds the lock.
func (h *Hub) end(q *Queue, reason *wire.Error) {
	if q.ended {
		return
	}
	q.ended, q.reason = true, reason
	close(q.done)
	signal(q.wake)
	h.positions -= len(q.positions)
	clear(q.positions)
	if q.claimed() && h.attached[q.Session] == q {
		delete(h.attached, q.Session)
	}
}

// Broken schedules the release on disconnect of the session of a queue, whose client broke its
// stream. When the session's span has passed without a new attachment, the hub proposes the
// release, and again while that was certainly not done. A renewal from now on makes the command
// harmless: its index is higher.
func (h *Hub) Broken(q *Queue) {
	h.node.View(func(m *fsm.Machine) {
		h.mu.Lock()
		defer h.mu.Unlock()
		id := q.Session
		if s, _ := m.Session(id); s.Attachment != q.number || !h.leading {
			return // another stream has the session, or it has ended
		}
		command := &fsm.ReleaseOnDisconnect{Session: id, Attachment: q.number,
			Index: m.Stamp().Index}
		var timer *time.Timer // with the hub's lock, as broken
		timer = time.AfterFunc(q.ReleaseOnDisconnect.Duration(), func() {
			h.node.Submit(context.Background(), command, func(_ raftnode.Answer, err error) {
				h.mu.Lock()
				defer h.mu.Unlock()
				switch {
				case h.broken[id] != timer:
				case err != nil && !errors.Is(err, raftnode.ErrUnknown):
					timer.Reset(releaseEvery)
				default:
					delete(h.broken, id)
				}
			})
		})
		h.broken[id] = timer
	})
}

// cancelRelease cancels the scheduled release of a session. The caller holds the lock.
func (h *Hub) cancelRelease(id session.ID) {
	if timer := h.broken[id]; timer != nil {
		timer.Stop()
		delete(h.broken, id)
	}
}

// SetLeading is called when this node begins and ends to lead, and with false when it ends. Streams
// are served only while it leads; the next leader notices the breaks of its own streams.
func (h *Hub) SetLeading(leading bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leading = leading
	if !leading {
		h.endAll("this node's leadership ended")
	}
}

// Restored is called when a snapshot replaced the state: the events in between are not known.
func (h *Hub) Restored(*fsm.Machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endAll("this node took over a snapshot of another")
}

func (h *Hub) endAll(reason string) {
	for _, q := range h.attached {
		h.end(q, wire.StreamEnded(zamokpb.Code_CODE_NOT_LEADER, "%s; attach to the leader", reason))
	}
	clear(h.attached)
	for ref := range h.waiting {
		h.resolve(ref,
			Waited{Err: wire.StreamEnded(zamokpb.Code_CODE_NOT_LEADER,
				"%s; request the same ticket from the leader", reason)})
	}
	for id := range h.broken {
		h.cancelRelease(id)
	}
	h.dirty = make(map[string]struct{})
}

// Counts is how many clients the hub serves.
type Counts struct {
	Streams   int // attached
	Calls     int // unary calls that wait for a ticket
	Positions int // waiting tickets whose clients want their positions
	Broken    int // sessions whose release on disconnect is scheduled
}

// Counts counts the clients.
func (h *Hub) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := Counts{Streams: len(h.attached), Positions: h.positions, Broken: len(h.broken)}
	for _, calls := range h.waiting {
		c.Calls += len(calls)
	}
	return c
}

// Waiter is a unary call that waits until a ticket is granted or ended.
type Waiter struct {
	ref  fsm.TicketRef
	hub  *Hub
	done chan Waited // capacity 1
	// another call for the ticket was answered, or may have been; guarded by hub.mu
	answered bool
}

// Waited is what a call waited for: a ticket that was granted or ended, or why it can't be waited
// for here any more.
type Waited struct {
	State fsm.TicketState
	Err   *wire.Error
}

// Await registers a call, before its Acquire is proposed: the event comes before the answer. It is
// called under the state machine's lock, with whether the ticket is granted already: then a call
// before this one may have been answered. Only the leader knows that. Answered or Cancel follows,
// also after the end of the wait.
func (h *Hub) Await(ref fsm.TicketRef, granted bool) *Waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &Waiter{ref: ref, hub: h, done: make(chan Waited, 1), answered: granted || !h.leading}
	h.waiting[ref] = append(h.waiting[ref], w)
	return w
}

// Done receives the end of the wait.
func (w *Waiter) Done() <-chan Waited { return w.done }

// IsOnly reports whether the ticket belongs to this call alone: no other call for it is here, and
// none was answered. Else its client has the answer of another call, or waits for it, in whatever
// order the calls arrived.
func (w *Waiter) IsOnly() bool {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return !w.answered && len(w.hub.waiting[w.ref]) == 1
}

// Answered removes a call whose client has the ticket now. The other calls for it must not end it
// any more.
func (w *Waiter) Answered() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.remove()
	for _, other := range w.hub.waiting[w.ref] {
		other.answered = true
	}
}

// Cancel removes a call that needs no result.
func (w *Waiter) Cancel() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.remove()
}

// remove removes a call. The caller holds the lock.
func (w *Waiter) remove() {
	list := slices.DeleteFunc(w.hub.waiting[w.ref], func(other *Waiter) bool { return other == w })
	if w.hub.waiting[w.ref] = list; len(list) == 0 {
		delete(w.hub.waiting, w.ref)
	}
}

// resolve ends the waits for a ticket that have not ended yet. The caller holds the lock.
func (h *Hub) resolve(ref fsm.TicketRef, end Waited) {
	for _, w := range h.waiting[ref] {
		select {
		case w.done <- end:
		default:
		}
	}
}
