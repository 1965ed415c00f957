package api

import (
	"errors"
	"fmt"

	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
)

// pendingMax is how many commands and renewals of one stream may be without an answer. More than a session can have
// in hand, and much less than the node takes from all together.
const pendingMax = 2 * fsm.TicketsMax

// pendingBytesMax bounds their bytes, as they are in the log: a sixteenth of what the node takes from all together.
const pendingBytesMax = 4 << 20

// frame is one transmission of a client: what a proof is for.
type frame struct {
	number uint64 // on its stream
	sent   []byte
	floor  uint64
}

// handle carries out a frame. An error ends the stream; what is wrong with one command is its answer.
func (st *stream) handle(p *zamokpb.ClientFrame) error {
	select {
	case <-st.queue.done:
		return nil
	default:
	}
	if n := len(p.GetMessages()); n > frameMessagesMax {
		return invalid("messages", "are %d, at most %d come in one frame", n, frameMessagesMax)
	}
	if f := checkSent(p.GetSent()); f != nil {
		return f
	}
	st.frames++
	f := &frame{st.frames, p.GetSent(), p.GetAckedThrough()}
	for i, message := range p.GetMessages() {
		switch m := message.GetMessage().(type) {
		case *zamokpb.ClientMessage_Acquire:
			st.acquire(f, m.Acquire)
		case *zamokpb.ClientMessage_Drop:
			ticket := m.Drop.GetTicket()
			st.ofTicket(f, zamokpb.Command_COMMAND_DROP, ticket,
				&fsm.Drop{Session: st.queue.session, Ticket: ticket, AckedThrough: f.floor})
		case *zamokpb.ClientMessage_Downgrade:
			ticket := m.Downgrade.GetTicket()
			st.ofTicket(f, zamokpb.Command_COMMAND_DOWNGRADE, ticket,
				&fsm.Downgrade{Session: st.queue.session, Ticket: ticket, AckedThrough: f.floor})
		case *zamokpb.ClientMessage_KeepAlive:
			st.renew(f)
		case *zamokpb.ClientMessage_Close:
			st.close()
		case *zamokpb.ClientMessage_Open:
			return invalid(fmt.Sprintf("messages[%d]", i), "is an OpenStream, which only the first frame has")
		default:
			return invalid(fmt.Sprintf("messages[%d]", i), "is empty, or of a kind that this server does not know")
		}
	}
	return nil
}

// acquire asks for locks.
func (st *stream) acquire(f *frame, p *zamokpb.Acquire) {
	t := submitted{frame: f, command: zamokpb.Command_COMMAND_ACQUIRE, ticket: p.GetTicket()}
	command, wrong := acquireCommand(st.queue.session, f.floor, p)
	if wrong == nil {
		wrong = st.server.mayAcquire(st.ctx, command.Items)
	}
	if wrong == nil {
		wrong = st.server.roomForTicket(fsm.TicketRef{Session: st.queue.session, Ticket: t.ticket})
	}
	if wrong != nil {
		st.answer(t, fsm.Result{}, wrong)
		return
	}
	if p.GetReportPosition() {
		for i := range command.Items {
			t.urge = append(t.urge, command.Items[i].Name)
		}
	}
	st.queue.wantsPosition(t.ticket)
	st.submit(t, command)
}

// ofTicket hands in a command about a ticket of the session.
func (st *stream) ofTicket(f *frame, kind zamokpb.Command, ticket uint64, command fsm.Command) {
	t := submitted{frame: f, command: kind, ticket: ticket}
	wrong := checkTicket(ticket)
	if wrong == nil {
		wrong = st.server.may(st.ctx, VerbDrop, "")
	}
	if wrong != nil {
		st.answer(t, fsm.Result{}, wrong)
		return
	}
	st.submit(t, command)
}

// submitted is a command that waits for its answer.
type submitted struct {
	frame   *frame
	command zamokpb.Command
	ticket  uint64
	urge    []string // the locks, if its client wants to know the place in their queues
}

