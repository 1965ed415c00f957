package wire

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// The enums of the wire have the numbers of the state machine (a test compares them), so they are
// converted by a cast.

// Enum is a value of an enum of the wire.
type Enum = protoreflect.Enum

// EnumName is the name of a value without the prefix of its enum: MAX_HOLD_EXCEEDED of
// REASON_MAX_HOLD_EXCEEDED.
func EnumName(value Enum) string {
	values := value.Descriptor().Values()
	first := string(values.Get(0).Name()) // as BLOCKED_BY_UNSPECIFIED
	if v := values.ByNumber(value.Number()); v != nil {
		return string(v.Name())[strings.LastIndexByte(first, '_')+1:]
	}
	return strconv.Itoa(int(value.Number()))
}

// JSONName is the name of a value in JSON, such as max_hold_exceeded; "": none.
func JSONName(value Enum) string {
	if value.Number() == 0 {
		return ""
	}
	return strings.ToLower(EnumName(value))
}

// Each converts the elements of a list.
func Each[From, To any](list []From, convert func(From) To) []To {
	converted := make([]To, len(list))
	for i, from := range list {
		converted[i] = convert(from)
	}
	return converted
}

// TicketState converts the state of a ticket.
func TicketState(t fsm.TicketState) *zamokpb.TicketState {
	p := new(zamokpb.TicketState)
	setTicketState(p, t)
	return p
}

func setTicketState(p *zamokpb.TicketState, t fsm.TicketState) {
	p.Ticket, p.State, p.Reason = t.Ticket, zamokpb.State(t.State), zamokpb.Reason(t.Reason)
	p.Token, p.HoldUntil = t.Token, int64(t.HoldUntil)
}

// ResultState is the state of the ticket after the command with the result r.
func ResultState(ticket uint64, r *fsm.Result) fsm.TicketState {
	return fsm.TicketState{Ticket: ticket, State: r.State, Reason: r.Reason, Token: r.Token,
		HoldUntil: r.HoldUntil}
}

// EventState is the state of the ticket after the event; false: the event is not about a ticket.
func EventState(e *fsm.Event) (fsm.TicketState, bool) {
	t := fsm.TicketState{Ticket: e.Ticket, Reason: e.Reason, Token: e.Token, HoldUntil: e.HoldUntil}
	switch e.Kind {
	case fsm.EvGranted, fsm.EvDowngraded:
		t.State = fsm.Granted
	case fsm.EvRefused, fsm.EvLost, fsm.EvReleased:
		t.State = fsm.Ended
	}
	return t, t.State != 0
}

// Change is the message for an event of a ticket, in one piece of memory. Number counts the changes
// of a stream.
func Change(e *fsm.Event, state fsm.TicketState, number uint64) *zamokpb.ServerMessage {
	m := new(struct {
		message zamokpb.ServerMessage
		kind    zamokpb.ServerMessage_Change
		change  zamokpb.Change
		state   zamokpb.TicketState
	})
	setTicketState(&m.state, state)
	m.change.State, m.change.Index, m.change.Text, m.change.Number = &m.state, e.Index,
		e.Text, number
	m.change.Downgraded = e.Kind == fsm.EvDowngraded
	m.kind.Change = &m.change
	m.message.Message = &m.kind
	return &m.message
}

// Answer is the message for the result of a command, in one piece of memory. Refusal is nil if it
// was carried out.
func Answer(command zamokpb.Command, state fsm.TicketState, refusal *Error) *zamokpb.ServerMessage {
	m := new(struct {
		message zamokpb.ServerMessage
		kind    zamokpb.ServerMessage_Answer
		answer  zamokpb.Answer
		state   zamokpb.TicketState
	})
	setTicketState(&m.state, state)
	m.answer.Command, m.answer.State = command, &m.state
	if refusal != nil {
		m.answer.Error = refusal.Info
	}
	m.kind.Answer = &m.answer
	m.message.Message = &m.kind
	return &m.message
}

// KeepAliveAck is the message for a confirmation, in one piece of memory.
func KeepAliveAck(sent []byte, now clock.Time, changes uint64) *zamokpb.ServerMessage {
	m := new(struct {
		message zamokpb.ServerMessage
		kind    zamokpb.ServerMessage_KeepAliveAck
		ack     zamokpb.KeepAliveAck
	})
	m.ack.Sent, m.ack.Time, m.ack.Changes = sent, int64(now), changes
	m.kind.KeepAliveAck = &m.ack
	m.message.Message = &m.kind
	return &m.message
}

// Items converts the locks of an acquisition.
func Items(items []fsm.Item) []*zamokpb.Item {
	return Each(items, func(it fsm.Item) *zamokpb.Item {
		return &zamokpb.Item{Name: it.Name, Mode: zamokpb.Mode(it.Mode), Permits: it.Permits,
			Of: it.Of}
	})
}

// Stamp converts a reading of the replicated clock.
func Stamp(s clock.Stamp, t clock.Time) *zamokpb.Stamp {
	return &zamokpb.Stamp{Term: s.Term, Index: s.Index, Time: int64(t)}
}

// StampOf is the stamp of the state that is read.
func StampOf(m *fsm.Machine) *zamokpb.Stamp { return Stamp(m.Stamp(), m.Time()) }

