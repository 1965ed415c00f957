package push

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

const (
	// queueMessagesMax and queueBytesMax bound what a stream has waiting for its reader. Every
	// ticket of a session can end in one entry, and its repeated commands be answered beside that;
	// a reader further behind than twice as much is slow.
	queueMessagesMax = 4 * fsm.TicketsMax
	queueBytesMax    = 15 << 18 // 3.75 MiB, below what gRPC clients accept in one frame
	// queuesBytesMax bounds all queues of a node, with the frames that are being sent: a stream may
	// have no more than is left of it. So many streams that are not read leave each other little,
	// and nothing is taken from one that is.
	queuesBytesMax = 128 << 20
	// sendingBytesMin is the size from which a frame counts until it is sent: less than what gRPC
	// keeps for a stream.
	sendingBytesMin = 16 << 10
	// messageBytes is about what a message takes in memory, beside its texts.
	messageBytes = 232
	// queueCapacity is the first capacity of a queue.
	queueCapacity = 16
	// lazyWait is how long the confirmation of a command, or an answer that no caller waits for,
	// may stay for others to share its frame: longer than a busy client takes to its next command,
	// and well below the 166 ms without a confirmation after which a client probes the stream at
	// the earliest.
	lazyWait = 50 * time.Millisecond
)

// Queue is the send queue of one attachment of a stream to a session: what its stream has not sent
// yet. The hub's lock guards it.
type Queue struct {
	Session session.ID
	// for how long the session lives on after its stream broke; 0: until its ttl
	ReleaseOnDisconnect clock.Span
	number              uint64 // the index of the event of the attachment
	hub                 *Hub

	wake chan struct{} // capacity 1: there is something to take
	done chan struct{} // closed when the stream is to end

	// the first message, until the stream claims the queue; nil since then
	state    *zamokpb.SessionState
	messages []*zamokpb.ServerMessage
	// those of messages for which the writer looks into the state machine
	lookups    []*zamokpb.Answer
	bytes      int       // of messages
	queued     time.Time // when the first of messages was
	ackDue     bool      // a confirmation was not sent yet
	ack        Frame     // of the client, that was confirmed last
	ackTime    clock.Time
	changed    uint64      // the index of the last change that was queued
	changes    uint64      // how many were queued
	ended      bool        // nothing is added any more
	reason     *wire.Error // set before done is closed, and not changed after that
	flushing   bool        // flushTimer runs
	flushTimer *time.Timer // wakes the stream after lazyWait
	// waitersSent is the number of waiters for its locks that each holder among the tickets was
	// sent last (message Contended).
	waitersSent map[uint64]uint32
	// requested is when tickets were requested that are not granted yet.
	requested map[uint64]time.Time
	// of the waiting tickets whose clients want their positions
	positions map[uint64]*positionRequest

	sending     int       // of the frame that is being sent, if it is large; set by the writer
	sendingFrom time.Time // when the first of its messages was queued; the writer's own
}

// Frame is one transmission of a client, which a confirmation refers to.
type Frame struct {
	Number  uint64 // on its stream
	Sent    []byte
	Arrived time.Time // at this node
}

// Command is a command of a stream that waits for its answer.
type Command struct {
	Kind   zamokpb.Command
	Ticket uint64
	First  bool // of an Acquire: its client says that there is no earlier transmission
	Frame  Frame
	// Positions is in the queues of how many locks the client wants its positions; 0: it wants
	// none.
	Positions int
}

// Wake has a value when there is something to take.
func (q *Queue) Wake() <-chan struct{} { return q.wake }

// Done is closed when the stream is to end.
func (q *Queue) Done() <-chan struct{} { return q.done }

// Err is, once Done is closed, why the stream ends; nil: without an error.
func (q *Queue) Err() *wire.Error { return q.reason }

// size is about what a message takes, with the details that are looked up later.
func size(m *zamokpb.ServerMessage) int {
	if c := m.GetChange(); c != nil { // nearly all are changes
		return messageBytes + len(c.Text)
	}
	return messageBytes*(1+len(m.GetPosition().GetBlockers())) +
		wire.BlockerBytesMax*len(m.GetAnswer().GetError().GetBlockers()) + proto.Size(m)
}

