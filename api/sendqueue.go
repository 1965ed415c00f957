package api

import (
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// What a stream may have waiting for its reader. Everything that a session has in hand can end in one
// entry, and its repeated commands be answered beside that; a reader further behind than twice as
// much is slow.
const (
	queueMessagesMax = 4 * fsm.TicketsMax
	queueBytesMax    = 3 << 20 // below what gRPC clients take in one frame
	// queuesBytesMax bounds all of a node's send queues, with the frames that are being sent: a stream may have no
	// more than is left of it. So many streams that are not read leave each other little, and nothing is taken
	// from one that is.
	queuesBytesMax = 128 << 20
	// sendingBytesMin is from where on a frame counts until it is sent: less than what gRPC keeps for a stream itself.
	sendingBytesMin = 16 << 10
	// messagesKept is how much of a list of notes is kept for the next ones: a stream at rest is small.
	messagesKept = 16
)

// message is a message to a client before it is one.
type message struct {
	kind messageKind
	// downgraded of a change; urge of an answer: its asker wants to know the place in the queue.
	downgraded, urgent bool
	command            zamokpb.Command // of an answer
	ahead              uint32          // of a place; of contention: how many wait
	state              fsm.TicketState // of a change, an answer, a place; Why of an end
	index              uint64          // of a change
	number             uint64          // of a change, among those of its stream
	text               string          // of a change or an end; the lock's name of a place
	failure            *failure        // of an answer
	blockers           []*zamokpb.Blocker
	sessionState       *zamokpb.SessionState
}

type messageKind uint8

const (
	messageSessionState messageKind = 1 + iota
	messageChange
	messageAnswer
	messagePosition
	messageContended
	messageSessionEnded
)

// messageBytes is about what a note costs, beside its texts.
const messageBytes = 160

// blockerBytes is what describe may add to a blocker.
const blockerBytes = fsm.LabelBytesMax + blockerMetadataMax

func (n *message) size() int {
	bytes := messageBytes + len(n.text)
	if n.failure != nil {
		bytes += proto.Size(n.failure.info) + blockerBytes*len(n.failure.info.Blockers)
	}
	if n.sessionState != nil {
		bytes += proto.Size(n.sessionState)
	}
	for _, b := range n.blockers {
		bytes += messageBytes + len(b.Name) + len(b.Owner) + len(b.Label) + len(b.Metadata)
	}
	return bytes
}

// pendingAck is a proof of life that waits to be told.
type pendingAck struct {
	pending bool
	frame   uint64 // the number of the client's frame that it proves; 0 = none yet
	sent    []byte
	time    clock.Time
}

// sendQueue is what an attachment's stream has not told yet. The hub's lock guards it.
type sendQueue struct {
	hub        *hub
	session    session.ID
	grace      clock.Span
	attachment uint64

	wake chan struct{} // capacity 1: there is something to take
	done chan struct{} // closed when over

	tickets  []fsm.TicketState // for the SessionState, until it is adopted
	adopted  bool
	messages []message
	bytes    int       // of notes
	sending  int       // of the frame that is being sent, if it is large
	queued   time.Time // when the first of notes was, if an observer wants to know
	ack      pendingAck
	changed  uint64 // the index of the last change that was put in
	changes  uint64 // how many were put in
	ended    bool   // nothing comes any more
	reason   *failure
	touched  bool // stands in hub.touched
	lazy     bool // stands in hub.lazy
	// contended is what the holders among the tickets were told; nil until one is.
	contended map[uint64]uint32
	// waitingSince is when tickets were asked for that are not granted yet, if an observer wants to know.
	waitingSince   map[uint64]time.Time
	positionWanted map[uint64]struct{} // the tickets that want to know their places; nil until one does
}

func newSendQueue(h *hub, id session.ID, grace clock.Span, attachment uint64) *sendQueue {
	return &sendQueue{
		hub: h, session: id, grace: grace, attachment: attachment,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// sendState puts the SessionState before everything else, now that its proof is there.
func (o *sendQueue) sendState(sent []byte, a raftnode.Answer) {
	w := &zamokpb.SessionState{
		Session: uint64(o.session), Attachment: o.attachment, Ttl: int64(a.Result.TTL), Sent: sent, Time: int64(a.Time),
	}
	all := make([]zamokpb.TicketState, len(o.tickets))
	w.Tickets = make([]*zamokpb.TicketState, len(all))
	for i, t := range o.tickets {
		setTicketState(&all[i], t)
		w.Tickets[i] = &all[i]
	}
	o.tickets = nil
	first := message{kind: messageSessionState, sessionState: w}
	o.messages = append([]message{first}, o.messages...)
	o.bytes += first.size()
	o.hub.bytes += o.bytes
	signal(o.wake)
}

// change puts in what happened to a ticket, in the course of an entry.
func (o *sendQueue) change(e *fsm.Event, state fsm.TicketState) {
	o.changed = e.Index
	o.changes++
	if state.State == fsm.Ended {
		delete(o.contended, e.Ticket)
	}
	if began, ok := o.waitingSince[e.Ticket]; ok {
		delete(o.waitingSince, e.Ticket)
		if state.State == fsm.Granted {
			o.hub.observer.waited(e.Items, time.Since(began))
		}
	}
	o.enqueue(message{
		kind: messageChange, state: state, index: e.Index, number: o.changes, text: e.Text, downgraded: e.Kind == fsm.EvDowngraded,
	})
}

// enqueue queues a note and has its stream woken at the end of the entry.
func (o *sendQueue) enqueue(n message) {
	if o.add(n) && !o.touched {
		o.touched = true
		o.hub.touched = append(o.hub.touched, o)
	}
}

// add queues a note; false: the stream is over, perhaps because of it.
func (o *sendQueue) add(n message) bool {
	if o.ended {
		return false
	}
	size := n.size()
	room := min(queueBytesMax, queuesBytesMax-o.hub.bytes)
	if len(o.messages) >= queueMessagesMax || o.bytes+o.sending+size > room {
		o.empty()
		o.hub.end(o, streamEnded(zamokpb.Code_CODE_SLOW_READER, "the stream was cut: more than %d messages or %d bytes waited for its reader; attach anew",
			queueMessagesMax, room))
		return false
	}
	if o.bytes += size; o.adopted {
		o.hub.bytes += size
	}
	if len(o.messages) == 0 && o.hub.observer.Pushed != nil {
		o.queued = time.Now()
	}
	o.messages = append(o.messages, n)
	return true
}

// empty forgets what is queued.
func (o *sendQueue) empty() {
	if o.adopted {
		o.hub.bytes -= o.bytes
	}
	o.messages, o.bytes = nil, 0
}

// flushLater has the stream woken soon, for what nobody waits for.
func (o *sendQueue) flushLater() {
	if o.ended || o.lazy {
		return
	}
	o.lazy = true
	if o.hub.lazy = append(o.hub.lazy, o); len(o.hub.lazy) == 1 {
		signal(o.hub.lazyWake)
	}
}

// wantsPosition notes when a ticket was asked for.
func (o *sendQueue) wantsPosition(ticket uint64) {
	if o.hub.observer.Waited == nil {
		return
	}
	now := time.Now()
	o.hub.mu.Lock()
	defer o.hub.mu.Unlock()
	if o.waitingSince == nil {
		o.waitingSince = make(map[uint64]time.Time)
	}
	if _, again := o.waitingSince[ticket]; !again {
		o.waitingSince[ticket] = now
	}
}

// acknowledge keeps the proof that a frame gave, unless there was a newer one.
func (o *sendQueue) acknowledge(f *frame, now clock.Time) {
	if f.number > o.ack.frame {
		o.ack = pendingAck{true, f.number, f.sent, now}
		o.flushLater()
	}
}

// hint reports whether there is room for what may as well not be told.
func (o *sendQueue) hint() bool {
	return !o.ended && len(o.messages) < queueMessagesMax/4 && o.bytes+o.sending < min(queueBytesMax, queuesBytesMax-o.hub.bytes)/4
}

// drained is what a stream takes out of its send queue to tell it.
type drained struct {
	messages []message
	ack      pendingAck // there is one to tell if it is pending
	changes  uint64     // how many changes are in notes or were told before
	ended    bool       // after this the stream ends
	queued   time.Time
	large    bool // sent is to be called when it is sent
}

// take empties the send queue. room is given back: the memory of what was taken before.
func (o *sendQueue) take(room []message) drained {
	clear(room)
	if cap(room) > 2*messagesKept { // growing rounds up
		room = nil
	}
	o.hub.mu.Lock()
	defer o.hub.mu.Unlock()
	t := drained{messages: o.messages, changes: o.changes, ended: o.ended, queued: o.queued}
	if o.ack.pending {
		t.ack = o.ack
		o.ack.pending, o.ack.sent = false, nil
	}
	if o.adopted && o.bytes >= sendingBytesMin {
		t.large, o.sending = true, o.bytes
		o.hub.bytes += o.sending
	}
	o.empty()
	o.messages, o.queued = room[:0], time.Time{}
	return t
}

// sent says that a large frame was sent, or will not be.
func (o *sendQueue) sent() {
	o.hub.mu.Lock()
	defer o.hub.mu.Unlock()
	o.hub.bytes -= o.sending
	o.sending = 0
}
