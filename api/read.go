package api

import (
	"context"

	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/session"
)

// What is read is read behind a fence: it holds all that was acknowledged anywhere before the call.

// read lets f read this node's machine, if this node leads.
func (s *Server) read(ctx context.Context, f func(*fsm.Machine)) error {
	if _, _, err := s.node.Fence(ctx); err != nil {
		return explain(err)
	}
	s.node.View(f)
	return nil
}

// Get tells all about one lock.
func (s *Server) Get(ctx context.Context, req *zamokpb.GetRequest) (*zamokpb.GetResponse, error) {
	limit, f := checkLimit(req.Limit, showDefault, showMax)
	if f == nil {
		f = checkName(req.Name)
	}
	if f == nil {
		f = s.may(ctx, VerbGet, req.Name)
	}
	if f != nil {
		return nil, f
	}
	answer := &zamokpb.GetResponse{}
	return answer, s.read(ctx, func(m *fsm.Machine) {
		lock, used := m.Lock(req.Name, limit)
		if !used {
			lock.Name = req.Name
		}
		answer.Lock, answer.Stamp = toSummary(lock.LockSummary), stampOf(m)
		for _, t := range lock.HeldBy {
			answer.Holders = append(answer.Holders, s.ticket(m, t))
		}
		for _, t := range lock.Queue {
			waiter := s.ticket(m, t)
			waiter.Blockers = toBlockers(m.Blockers(t.TicketRef))
			describe(m, waiter.Blockers)
			answer.Queue = append(answer.Queue, waiter)
		}
	})
}

// ticket tells all about a live ticket, its ages included.
func (s *Server) ticket(m *fsm.Machine, v fsm.TicketView) *zamokpb.Ticket {
	t := toTicket(m, v)
	t.AskedAt = int64(s.timeline.at(v.Born))
	if v.State == fsm.Granted {
		t.GrantedAt = int64(s.timeline.at(v.Token))
	}
	return t
}

// List lists locks in use.
func (s *Server) List(ctx context.Context, req *zamokpb.ListRequest) (*zamokpb.ListResponse, error) {
	limit, f := checkLimit(req.Limit, listDefault, listMax)
	if f == nil {
		f = checkText("prefix", req.Prefix, fsm.NameBytesMax)
	}
	if f == nil {
		f = checkText("after", req.After, fsm.NameBytesMax)
	}
	if f == nil {
		f = s.may(ctx, VerbList, req.Prefix)
	}
	if f != nil {
		return nil, f
	}
	answer := &zamokpb.ListResponse{}
	var locks []fsm.LockSummary // made into the answer when the machine may go on
	err := s.read(ctx, func(m *fsm.Machine) {
		locks, answer.Stamp = m.Locks(req.Prefix, req.After, limit), stampOf(m)
	})
	for _, lock := range locks {
		answer.Locks = append(answer.Locks, toSummary(lock))
	}
	return answer, err
}

// ListSessions lists living sessions.
func (s *Server) ListSessions(ctx context.Context, req *zamokpb.ListSessionsRequest) (*zamokpb.ListSessionsResponse, error) {
	limit, f := checkLimit(req.Limit, listDefault, listMax)
	if f == nil {
		f = s.may(ctx, VerbSessions, "")
	}
	if f != nil {
		return nil, f
	}
	answer := &zamokpb.ListSessionsResponse{}
	var living []session.Session
	err := s.read(ctx, func(m *fsm.Machine) {
		living, answer.Stamp = m.Sessions(session.ID(req.After), limit), stampOf(m)
	})
	for _, one := range living {
		answer.Sessions = append(answer.Sessions, toSessionInfo(one))
	}
	return answer, err
}

// Check tells whether a grant is held.
func (s *Server) Check(ctx context.Context, req *zamokpb.CheckRequest) (*zamokpb.CheckResponse, error) {
	f := checkName(req.Name)
	switch {
	case f != nil:
	case req.Token == 0:
		f = invalid("token", "is 0, which no grant has")
	case (req.Session == 0) != (req.Ticket == 0):
		f = invalid("ticket", "session and ticket name a grant together: give both or none")
	default:
		f = s.may(ctx, VerbGet, req.Name)
	}
	if f != nil {
		return nil, f
	}
	answer := &zamokpb.CheckResponse{}
	return answer, s.read(ctx, func(m *fsm.Machine) {
		ref := fsm.TicketRef{Session: session.ID(req.Session), Ticket: req.Ticket}
		answer.Held, answer.Stamp = m.Holds(req.Name, req.Token, ref), stampOf(m)
	})
}

// Now reads the replicated clock as it stood after a fence of its own, so that it rises from call to
// call.
func (s *Server) Now(ctx context.Context, _ *zamokpb.NowRequest) (*zamokpb.NowResponse, error) {
	if f := s.may(ctx, VerbNow, ""); f != nil {
		return nil, f
	}
	stamp, now, err := s.node.Fence(ctx)
	if err != nil {
		return nil, explain(err)
	}
	return &zamokpb.NowResponse{Stamp: toStamp(stamp, now)}, nil
}
