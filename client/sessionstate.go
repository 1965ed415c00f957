package client

import (
	"maps"
	"slices"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// openFrame is the first frame of a stream.
func (s *session) openFrame() *zamokpb.ClientFrame {
	s.attempt++
	open := &zamokpb.OpenStream{Secret: s.secret, Session: s.id, Attempt: s.attempt, Settings: s.c.cfg.settings()}
	now := s.c.clock.Now()
	s.sent = now
	return &zamokpb.ClientFrame{
		Messages: []*zamokpb.ClientMessage{{Message: &zamokpb.ClientMessage_Open{Open: open}}},
		Sent:     encodeInstant(now), AckedThrough: s.ackedThrough,
	}
}

// applySessionState updates every ticket to the cluster's state, and queues what has to be sent, drops first.
func (s *session) applySessionState(st *stream, w *zamokpb.SessionState) {
	if s.state.over() {
		return
	}
	s.become(attach)
	s.checkDeadlines(s.c.clock.Now()) // a lock whose time has passed stays lost, whatever the cluster reports now
	if s.lease == nil {
		s.ttl = clock.Span(w.GetTtl())
		s.lease = clock.NewLocalDeadline(s.ttl)
	}
	if least := clock.Span(w.GetTtlMin()); s.ttl < least && least != s.ttlMin {
		s.c.log.Warn("zamok: the session's ttl is too short for the cluster's election timeout now: most failovers would end it, and its locks "+
			"be lost; use a longer one", "ttl", s.ttl, "at_least", least)
	}
	s.ttlMin = clock.Span(w.GetTtlMin())
	s.id, s.link, s.reported, s.warned = w.GetSession(), st, 0, false
	s.silent, s.closed = false, false
	s.drops, s.outgoing, s.retryQueue = nil, nil, nil
	s.confirmRenewal(w.GetSent(), w.GetTime())

	reported := make(map[uint64]bool, len(w.GetTickets()))
	for _, state := range w.GetTickets() {
		number := state.GetTicket()
		reported[number] = true
		if t := s.tickets[number]; t != nil {
			t.report(state)
		} else if state.GetState() != zamokpb.State_STATE_ENDED {
			s.releaseUnknown(state)
		}
	}
	numbers := slices.Sorted(maps.Keys(s.tickets))
	for _, number := range numbers {
		t := s.tickets[number]
		if !reported[number] && number <= s.ackedThrough {
			t.reportEnd(zamokpb.Reason_REASON_UNSPECIFIED, "")
			continue
		}
		t.queued = false
		if t.state == ticketReleasing || t.state == ticketRequested || t.downgrade == asked {
			s.queueOut(t)
		}
	}
	signal(s.wake) // for new tickets
	signal(s.kick)
}

// releaseUnknown releases a ticket that is unknown here, so that it holds nothing.
func (s *session) releaseUnknown(state *zamokpb.TicketState) *ticket {
	t := &ticket{s: s, number: state.GetTicket(), state: ticketReleasing, token: state.GetToken()}
	s.tickets[t.number] = t
	return t
}
