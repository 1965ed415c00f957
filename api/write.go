package api

import (
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// write tells what comes into the send queue, all that is there in one frame, until the stream is over.
func (st *stream) write() {
	defer close(st.written)
	var room []message
	for {
		select {
		case <-st.queue.wake:
		case <-st.ctx.Done():
			return
		}
		t := st.queue.take(room)
		if len(t.messages) > 0 || t.ack.pending {
			err := st.wire.Send(st.frame(&t))
			if t.large {
				st.queue.sent()
			}
			if err != nil {
				return // the reader ends for the same reason, and says so
			}
			st.server.observer.pushed(t.queued)
		}
		if t.ended {
			return
		}
		room = t.messages
	}
}

// frame turns notes into messages. It runs outside all locks, and may look into the machine for what
// only people want to know.
func (st *stream) frame(t *drained) *zamokpb.ServerFrame {
	st.addDetails(t.messages)
	messages := make([]*zamokpb.ServerMessage, 0, len(t.messages)+1)
	for i := range t.messages {
		messages = append(messages, st.encode(&t.messages[i]))
	}
	if t.ack.pending {
		m := new(ackMessage)
		m.ack.Sent, m.ack.Time, m.ack.Changes = t.ack.sent, int64(t.ack.time), t.changes
		m.kind.KeepAliveAck = &m.ack
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
	ackMessage struct {
		message zamokpb.ServerMessage
		kind    zamokpb.ServerMessage_KeepAliveAck
		ack     zamokpb.KeepAliveAck
	}
)

func (st *stream) encode(n *message) *zamokpb.ServerMessage {
	switch n.kind {
	case messageChange:
		m := new(changeMessage)
		setTicketState(&m.state, n.state)
		m.change.State, m.change.Index, m.change.Text, m.change.Downgraded = &m.state, n.index, n.text, n.downgraded
		m.change.Number = n.number
		m.kind.Change = &m.change
		m.message.Message = &m.kind
		return &m.message
	case messageAnswer:
		m := new(answerMessage)
		setTicketState(&m.state, n.state)
		m.answer.Command, m.answer.State, m.answer.Ahead = n.command, &m.state, n.ahead
		if n.failure != nil {
			m.answer.Error = n.failure.info
		}
		m.kind.Answer = &m.answer
		m.message.Message = &m.kind
		return &m.message
	case messageSessionState:
		n.sessionState.Node, n.sessionState.TtlMin = st.server.id, int64(ttlMin(st.server.node.Timeout()))
		return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Session{Session: n.sessionState}}
	case messagePosition:
		return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Position{Position: &zamokpb.QueuePosition{
			Ticket: n.state.Ticket, Name: n.text, Ahead: n.ahead, Blockers: n.blockers,
		}}}
	case messageContended:
		return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Contended{Contended: &zamokpb.Contended{
			Ticket: n.state.Ticket, Waiting: n.ahead,
		}}}
	default:
		return &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_SessionEnded{SessionEnded: &zamokpb.SessionEnded{
			Reason: zamokpb.Reason(n.state.Reason), Text: n.text,
		}}}
	}
}

// detailsRound is how many answers are looked up before the machine may continue.
const detailsRound = 16

// addDetails adds what answers say for people: who the blockers are, and the place of a ticket that asked.
func (st *stream) addDetails(notes []message) {
	for next := 0; next < len(notes); {
		if !notes[next].needsLookup() {
			next++
			continue
		}
		st.server.node.View(func(m *fsm.Machine) {
			for seen := 0; next < len(notes) && seen < detailsRound; next++ {
				n := &notes[next]
				if !n.needsLookup() {
					continue
				}
				seen++
				if n.failure != nil {
					describe(m, n.failure.info.Blockers)
					continue
				}
				_, ahead, _ := m.QueuePosition(fsm.TicketRef{Session: st.queue.session, Ticket: n.state.Ticket})
				n.ahead = uint32(ahead)
			}
		})
	}
}

func (n *message) needsLookup() bool {
	return n.kind == messageAnswer && (n.urgent && n.state.State == fsm.Waiting || n.failure != nil && len(n.failure.info.Blockers) > 0)
}
