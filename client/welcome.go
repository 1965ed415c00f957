package client

import (
	"maps"
	"slices"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// hi is the first frame of a stream.
func (s *session) hi() *zamokpb.ClientFrame {
	cfg := &s.c.cfg
	s.attempt++
	hello := &zamokpb.Hello{Secret: s.secret, Session: s.id, Attempt: s.attempt, Settings: &zamokpb.SessionSettings{
		Ttl: int64(cfg.TTL), Label: cfg.Label, Metadata: cfg.Metadata,
		LockDelay: int64(cfg.LockDelay), ReleaseOnDisconnect: int64(cfg.ReleaseOnDisconnect),
	}}
	now := s.c.clock.Now()
	s.sent = now
	return &zamokpb.ClientFrame{
		Messages: []*zamokpb.ClientMessage{{Message: &zamokpb.ClientMessage_Hello{Hello: hello}}},
		Sent:     encodeInstant(now), Floor: s.floor,
	}
}

// welcome sets right what is known of every ticket, and puts in line what is to be said: what nobody wants
// any more is dropped first.
func (s *session) welcome(st *stream, w *zamokpb.Welcome) {
	if s.over != nil {
		return
	}
	s.check(s.c.clock.Now()) // whose time was over stays lost, whatever the cluster says now
	if s.trust == nil {
		s.ttl = clock.Span(w.GetTtl())
		s.trust = clock.NewLocalDeadline(s.ttl)
	}
	if least := clock.Span(w.GetTtlMin()); s.ttl < least && least != s.ttlMin {
		s.c.log.Warn("zamok: the session's ttl is too short for the cluster's election timeout now: most failovers would end it, and its locks "+
			"be lost; use a longer one", "ttl", s.ttl, "at_least", least)
	}
	s.ttlMin = clock.Span(w.GetTtlMin())
	s.id, s.link, s.told, s.warned = w.GetSession(), st, 0, false
	s.silent, s.closed = false, false
	s.drops, s.says, s.again = nil, nil, nil
	s.learn(w.GetSent(), w.GetTime())

	told := make(map[uint64]bool, len(w.GetTickets()))
	for _, state := range w.GetTickets() {
		number := state.GetTicket()
		told[number] = true
		if t := s.tickets[number]; t != nil {
			t.move(state)
		} else if state.GetState() != zamokpb.State_STATE_GONE {
			s.stray(state)
		}
	}
	numbers := slices.Sorted(maps.Keys(s.tickets))
	for _, number := range numbers {
		t := s.tickets[number]
		if !told[number] && number <= s.floor {
			t.gone(zamokpb.Why_WHY_UNSPECIFIED, "")
			continue
		}
		t.queued = false
		if t.stage == leaving || t.state == zamokpb.State_STATE_UNSPECIFIED || t.downgrade == asked {
			s.say(t)
		}
	}
	poke(s.wake) // for what is fresh
	poke(s.kick)
}

// stray takes in a ticket that nobody here knows. Whatever it is, it must not hold anything.
func (s *session) stray(state *zamokpb.TicketState) *ticket {
	t := &ticket{s: s, number: state.GetTicket(), state: state.GetState(), stage: leaving}
	s.tickets[t.number] = t
	return t
}
