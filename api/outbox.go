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
	outboxNotesMax = 4 * fsm.TicketsMax
	outboxBytesMax = 3 << 20 // below what gRPC clients take in one frame
	// outboxesBytesMax bounds all of a node's outboxes, with the frames that are being sent: a stream may have no
	// more than is left of it. So many streams that are not read leave each other little, and nothing is taken
	// from one that is.
	outboxesBytesMax = 128 << 20
	// sendingBytesMin is from where on a frame counts until it is sent: less than what gRPC keeps for a stream itself.
	sendingBytesMin = 16 << 10
	// notesKept is how much of a list of notes is kept for the next ones: a stream at rest is small.
	notesKept = 16
)

// note is a message to a client before it is one.
type note struct {
	kind noteKind
	// downgraded of a change; urge of an answer: its asker wants to know the place in the queue.
	downgraded, urge bool
	command          zamokpb.Command // of an answer
	ahead            uint32          // of a place; of contention: how many wait
	state            fsm.TicketState // of a change, an answer, a place; Why of an end
	index            uint64          // of a change
	number           uint64          // of a change, among those of its stream
	text             string          // of a change or an end; the lock's name of a place
	failure          *failure        // of an answer
	blockers         []*zamokpb.Blocker
	welcome          *zamokpb.Welcome
}

type noteKind uint8

const (
	noteWelcome noteKind = 1 + iota
	noteChange
	noteAnswer
	notePlace
	noteContended
	noteEnded
)

// noteBytes is about what a note costs, beside its texts.
const noteBytes = 160

// blockerBytes is what describe may add to a blocker.
const blockerBytes = fsm.LabelBytesMax + blockerMetadataMax

func (n *note) size() int {
	bytes := noteBytes + len(n.text)
	if n.failure != nil {
		bytes += proto.Size(n.failure.info) + blockerBytes*len(n.failure.info.Blockers)
	}
	if n.welcome != nil {
		bytes += proto.Size(n.welcome)
	}
	for _, b := range n.blockers {
		bytes += noteBytes + len(b.Name) + len(b.Owner) + len(b.Label) + len(b.Metadata)
	}
	return bytes
}

// proof is a proof of life that waits to be told.
type proof struct {
	pending bool
	frame   uint64 // the number of the client's frame that it proves; 0 = none yet
	sent    []byte
	time    clock.Time
}

// outbox is what an attachment's stream has not told yet. The hub's lock guards it.
type outbox struct {
	hub        *hub
	session    session.ID
	grace      clock.Span
	attachment uint64

	wake  chan struct{} // capacity 1: there is something to take
	ended chan struct{} // closed when over

	tickets []fsm.TicketState // for the Welcome, until it is adopted
	adopted bool
	notes   []note
	bytes   int       // of notes
	sending int       // of the frame that is being sent, if it is large
	queued  time.Time // when the first of notes was, if an observer wants to know
	proof   proof
	changed uint64 // the index of the last change that was put in
	changes uint64 // how many were put in
	over    bool   // nothing comes any more
	why     *failure
	touched bool // stands in hub.touched
	lazy    bool // stands in hub.lazy
	// contended is what the holders among the tickets were told; nil until one is.
	contended map[uint64]uint32
	// since is when tickets were asked for that are not granted yet, if an observer wants to know.
	since map[uint64]time.Time
	asked map[uint64]struct{} // the tickets that want to know their places; nil until one does
}

