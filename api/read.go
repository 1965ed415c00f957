package api

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// What is read is read behind a fence: it holds all that was acknowledged anywhere before the call.

// read lets f read much of this node's machine, if this node leads. Nothing is applied meanwhile, so only one
// call reads at a time, and only one of each connection waits for that.
func (s *Server) read(ctx context.Context, f func(*fsm.Machine)) error {
	if _, _, err := s.node.Fence(ctx); err != nil {
		return explain(err)
	}
	turns := []chan struct{}{s.reading}
	if l := trackedConnOf(ctx); l != nil {
		turns = []chan struct{}{l.reading, s.reading}
	}
	for _, turn := range turns {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return explain(context.Cause(ctx))
		}
	}
	s.node.View(f)
	return nil
}

// Get describes one lock with its holders and waiters, up to answerBytesMax.
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
		lock, used := m.Lock(req.Name, 0)
		if !used {
			lock.Name = req.Name
		}
		answer.Lock, answer.Stamp = toSummary(lock.LockSummary, holdOffUntil(m)), stampOf(m)
		bytes := 0
		some := func(refs iter.Seq[fsm.TicketRef]) (tickets []*zamokpb.Ticket) {
			for ref := range refs {
				if len(tickets) == limit || bytes > answerBytesMax {
					break
				}
				t := s.ticket(m, ref)
				bytes += proto.Size(t)
				tickets = append(tickets, t)
			}
			return tickets
		}
		answer.Holders, answer.Queue = some(m.Holders(req.Name)), some(m.Waiters(req.Name))
	})
}

// ticket describes a live ticket, with its ages and what blocks it.
func (s *Server) ticket(m *fsm.Machine, ref fsm.TicketRef) *zamokpb.Ticket {
	v, _ := m.Ticket(ref)
	t := toTicket(m, v)
	t.EnqueuedAt = int64(s.appliedTimes.at(v.Enqueued))
	if v.State == fsm.Granted {
		t.GrantedAt = int64(s.appliedTimes.at(v.Token))
		return t
	}
	t.Blockers = toBlockers(m.Blockers(ref))
	describe(m, t.Blockers)
	return t
}

// List lists locks in use.
func (s *Server) List(ctx context.Context, req *zamokpb.ListRequest) (*zamokpb.ListResponse, error) {
	limit, f := checkLimit(req.Limit, listMax, listMax)
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
	var locks []fsm.LockSummary // made into the answer when the machine may continue
	var holdOff clock.Time
	err := s.read(ctx, func(m *fsm.Machine) {
		locks, answer.Stamp, holdOff = m.Locks(req.Prefix, req.After, limit), stampOf(m), holdOffUntil(m)
	})
	for _, lock := range locks {
		answer.Locks = append(answer.Locks, toSummary(lock, holdOff))
	}
	return answer, err
}

// ListSessions lists living sessions.
func (s *Server) ListSessions(ctx context.Context, req *zamokpb.ListSessionsRequest) (*zamokpb.ListSessionsResponse, error) {
	limit, f := checkLimit(req.Limit, listMax, listMax)
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
	bytes := 0
	for _, one := range living {
		if bytes > answerBytesMax {
			break
		}
		info := toSessionInfo(one)
		bytes += proto.Size(info)
		answer.Sessions = append(answer.Sessions, info)
	}
	return answer, err
}

// Check reports whether a grant is held.
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
	if _, _, err := s.node.Fence(ctx); err != nil {
		return nil, explain(err)
	}
	s.node.View(func(m *fsm.Machine) {
		ref := fsm.TicketRef{Session: session.ID(req.Session), Ticket: req.Ticket}
		answer.Held, answer.Stamp = m.Holds(req.Name, req.Token, ref), stampOf(m)
		if index := m.Stamp().Index; req.Token > index {
			f = fail(zamokpb.Code_CODE_INVALID, "%s", neverIssued(index))
			f.info.Field = "token"
		}
	})
	if f != nil {
		return nil, f
	}
	return answer, nil
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
