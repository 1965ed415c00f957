package api

import (
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"

	"zamok/api/zamokpb"
)

// The wire's enums have the machine's own numbers (a test holds them together), so they are cast.

func ticketState(t fsm.TicketState) *zamokpb.TicketState {
	p := new(zamokpb.TicketState)
	setTicketState(p, t)
	return p
}

func setTicketState(p *zamokpb.TicketState, t fsm.TicketState) {
	p.Ticket, p.State, p.Reason = t.Ticket, zamokpb.State(t.State), zamokpb.Reason(t.Reason)
	p.Token, p.HoldUntil = t.Token, int64(t.HoldUntil)
}

// resultState is the ticket as it stands after the command that r answers.
func resultState(ticket uint64, r fsm.Result) fsm.TicketState {
	return fsm.TicketState{Ticket: ticket, State: r.State, Reason: r.Reason, Token: r.Token, HoldUntil: r.HoldUntil}
}

// eventState is the ticket as it stands after the event; false: the event is not about a ticket.
func eventState(e *fsm.Event) (fsm.TicketState, bool) {
	t := fsm.TicketState{Ticket: e.Ticket, Reason: e.Reason, Token: e.Token, HoldUntil: e.HoldUntil}
	switch e.Kind {
	case fsm.EvGranted, fsm.EvDowngraded:
		t.State = fsm.Granted
	case fsm.EvRefused, fsm.EvLost, fsm.EvReleased:
		t.State = fsm.Ended
	default:
		return t, false
	}
	return t, true
}

func toItems(items []fsm.Item) []*zamokpb.Item {
	list := make([]*zamokpb.Item, len(items))
	for i, it := range items {
		list[i] = &zamokpb.Item{Name: it.Name, Mode: zamokpb.Mode(it.Mode), Permits: it.Permits, Limit: it.Limit}
	}
	return list
}

func toStamp(s clock.Stamp, t clock.Time) *zamokpb.Stamp {
	return &zamokpb.Stamp{Term: s.Term, Index: s.Index, Time: int64(t)}
}

func stampOf(m *fsm.Machine) *zamokpb.Stamp { return toStamp(m.Stamp(), m.Time()) }

func toSummary(s fsm.LockSummary, holdOff clock.Time) *zamokpb.LockSummary {
	return &zamokpb.LockSummary{
		Name: s.Name, Limit: s.Limit, Holders: uint32(s.Holders), Waiters: uint32(s.Waiters),
		DelayedUntil: int64(s.DelayedUntil), HoldOffUntil: int64(holdOff),
	}
}

// holdOffUntil is the cluster time before which nothing is granted because a backup was restored; 0 = no such thing.
func holdOffUntil(m *fsm.Machine) clock.Time {
	if m.HoldOff() == 0 {
		return 0
	}
	return m.HoldOffUntil()
}

// toTicket tells what the machine knows of a live ticket; what is in its way is the caller's to add.
func toTicket(m *fsm.Machine, v fsm.TicketView) *zamokpb.Ticket {
	s, _ := m.Session(v.Session)
	return &zamokpb.Ticket{
		Session: uint64(v.Session), State: ticketState(v.TicketState), Enqueued: v.Enqueued,
		WaitUntil: int64(v.WaitUntil), Owner: v.Owner, Metadata: []byte(v.Metadata),
		Items: toItems(v.Items), Label: s.Label, Identity: s.Identity, LeaseUntil: int64(s.Deadline),
	}
}

func toSessionInfo(s session.Session) *zamokpb.SessionInfo {
	return &zamokpb.SessionInfo{
		Session: uint64(s.ID), Identity: s.Identity, Deadline: int64(s.Deadline), Attached: s.Attachment != 0,
		Opened: int64(s.Opened), Tickets: uint32(s.Live),
		Settings: &zamokpb.SessionSettings{
			Ttl: int64(s.TTL), Label: s.Label, Metadata: []byte(s.Metadata),
			LockDelay: int64(s.LockDelay), ReleaseOnDisconnect: int64(s.Grace),
		},
	}
}

func toRefs(refs []fsm.TicketRef) []*zamokpb.TicketRef {
	list := make([]*zamokpb.TicketRef, len(refs))
	for i, r := range refs {
		list[i] = &zamokpb.TicketRef{Session: uint64(r.Session), Ticket: r.Ticket}
	}
	return list
}

func toLinks(links []fsm.Link) []*zamokpb.Link {
	list := make([]*zamokpb.Link, len(links))
	for i, l := range links {
		list[i] = &zamokpb.Link{
			Session: uint64(l.Session), Ticket: l.Ticket, Owner: l.Owner, State: zamokpb.State(l.State), Name: l.Name,
		}
	}
	return list
}

// toBlockers leaves labels and metadata out, which only the machine knows: see describe.
func toBlockers(blockers []fsm.Blocker) []*zamokpb.Blocker {
	list := make([]*zamokpb.Blocker, len(blockers))
	for i, b := range blockers {
		list[i] = &zamokpb.Blocker{
			Name: b.Name, By: zamokpb.BlockedBy(b.By), Session: uint64(b.Session), Ticket: b.Ticket,
			Token: b.Token, Owner: b.Owner, Until: int64(b.Until),
		}
	}
	return list
}

// blockerMetadataMax is how much of a blocker's metadata is told: sixteen of them, whole, would not
// fit into the headers that many gRPC clients accept an error in.
const blockerMetadataMax = 128

// describe adds, for people, what the sessions and tickets in the way say of themselves, and how long a delay continues.
func describe(m *fsm.Machine, blockers []*zamokpb.Blocker) {
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
		metadata := m.Metadata(fsm.TicketRef{Session: id, Ticket: b.Ticket})
		b.Metadata = []byte(metadata[:min(len(metadata), blockerMetadataMax)])
	}
}
