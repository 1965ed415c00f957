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
	case <-st.box.ended:
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
	f := &frame{st.frames, p.GetSent(), p.GetFloor()}
	for i, message := range p.GetMessages() {
		switch m := message.GetMessage().(type) {
		case *zamokpb.ClientMessage_Acquire:
			st.acquire(f, m.Acquire)
		case *zamokpb.ClientMessage_Drop:
			ticket := m.Drop.GetTicket()
			st.ofTicket(f, zamokpb.Command_COMMAND_DROP, ticket,
				&fsm.Drop{Session: st.box.session, Ticket: ticket, AckedThrough: f.floor})
		case *zamokpb.ClientMessage_Downgrade:
			ticket := m.Downgrade.GetTicket()
			st.ofTicket(f, zamokpb.Command_COMMAND_DOWNGRADE, ticket,
				&fsm.Downgrade{Session: st.box.session, Ticket: ticket, AckedThrough: f.floor})
		case *zamokpb.ClientMessage_KeepAlive:
			st.renew(f)
		case *zamokpb.ClientMessage_Close:
			st.close()
		case *zamokpb.ClientMessage_Hello:
			return invalid(fmt.Sprintf("messages[%d]", i), "is a Hello, which only the first frame has")
		default:
			return invalid(fmt.Sprintf("messages[%d]", i), "is empty, or of a kind that this server does not know")
		}
	}
	return nil
}

// acquire asks for locks.
func (st *stream) acquire(f *frame, p *zamokpb.Acquire) {
	t := asked{frame: f, command: zamokpb.Command_COMMAND_ACQUIRE, ticket: p.GetTicket()}
	command, wrong := acquireCommand(st.box.session, f.floor, p)
	if wrong == nil {
		wrong = st.server.mayAcquire(st.ctx, command.Items)
	}
	if wrong == nil {
		wrong = st.server.roomForTicket(fsm.TicketRef{Session: st.box.session, Ticket: t.ticket})
	}
	if wrong != nil {
		st.answer(t, fsm.Result{}, wrong)
		return
	}
	if p.GetTellQueue() {
		for i := range command.Items {
			t.urge = append(t.urge, command.Items[i].Name)
		}
	}
	st.box.asks(t.ticket)
	st.submit(t, command)
}

// ofTicket hands in a command about a ticket of the session.
func (st *stream) ofTicket(f *frame, kind zamokpb.Command, ticket uint64, command fsm.Command) {
	t := asked{frame: f, command: kind, ticket: ticket}
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

// asked is a command that waits for its answer.
type asked struct {
	frame   *frame
	command zamokpb.Command
	ticket  uint64
	urge    []string // the locks, if its client wants to know the place in their queues
}

func (st *stream) submit(t asked, command fsm.Command) {
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
func (st *stream) applied(t asked, a *raftnode.Answer) {
	r := &a.Result
	if f := refused(r); f != nil {
		st.proves(t.frame, a)
		st.answer(t, *r, f)
		return
	}
	o, h := st.box, st.server.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.over {
		return
	}
	if r.Session != 0 {
		o.prove(t.frame, a.Time)
	}
	if r.State != fsm.Waiting {
		delete(o.since, t.ticket)
	}
	switch {
	case t.command == zamokpb.Command_COMMAND_ACQUIRE && r.State == fsm.Granted && r.Token == r.Index,
		t.command != zamokpb.Command_COMMAND_ACQUIRE && o.changed == r.Index:
		return // the change that it made was told
	case r.State == fsm.Waiting && t.urge != nil:
		if h.places.ask(o, t.ticket, t.urge) {
			signal(h.placeWake)
		}
	}
	if !o.add(note{kind: noteAnswer, command: t.command, urge: t.urge != nil, state: resultState(t.ticket, *r)}) {
		return
	}
	if r.State == fsm.Ended {
		o.laterOn() // nobody waits for what was so already
	} else {
		signal(o.wake)
	}
}

func (st *stream) proves(f *frame, a *raftnode.Answer) {
	h := st.server.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.Result.Session != 0 && !st.box.over {
		st.box.prove(f, a.Time)
	}
}

// answer says at once that a command was not carried out.
func (st *stream) answer(t asked, r fsm.Result, why *failure) {
	h := st.server.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.command == zamokpb.Command_COMMAND_ACQUIRE {
		delete(st.box.since, t.ticket)
	}
	if st.box.add(note{kind: noteAnswer, command: t.command, state: resultState(t.ticket, r), failure: why}) {
		signal(st.box.wake)
	}
	st.endsWith(why)
}

// endsWith ends the stream if why says that this node does not lead. The caller holds the hub's lock.
func (st *stream) endsWith(why *failure) {
	if why.info.Code == zamokpb.Code_CODE_NOT_LEADER || why.info.Code == zamokpb.Code_CODE_STOPPING {
		st.server.hub.end(st.box, over(why.info.Code, "%s", why.info.Message))
	}
}

// renew hands in the sign of life of a frame, unless too much waits for its answer already: what was sent
// before proves nearly as much.
func (st *stream) renew(f *frame) {
	if st.pending.Add(1) > pendingMax {
		st.pending.Add(-1)
		return
	}
	st.server.node.Renew(st.box.session, func(a raftnode.Answer, err error) {
		defer st.answered(0)
		h := st.server.hub
		h.mu.Lock()
		defer h.mu.Unlock()
		switch {
		case err != nil:
			st.endsWith(explain(err))
		case a.Result.Code == fsm.OK && !st.box.over:
			st.box.prove(f, a.Time)
		}
	})
}

// close ends the session. Its end is told by the event.
func (st *stream) close() {
	if st.closing {
		return
	}
	st.closing = true
	st.server.node.Submit(&fsm.CloseSession{Session: st.box.session}, func(_ raftnode.Answer, err error) {
		if err == nil {
			return
		}
		h := st.server.hub
		h.mu.Lock()
		defer h.mu.Unlock()
		why := explain(err)
		if errors.Is(err, raftnode.ErrOverloaded) {
			why = fail(why.info.Code, "the session was not closed: %s", why.info.Message)
		}
		h.end(st.box, why)
	})
}