// change queues what happened to a ticket.
func (q *Queue) change(e *fsm.Event, state fsm.TicketState) {
	q.changed = e.Index
	q.changes++
	if state.State == fsm.Ended {
		delete(q.waitersSent, e.Ticket)
	}
	if began, ok := q.requested[e.Ticket]; ok {
		delete(q.requested, e.Ticket)
		if state.State == fsm.Granted {
			q.hub.metrics.Waited(e.Items, time.Since(began))
		}
	}
	q.add(wire.Change(e, state, q.changes), true)
}

// claimed reports whether a stream has the queue: only then its bytes count in the hub.
func (q *Queue) claimed() bool { return q.state == nil }

// add queues a message and wakes the stream, at once or in lazyWait; false: the stream ended,
// perhaps because of it.
func (q *Queue) add(m *zamokpb.ServerMessage, urgent bool) bool {
	if q.ended {
		return false
	}
	bytes := size(m)
	room := min(queueBytesMax, queuesBytesMax-q.hub.bytes)
	if len(q.messages) >= queueMessagesMax || q.bytes+q.sending+bytes > room {
		q.clear()
		q.hub.end(q, wire.StreamEnded(zamokpb.Code_CODE_SLOW_READER,
			"the stream was cut: more than %d messages or %d bytes waited for its reader; "+
				"attach anew", queueMessagesMax, room))
		return false
	}
	if q.bytes += bytes; q.claimed() {
		q.hub.bytes += bytes
	}
	if q.messages == nil {
		q.messages, q.queued = make([]*zamokpb.ServerMessage, 0, queueCapacity), time.Now()
	}
	q.messages = append(q.messages, m)
	if urgent {
		signal(q.wake)
	} else {
		q.flushLater()
	}
	return true
}

// clear drops what is queued.
func (q *Queue) clear() {
	if q.claimed() {
		q.hub.bytes -= q.bytes
	}
	q.messages, q.lookups, q.bytes = nil, nil, 0
}

// flushLater wakes the stream soon, for messages that no caller waits for.
func (q *Queue) flushLater() {
	if !q.flushing {
		q.flushing = true
		q.flushTimer.Reset(lazyWait)
	}
}

// Requested records when a ticket was first requested, for the metrics.
func (q *Queue) Requested(ticket uint64) {
	q.hub.mu.Lock()
	defer q.hub.mu.Unlock()
	if _, repeated := q.requested[ticket]; !repeated {
		q.requested[ticket] = time.Now()
	}
}

// acknowledge keeps the confirmation of a frame, unless there is one of a later frame.
func (q *Queue) acknowledge(f Frame, now clock.Time) {
	if f.Number > q.ack.Number {
		q.ackDue, q.ack, q.ackTime = true, f, now
	}
}

// Answer queues the answer of a command, with the confirmation of its frame. Its events were queued
// before: if the command made a change, that is its answer. With a refusal because this node does
// not lead, the stream ends.
func (q *Queue) Answer(c Command, a *raftnode.Answer, refusal *wire.Error) {
	q.hub.mu.Lock()
	defer q.hub.mu.Unlock()
	r := &a.Result
	if q.ended {
		return
	}
	if r.Session != 0 {
		q.acknowledge(c.Frame, a.Time)
		q.flushLater()
	}
	acquire := c.Kind == zamokpb.Command_COMMAND_ACQUIRE
	if acquire && (refusal != nil || r.State != fsm.Waiting) {
		delete(q.requested, c.Ticket)
	}
	switch {
	case refusal != nil:
	case acquire && r.State == fsm.Granted && r.Token == r.Index, !acquire && q.changed == r.Index:
		return // its Change was queued
	case c.Positions > 0 && r.State == fsm.Waiting:
		q.hub.request(q, c.Ticket, c.Positions)
	}
	m := wire.Answer(c.Kind, wire.ResultState(c.Ticket, r), refusal)
	repeated := r.State == fsm.Ended && refusal == nil // its result was sent before
	if answer := m.GetAnswer(); q.add(m, !repeated) &&
		(q.positions[c.Ticket] != nil || len(answer.Error.GetBlockers()) > 0) {
		q.lookups = append(q.lookups, answer)
	}
	q.endUnlessLeading(refusal)
}