func (st *stream) submit(t submitted, command fsm.Command) {
	bytes := int64(fsm.Size(command))
	if count, sum := st.pending.Add(1), st.pendingBytes.Add(bytes); count > pendingMax || sum > pendingBytesMax {
		st.answered(bytes)
		st.answer(t, fsm.Result{}, fail(zamokpb.Code_CODE_OVERLOADED, "not done: %d commands of this stream wait for their answers, or "+
			"%d bytes of them; send it again when some have come", pendingMax, pendingBytesMax))
		return
	}
	st.server.node.Submit(command, func(a raftnode.Answer, err error) {
		defer st.answered(bytes)
		if err != nil {
			st.answer(t, fsm.Result{}, explain(err))
			return
		}
		st.applied(t, &a)
	})
}

// applied answers a command that went through the log. Its events were told before.
func (st *stream) applied(t submitted, a *raftnode.Answer) {
	r := &a.Result
	if f := refused(r); f != nil {
		st.ackFrame(t.frame, a)
		st.answer(t, *r, f)
		return
	}
	o, h := st.queue, st.server.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.ended {
		return
	}
	if r.Session != 0 {
		o.acknowledge(t.frame, a.Time)
	}
	if r.State != fsm.Waiting {
		delete(o.waitingSince, t.ticket)
	}
	switch {
	case t.command == zamokpb.Command_COMMAND_ACQUIRE && r.State == fsm.Granted && r.Token == r.Index,
		t.command != zamokpb.Command_COMMAND_ACQUIRE && o.changed == r.Index:
		return // the change that it made was told
	case r.State == fsm.Waiting && t.urge != nil:
		if h.positions.request(o, t.ticket, t.urge) {
			signal(h.positionWake)
		}
	}
	if !o.add(message{kind: messageAnswer, command: t.command, urgent: t.urge != nil, state: resultState(t.ticket, *r)}) {
		return
	}
	if r.State == fsm.Ended {
		o.flushLater() // nobody waits for what was so already
	} else {
		signal(o.wake)
	}
}

func (st *stream) ackFrame(f *frame, a *raftnode.Answer) {
	h := st.server.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.Result.Session != 0 && !st.queue.ended {
		st.queue.acknowledge(f, a.Time)
	}
}

// answer says at once that a command was not carried out.
func (st *stream) answer(t submitted, r fsm.Result, reason *failure) {
	h := st.server.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.command == zamokpb.Command_COMMAND_ACQUIRE {
		delete(st.queue.waitingSince, t.ticket)
	}
	if st.queue.add(message{kind: messageAnswer, command: t.command, state: resultState(t.ticket, r), failure: reason}) {
		signal(st.queue.wake)
	}
	st.endsWith(reason)
}

// endsWith ends the stream if why says that this node does not lead. The caller holds the hub's lock.
func (st *stream) endsWith(reason *failure) {
	if reason.info.Code == zamokpb.Code_CODE_NOT_LEADER || reason.info.Code == zamokpb.Code_CODE_STOPPING {
		st.server.hub.end(st.queue, streamEnded(reason.info.Code, "%s", reason.info.Message))
	}
}

// renew hands in the renewal of a frame, unless too much waits for its answer already: what was sent
// before proves nearly as much.
func (st *stream) renew(f *frame) {
	if st.pending.Add(1) > pendingMax {
		st.pending.Add(-1)
		return
	}
	st.server.node.Renew(st.queue.session, func(a raftnode.Answer, err error) {
		defer st.answered(0)
		h := st.server.hub
		h.mu.Lock()
		defer h.mu.Unlock()
		switch {
		case err != nil:
			st.endsWith(explain(err))
		case a.Result.Code == fsm.OK && !st.queue.ended:
			st.queue.acknowledge(f, a.Time)
		}
	})
}

// close ends the session. Its end is told by the event.
func (st *stream) close() {
	if st.closing {
		return
	}
	st.closing = true
	st.server.node.Submit(&fsm.CloseSession{Session: st.queue.session}, func(_ raftnode.Answer, err error) {
		if err == nil {
			return
		}
		h := st.server.hub
		h.mu.Lock()
		defer h.mu.Unlock()
		reason := explain(err)
		if errors.Is(err, raftnode.ErrOverloaded) {
			reason = fail(reason.info.Code, "the session was not closed: %s", reason.info.Message)
		}
		h.end(st.queue, reason)
	})
}