// Quotas converts quotas, or usage, which has a share of 0.
func Quotas(q fsm.Quotas) *zamokpb.Quotas {
	return &zamokpb.Quotas{Sessions: q.Sessions, Tickets: q.Tickets, Bytes: q.Bytes, Share: q.Share}
}

// FromQuotas converts the quotas of a request.
func FromQuotas(q *zamokpb.Quotas) fsm.Quotas {
	return fsm.Quotas{
		Amounts: fsm.Amounts{Sessions: q.GetSessions(), Tickets: q.GetTickets(),
			Bytes: q.GetBytes()}, Share: q.GetShare(),
	}
}

// LockSummary converts a line of a listing.
func LockSummary(s fsm.LockSummary, holdOffUntil clock.Time) *zamokpb.LockSummary {
	return &zamokpb.LockSummary{
		Name: s.Name, Of: s.Of, Holders: uint32(s.Holders), Waiters: uint32(s.Waiters),
		DelayedUntil: int64(s.DelayedUntil), HoldOffUntil: int64(holdOffUntil),
		ReservedUntil: int64(s.ReservedUntil),
	}
}

// HoldOffUntil is the cluster time until which the restore hold-off lasts; 0: there is none.
func HoldOffUntil(m *fsm.Machine) clock.Time {
	if m.HoldOff() == 0 {
		return 0
	}
	return m.HoldOffUntil()
}

// Ticket describes a live ticket and, if it waits, what blocks it; at is when an index was applied.
func Ticket(m *fsm.Machine, ref fsm.TicketRef, at func(index uint64) clock.Time) *zamokpb.Ticket {
	v, _ := m.Ticket(ref)
	s, _ := m.Session(v.Session)
	t := &zamokpb.Ticket{
		Session: uint64(v.Session), State: TicketState(v.TicketState),
		Enqueued: v.Enqueued, EnqueuedAt: int64(at(v.Enqueued)),
		WaitUntil: int64(v.WaitUntil), Owner: v.Owner, Meta: []byte(v.Meta),
		Items: Items(v.Items), Label: s.Label, Identity: s.Identity, LeaseUntil: int64(s.Deadline),
		Reserved: s.Attachment == 0,
	}
	switch v.State {
	case fsm.Waiting:
		t.Blockers = Blockers(m.Blockers(ref))
		Describe(m, t.Blockers)
	case fsm.Granted:
		t.GrantedAt = int64(at(v.Token))
	}
	return t
}

// SessionInfo describes a live session.
func SessionInfo(s session.Session) *zamokpb.SessionInfo {
	return &zamokpb.SessionInfo{
		Session: uint64(s.ID), Identity: s.Identity, LeaseUntil: int64(s.Deadline),
		Reserved: s.Attachment == 0,
		Opened:   int64(s.Opened), Tickets: uint32(s.Live),
		Settings: &zamokpb.SessionSettings{
			Ttl: int64(s.TTL), Label: s.Label, Meta: []byte(s.Meta),
			LockDelay: int64(s.LockDelay), ReleaseOnDisconnect: int64(s.ReleaseOnDisconnect),
		},
	}
}

// TicketRef converts a reference to a ticket.
func TicketRef(r fsm.TicketRef) *zamokpb.TicketRef {
	return &zamokpb.TicketRef{Session: uint64(r.Session), Ticket: r.Ticket}
}

func links(cycle []fsm.Link) []*zamokpb.Link {
	return Each(cycle, func(l fsm.Link) *zamokpb.Link {
		return &zamokpb.Link{
			Session: uint64(l.Session), Ticket: l.Ticket, Owner: l.Owner,
			State: zamokpb.State(l.State), Name: l.Name,
		}
	})
}

// Blockers converts without labels and metadata; Describe adds them from the state machine.
func Blockers(blockers []fsm.Blocker) []*zamokpb.Blocker {
	return Each(blockers, func(b fsm.Blocker) *zamokpb.Blocker {
		return &zamokpb.Blocker{
			Name: b.Name, By: zamokpb.BlockedBy(b.By), Session: uint64(b.Session), Ticket: b.Ticket,
			Token: b.Token, Owner: b.Owner, Until: int64(b.Until),
		}
	})
}

const (
	// blockerMetaMax is how much of a blocker's metadata is sent: many gRPC clients would not
	// accept sixteen times all of it in the headers of an error.
	blockerMetaMax = 128
	// BlockerBytesMax is what Describe may add to a blocker.
	BlockerBytesMax = fsm.LabelBytesMax + blockerMetaMax
)

// Describe adds the labels of sessions and the metadata of tickets, for people, and how long a
// delay continues.
func Describe(m *fsm.Machine, blockers []*zamokpb.Blocker) {
	for _, b := range blockers {
		if b.Until != 0 {
			b.Left = int64(max(clock.Time(b.Until).Sub(m.Time()), 0))
		}
		if b.Session == 0 {
			continue
		}
		id := session.ID(b.Session)
		if s, ok := m.Session(id); ok {
			b.Label = s.Label
		}
		t, _ := m.Ticket(fsm.TicketRef{Session: id, Ticket: b.Ticket})
		b.Meta = []byte(t.Meta[:min(len(t.Meta), blockerMetaMax)])
	}
}