// Refuse queues one refusal for the acquisitions of tickets that follow each other.
func (q *Queue) Refuse(first, last uint64, refusal *wire.Error) {
	q.hub.mu.Lock()
	defer q.hub.mu.Unlock()
	m := wire.Answer(zamokpb.Command_COMMAND_ACQUIRE, fsm.TicketState{Ticket: first}, refusal)
	if last > first {
		m.GetAnswer().Through = last
	}
	q.add(m, true)
}

// Renewed sends the confirmation of a frame that renewed the session, which has waited for company
// in the log, or ends the stream if this node does not lead.
func (q *Queue) Renewed(f Frame, a *raftnode.Answer, refusal *wire.Error) {
	q.hub.mu.Lock()
	defer q.hub.mu.Unlock()
	q.endUnlessLeading(refusal)
	if !q.ended && refusal == nil && a.Result.Code == fsm.OK {
		q.acknowledge(f, a.Time)
		signal(q.wake)
	}
}

// Received acknowledges that the stream is read, and confirms nothing else.
func (q *Queue) Received() {
	q.hub.mu.Lock()
	defer q.hub.mu.Unlock()
	if !q.ended {
		q.ackDue = true
		signal(q.wake)
	}
}

func (q *Queue) endUnlessLeading(refusal *wire.Error) {
	if code := refusal.Code(); code == zamokpb.Code_CODE_NOT_LEADER ||
		code == zamokpb.Code_CODE_STOPPING {
		q.hub.end(q, wire.StreamEnded(code, "%v", refusal))
	}
}

// End ends the stream after what is queued was sent.
func (q *Queue) End(reason *wire.Error) {
	q.hub.mu.Lock()
	defer q.hub.mu.Unlock()
	q.hub.end(q, reason)
}

// hasRoom reports whether there is room for messages that may be left out.
func (q *Queue) hasRoom() bool {
	return !q.ended && len(q.messages) < queueMessagesMax/4 &&
		q.bytes+q.sending < min(queueBytesMax, queuesBytesMax-q.hub.bytes)/4
}

// lookupRound is how many answers are looked up in one read of the state machine.
const lookupRound = 16

// Take returns everything that is queued as one frame, or nil. After the last one the stream ends.
// Only the stream's writer calls Take and Sent.
func (q *Queue) Take() (frame *zamokpb.ServerFrame, last bool) {
	q.hub.mu.Lock()
	messages, lookups, last := q.messages, q.lookups, q.ended
	q.sendingFrom, q.queued = q.queued, time.Time{}
	if q.ackDue {
		messages = append(messages, wire.KeepAliveAck(q.ack.Sent, q.ackTime, q.changes))
		q.ackDue, q.ack.Sent = false, nil
	}
	if q.claimed() && q.bytes >= sendingBytesMin {
		q.sending = q.bytes
		q.hub.bytes += q.sending
	}
	q.clear()
	q.flushing = false
	q.hub.mu.Unlock()
	for round := range slices.Chunk(lookups, lookupRound) {
		q.hub.node.View(func(m *fsm.Machine) { // not under the hub's lock: it reads tickets
			for _, answer := range round {
				wire.Describe(m, answer.Error.GetBlockers())
			}
		})
		q.hub.sendRound(func(r *positionRound) {
			for _, answer := range round { // the first position, in the next frame
				r.ticket(fsm.TicketRef{Session: q.Session, Ticket: answer.State.Ticket})
			}
		})
	}
	if messages == nil {
		return nil, last
	}
	return &zamokpb.ServerFrame{Messages: messages}, last
}

// Sent is called after a frame was sent, or could not be.
func (q *Queue) Sent() {
	q.hub.metrics.Pushed(q.sendingFrom)
	if q.sending == 0 {
		return
	}
	q.hub.mu.Lock()
	defer q.hub.mu.Unlock()
	q.hub.bytes -= q.sending
	q.sending = 0
}