func newOutbox(h *hub, id session.ID, grace clock.Span, attachment uint64) *outbox {
	return &outbox{
		hub: h, session: id, grace: grace, attachment: attachment,
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// greet puts the Welcome before everything else, now that its proof is there.
func (o *outbox) greet(sent []byte, a raftnode.Answer) {
	w := &zamokpb.Welcome{
		Session: uint64(o.session), Attachment: o.attachment, Ttl: int64(a.Result.TTL), Sent: sent, Time: int64(a.Time),
	}
	all := make([]zamokpb.TicketState, len(o.tickets))
	w.Tickets = make([]*zamokpb.TicketState, len(all))
	for i, t := range o.tickets {
		setTicketState(&all[i], t)
		w.Tickets[i] = &all[i]
	}
	o.tickets = nil
	first := note{kind: noteWelcome, welcome: w}
	o.notes = append([]note{first}, o.notes...)
	o.bytes += first.size()
	o.hub.bytes += o.bytes
	signal(o.wake)
}

// change puts in what happened to a ticket, in the course of an entry.
func (o *outbox) change(e *fsm.Event, state fsm.TicketState) {
	o.changed = e.Index
	o.changes++
	if state.State == fsm.Ended {
		delete(o.contended, e.Ticket)
	}
	if began, ok := o.since[e.Ticket]; ok {
		delete(o.since, e.Ticket)
		if state.State == fsm.Granted {
			o.hub.observer.waited(e.Items, time.Since(began))
		}
	}
	o.put(note{
		kind: noteChange, state: state, index: e.Index, number: o.changes, text: e.Text, downgraded: e.Kind == fsm.EvDowngraded,
	})
}

// put queues a note and has its stream woken at the end of the entry.
func (o *outbox) put(n note) {
	if o.add(n) && !o.touched {
		o.touched = true
		o.hub.touched = append(o.hub.touched, o)
	}
}

// add queues a note; false: the stream is over, perhaps because of it.
func (o *outbox) add(n note) bool {
	if o.over {
		return false
	}
	size := n.size()
	room := min(outboxBytesMax, outboxesBytesMax-o.hub.bytes)
	if len(o.notes) >= outboxNotesMax || o.bytes+o.sending+size > room {
		o.empty()
		o.hub.end(o, over(zamokpb.Code_CODE_SLOW, "the stream was cut: more than %d messages or %d bytes waited for its reader; attach anew",
			outboxNotesMax, room))
		return false
	}
	if o.bytes += size; o.adopted {
		o.hub.bytes += size
	}
	if len(o.notes) == 0 && o.hub.observer.Pushed != nil {
		o.queued = time.Now()
	}
	o.notes = append(o.notes, n)
	return true
}

// empty forgets what is queued.
func (o *outbox) empty() {
	if o.adopted {
		o.hub.bytes -= o.bytes
	}
	o.notes, o.bytes = nil, 0
}

// laterOn has the stream woken soon, for what nobody waits for.
func (o *outbox) laterOn() {
	if o.over || o.lazy {
		return
	}
	o.lazy = true
	if o.hub.lazy = append(o.hub.lazy, o); len(o.hub.lazy) == 1 {
		signal(o.hub.lazyWake)
	}
}

// asks notes when a ticket was asked for.
func (o *outbox) asks(ticket uint64) {
	if o.hub.observer.Waited == nil {
		return
	}
	now := time.Now()
	o.hub.mu.Lock()
	defer o.hub.mu.Unlock()
	if o.since == nil {
		o.since = make(map[uint64]time.Time)
	}
	if _, again := o.since[ticket]; !again {
		o.since[ticket] = now
	}
}

// prove keeps the proof that a frame gave, unless there was a newer one.
func (o *outbox) prove(f *frame, now clock.Time) {
	if f.number > o.proof.frame {
		o.proof = proof{true, f.number, f.sent, now}
		o.laterOn()
	}
}

// hint tells whether there is room for what may as well not be told.
func (o *outbox) hint() bool {
	return !o.over && len(o.notes) < outboxNotesMax/4 && o.bytes+o.sending < min(outboxBytesMax, outboxesBytesMax-o.hub.bytes)/4
}

// taken is what a stream takes out of its outbox to tell it.
type taken struct {
	notes   []note
	heard   proof  // there is one to tell if it is pending
	changes uint64 // how many changes are in notes or were told before
	over    bool   // after this the stream ends
	queued  time.Time
	large   bool // sent is to be called when it is sent
}

// take empties the outbox. room is given back: the memory of what was taken before.
func (o *outbox) take(room []note) taken {
	clear(room)
	if cap(room) > 2*notesKept { // growing rounds up
		room = nil
	}
	o.hub.mu.Lock()
	defer o.hub.mu.Unlock()
	t := taken{notes: o.notes, changes: o.changes, over: o.over, queued: o.queued}
	if o.proof.pending {
		t.heard = o.proof
		o.proof.pending, o.proof.sent = false, nil
	}
	if o.adopted && o.bytes >= sendingBytesMin {
		t.large, o.sending = true, o.bytes
		o.hub.bytes += o.sending
	}
	o.empty()
	o.notes, o.queued = room[:0], time.Time{}
	return t
}

// sent says that a large frame was sent, or will not be.
func (o *outbox) sent() {
	o.hub.mu.Lock()
	defer o.hub.mu.Unlock()
	o.hub.bytes -= o.sending
	o.sending = 0
}
