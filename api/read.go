package api

import (
	"cmp"
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"zamok/api/access"
	"zamok/api/history"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// answerBytesMax: a listing, and what Get returns, ends with the element that brings it above this.
const answerBytesMax = 1 << 20

// showDefault is how many holders, and waiters, Get returns if the request has no limit.
const showDefault = 100

// read lets f read much of the state, behind a read barrier: the state has everything that was acknowledged
// anywhere before the call. Nothing is applied while f runs, so only one call reads at a time, and only one
// of each connection waits for that.
func (s *Server) read(ctx context.Context, f func(*fsm.Machine)) error {
	if _, _, err := s.node.ReadBarrier(ctx); err != nil {
		return wire.Explain(err)
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
			return wire.Explain(context.Cause(ctx))
		}
	}
	s.node.View(f)
	return nil
}

// Get describes one lock with its holders and waiters.
func (s *Server) Get(ctx context.Context, req *zamokpb.GetRequest) (*zamokpb.GetResponse, error) {
	limit := cmp.Or(int(req.Limit), showDefault)
	answer := &zamokpb.GetResponse{}
	return answer, s.read(ctx, func(m *fsm.Machine) {
		lock, used := m.Lock(req.Name, 0)
		if !used {
			lock.Name = req.Name
		}
		answer.Lock, answer.Stamp = wire.LockSummary(lock.LockSummary, wire.HoldOffUntil(m)), wire.StampOf(m)
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

// ticket describes a live ticket, with its ages.
func (s *Server) ticket(m *fsm.Machine, ref fsm.TicketRef) *zamokpb.Ticket {
	v, _ := m.Ticket(ref)
	t := wire.Ticket(m, v)
	t.EnqueuedAt = int64(s.times.At(v.Enqueued))
	if v.State == fsm.Granted {
		t.GrantedAt = int64(s.times.At(v.Token))
	}
	return t
}

// List lists locks in use.
func (s *Server) List(ctx context.Context, req *zamokpb.ListRequest) (*zamokpb.ListResponse, error) {
	answer := &zamokpb.ListResponse{}
	var locks []fsm.LockSummary // converted after the read, when entries are applied again
	var holdOff clock.Time
	err := s.read(ctx, func(m *fsm.Machine) {
		locks = m.Locks(req.Prefix, req.After, cmp.Or(int(req.Limit), access.ListMax))
		answer.Stamp, holdOff = wire.StampOf(m), wire.HoldOffUntil(m)
	})
	for _, lock := range locks {
		answer.Locks = append(answer.Locks, wire.LockSummary(lock, holdOff))
	}
	return answer, err
}

// ListSessions lists live sessions.
func (s *Server) ListSessions(ctx context.Context, req *zamokpb.ListSessionsRequest) (*zamokpb.ListSessionsResponse, error) {
	answer := &zamokpb.ListSessionsResponse{}
	var living []session.Session
	err := s.read(ctx, func(m *fsm.Machine) {
		living = m.Sessions(session.ID(req.After), cmp.Or(int(req.Limit), access.ListMax))
		answer.Stamp = wire.StampOf(m)
	})
	bytes := 0
	for _, one := range living {
		if bytes > answerBytesMax {
			break
		}
		info := wire.SessionInfo(one)
		bytes += proto.Size(info)
		answer.Sessions = append(answer.Sessions, info)
	}
	return answer, err
}

// Check reports whether a grant is held.
func (s *Server) Check(ctx context.Context, req *zamokpb.CheckRequest) (*zamokpb.CheckResponse, error) {
	if _, _, err := s.node.ReadBarrier(ctx); err != nil {
		return nil, wire.Explain(err)
	}
	answer := &zamokpb.CheckResponse{}
	s.node.View(func(m *fsm.Machine) {
		ref := fsm.TicketRef{Session: session.ID(req.Session), Ticket: req.Ticket}
		answer.Held, answer.Stamp = m.Holds(req.Name, req.Token, ref), wire.StampOf(m)
	})
	if index := answer.Stamp.Index; req.Token > index {
		return nil, wire.NeverIssued(index)
	}
	return answer, nil
}

// Now reads the replicated clock after a read barrier of its own, so that it rises from call to call.
func (s *Server) Now(ctx context.Context, _ *zamokpb.NowRequest) (*zamokpb.NowResponse, error) {
	stamp, now, err := s.node.ReadBarrier(ctx)
	if err != nil {
		return nil, wire.Explain(err)
	}
	return &zamokpb.NowResponse{Stamp: wire.Stamp(stamp, now)}, nil
}

// Watch sends the events of locks under a prefix, and with the prefix "" also those of sessions, from this
// node's history. Sending runs on a goroutine of its own: a client that reads nothing would hold it forever,
// and is cut when an event that it has not read is forgotten.
func (s *Server) Watch(req *zamokpb.WatchRequest, stream grpc.ServerStreamingServer[zamokpb.WatchFrame]) error {
	ctx := stream.Context()
	if err := s.guard.Admit(ctx, req); err != nil {
		return err
	}
	w, err := s.history.Watch(req.Prefix, req.From)
	if err != nil {
		return err
	}
	defer w.End()
	failed := make(chan error, 1)
	s.busy.Go(func() { failed <- s.sendEvents(w, stream) }) // ends with the stream, whose end interrupts Send
	select {
	case err := <-failed:
		return err
	case <-w.Done():
		return w.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.stopping:
		return wire.Errorf(zamokpb.Code_CODE_STOPPING, "this node is stopping; watch at another one, from the last index")
	}
}

// sendEvents sends what a watch reads until it fails or its stream ends.
func (s *Server) sendEvents(w *history.Watch, stream grpc.ServerStreamingServer[zamokpb.WatchFrame]) error {
	next, some := w.Start(), true
	for {
		if some {
			err := s.history.Reserve(next)
			if err == nil {
				err = stream.Send(w.Frame(next))
				s.history.Release(next)
			}
			if err != nil {
				return err
			}
		} else {
			select {
			case <-w.Wake():
			case <-stream.Context().Done():
				return context.Cause(stream.Context())
			}
		}
		var err error
		if next, some, err = w.Read(); err != nil {
			return err
		}
	}
}
