package api

import (
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// write tells what comes into the outbox, all that is there in one frame, until the stream is over.
func (st *stream) write() {
	defer close(st.written)
	var room []note
	for {
		select {
		case <-st.box.wake:
		case <-st.ctx.Done():
			return
		}
		t := st.box.take(room)
		if len(t.notes) > 0 || t.heard.pending {
			err := st.wire.Send(st.frame(&t))
			if t.large {
				st.box.sent()
			}
			if err != nil {
				return // the reader ends for the same reason, and says so
			}
			st.server.observer.pushed(t.queued)
		}
		if t.over {
			return
		}
		room = t.notes
	}
}

// frame turns notes into messages. It runs outside all locks, and may look into the machine for what
// only people want to know.
func (st *stream) frame(t *taken) *zamokpb.ServerFrame {
	st.lookUp(t.notes)
	messages := make([]*zamokpb.ServerMessage, 0, len(t.notes)+1)
	for i := range t.notes {
		messages = append(messages, st.message(&t.notes[i]))
	}
	if t.heard.pending {
		m := new(heardMessage)
		m.heard.Sent, m.heard.Time, m.heard.Changes = t.heard.sent, int64(t.heard.time), t.changes
		m.kind.Heard = &m.heard
		m.message.Message = &m.kind
		messages = append(messages, &m.message)
	}
	return &zamokpb.ServerFrame{Messages: messages}
}

// The frequent messages, each in one piece of memory.
type (
	changeMessage struct {
		message zamokpb.ServerMessage
		kind    zamokpb.ServerMessage_Change
		change  zamokpb.Change
		state   zamokpb.TicketState
	}
	answerMessage struct {
		message zamokpb.ServerMessage
		kind    zamokpb.ServerMessage_Answer
		answer  zamokpb.Answer
		state   zamokpb.TicketState
	}
	heardMessage struct {
		message zamokpb.ServerMessage
		kind    zamokpb.ServerMessage_Heard
		heard   zamokpb.Heard
	}
)

func (st *stream) message(n *note) *zamokpb.ServerMessage {
	switch n.kind {
	case noteChange:
		m := new(changeMessage)
		setTicketState(&m.state, n.state)
		m.change.State, m.change.Index, m.change.Text, m.change.Downgraded = &m.state, n.index, n.text, n.downgraded
		m.change.Number = n.number
		m.kind.Change = &m.change
		m.message.Message = &m.kind
		return &m.message
	case noteAnswer:
		m := new(answerMessage)
		setTicketState(&m.state, n.state)
		m.answer.Command, m.answer.State, m.answer.Ahead = n.command, &m.state, n.ahead
		if n.failure != nil {
			m.answer.Error = n.failure.info
		}
		m.kind.Answer = &m.answer
		m.message.Message = &m.kind
		return &m.message
	case noteWelcome:
		n.welcome.Node, n.welcome.TtlMin = st.server.id, int64(ttlMin(st.server.node.Timeout()))
		return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Welcome{Welcome: n.welcome}}
	case notePlace:
		return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Queue{Queue: &zamokpb.Queue{
			Ticket: n.state.Ticket, Name: n.text, Ahead: n.ahead, Blockers: n.blockers,
		}}}
	case noteContended:
		return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Contended{Contended: &zamokpb.Contended{
			Ticket: n.state.Ticket, Waiting: n.ahead,
		}}}
	default:
		return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Ended{Ended: &zamokpb.Ended{
			Why: zamokpb.Why(n.state.Reason), Text: n.text,
		}}}
	}
}

// lookUpRound is how many answers are looked up before the machine may go on.
const lookUpRound = 16

// lookUp adds what answers say for people: who the blockers are, and the place of a ticket that asked.
func (st *stream) lookUp(notes []note) {
	for next := 0; next < len(notes); {
		if !notes[next].curious() {
			next++
			continue
		}
		st.server.node.View(func(m *fsm.Machine) {
			for seen := 0; next < len(notes) && seen < lookUpRound; next++ {
				n := &notes[next]
				if !n.curious() {
					continue
				}
				seen++
				if n.failure != nil {
					describe(m, n.failure.info.Blockers)
					continue
				}
				_, ahead, _ := m.QueuePosition(fsm.TicketRef{Session: st.box.session, Ticket: n.state.Ticket})
				n.ahead = uint32(ahead)
			}
		})
	}
}

func (n *note) curious() bool {
	return n.kind == noteAnswer && (n.urge && n.state.State == fsm.Waiting || n.failure != nil && len(n.failure.info.Blockers) > 0)
}
