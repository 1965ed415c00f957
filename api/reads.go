package api

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/conns"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// answerBytesMax: a listing, and what Get returns, ends with the element that brings it above this. In JSON a byte takes up to
// six, as <, a control character in metadata, so no answer over HTTP has more than 4 MiB.
const answerBytesMax = 512 << 10

// showDefault is how many holders, and waiters, Get returns if the request has no limit.
const showDefault = 100

// read lets f read much of the state, behind a read barrier: the state has everything that was acknowledged
// anywhere before the call. Nothing is applied while f runs.
func (s *Server) read(ctx context.Context, f func(*fsm.Machine)) error {
	return s.readInParts(ctx, func(m *fsm.Machine) (more bool) {
		f(m)
		return false
	})
}

// readInParts is read for more than may be read at once: part is called until it reports that there is no more, and between
// two parts entries are applied, and other calls read.
func (s *Server) readInParts(ctx context.Context, part func(*fsm.Machine) (more bool)) error {
	end, err := s.limits.Open(limits.Reads, access.CallerOf(ctx).Account())
	if err != nil {
		return err
	}
	defer end()
	if _, _, err := s.node.ReadBarrier(ctx); err != nil {
		return wire.Explain(err)
	}
	for more := true; more; {
		if err := s.readPart(ctx, func(m *fsm.Machine) { more = part(m) }); err != nil {
			return err
		}
	}
	return nil
}

// readPart lets f read when it is the call's turn: only one call reads at a time, only one of each caller waits for that, and only
// one of each connection for the turn of its caller. Callers on one connection do not wait for each other: a node relays all its
// calls over one.
func (s *Server) readPart(ctx context.Context, f func(*fsm.Machine)) error {
	caller := reader{account: access.CallerOf(ctx).Account()}
	readers := []reader{caller}
	if l := conns.Of(ctx); l != nil {
		readers = []reader{{caller.account, l}, caller}
	}
	turns, leave := s.turns.join(readers)
	defer leave()
	for _, turn := range append(turns, s.reading) {
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

// reader is a caller, or what it calls on one connection.
type reader struct {
	account string
	conn    *conns.Conn // nil: all
}

// turns are those of the calls that read, or wait to do so.
type turns struct {
	mu sync.Mutex
	of map[reader]*turn
}

type turn struct {
	taken chan struct{} // capacity 1: full while one of the calls reads, or waits for the next turn
	calls int
}

// join returns the turns of readers. The caller calls leave after the read.
func (t *turns) join(readers []reader) (taken []chan struct{}, leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range readers {
		own := t.of[r]
		if own == nil {
			own = &turn{taken: make(chan struct{}, 1)}
			t.of[r] = own
		}
		own.calls++
		taken = append(taken, own.taken)
	}
	return taken, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, r := range readers {
			if t.of[r].calls--; t.of[r].calls == 0 {
				delete(t.of, r)
			}
		}
	}
}

// Get describes one lock with its holders and waiters.
func (s *Server) Get(ctx context.Context, req *zamokpb.GetRequest) (*zamokpb.GetResponse, error) {
	limit := cmp.Or(int(req.Limit), showDefault)
	answer := &zamokpb.GetResponse{}
	return answer, s.read(ctx, func(m *fsm.Machine) {
		lock, _ := m.Lock(req.Name)
		answer.Lock, answer.Stamp = wire.LockSummary(lock, wire.HoldOffUntil(m)), wire.StampOf(m)
		ticket := func(ref fsm.TicketRef) *zamokpb.Ticket { return wire.Ticket(m, ref, s.history.At) }
		bytes := 0
		answer.Holders = describe(m.Holders(req.Name), ticket, limit, &bytes)
		answer.Queue = describe(m.Waiters(req.Name), ticket, limit, &bytes)
	})
}

// describe converts up to limit elements, or fewer: until bytes, to which it adds, are more than answerBytesMax.
func describe[From any, To proto.Message](list iter.Seq[From], convert func(From) To, limit int, bytes *int) (converted []To) {
	for from := range list {
		if len(converted) == limit || *bytes > answerBytesMax {
			break
		}
		to := convert(from)
		*bytes += proto.Size(to)
		converted = append(converted, to)
	}
	return converted
}

// List lists locks in use.
func (s *Server) List(ctx context.Context, req *zamokpb.ListRequest) (*zamokpb.ListResponse, error) {
	answer := &zamokpb.ListResponse{}
	var locks []fsm.LockSummary // converted after the read, when entries are applied again
	var holdOff clock.Time
	part := s.guard.Locks(access.CallerOf(ctx), req.Prefix, req.After, cmp.Or(int(req.Limit), access.ListMax), &locks)
	err := s.readInParts(ctx, func(m *fsm.Machine) (more bool) {
		if answer.Stamp == nil { // a watch from there misses no change of a later part
			answer.Stamp, holdOff = wire.StampOf(m), wire.HoldOffUntil(m)
		}
		return part(m)
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
	part := s.guard.Sessions(access.CallerOf(ctx), session.ID(req.After), cmp.Or(int(req.Limit), access.ListMax), &living)
	err := s.readInParts(ctx, func(m *fsm.Machine) (more bool) {
		if answer.Stamp == nil {
			answer.Stamp = wire.StampOf(m)
		}
		return part(m)
	})
	answer.Sessions = describe(slices.Values(living), wire.SessionInfo, len(living), new(int))
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

// reachedWait is how long a follower waits until it has applied the index from which it is to watch: usually it lags
// behind the answer of a leader, by milliseconds.
const reachedWait = time.Second

// checkReached refuses an index of the future, such as one of another cluster: a watch from there would skip events. A
// follower can't tell it from one that it has not applied yet, and names the leader.
func (s *Server) checkReached(ctx context.Context, from uint64) error {
	if s.history.Reached(from) {
		return nil
	}
	stamp, _, err := s.node.ReadBarrier(ctx)
	switch {
	case err != nil:
		soon, cancel := context.WithTimeout(ctx, reachedWait)
		defer cancel()
		if s.history.Await(soon, from) {
			return nil
		}
		return wire.Explain(err)
	case from > stamp.Index:
		return wire.Invalid("from", "is index %d, and this cluster has reached %d only: is it of another cluster? "+
			"List again, and watch from the list's index", from, stamp.Index)
	}
	return nil
}

// Watch sends the events of locks under a prefix, and with the prefix "" also those of sessions, from this
// node's history. Sending runs on a goroutine of its own: a client that reads nothing would hold it forever,
// and is cut when an event that it has not read is forgotten.
func (s *Server) Watch(req *zamokpb.WatchRequest, stream grpc.ServerStreamingServer[zamokpb.WatchFrame]) error {
	ctx := stream.Context()
	end, err := s.admit(ctx, req)
	if err != nil {
		return err
	}
	defer end()
	if err := s.checkReached(ctx, req.From); err != nil {
		return err
	}
	ctx, stop := s.whileAllowed(ctx, zamokpb.Zamok_Watch_FullMethodName, req)
	defer stop()
	caller := access.CallerOf(ctx)
	view := func() (any, func(string) bool) { return s.guard.Watches(caller) }
	w, err := s.history.Watch(ctx, req.Prefix, req.From, caller.Key(), view)
	if err != nil {
		return err
	}
	defer w.End()
	failed := make(chan error, 1)
	s.busy.Go(func() { failed <- w.Send(stream.SendMsg) }) // ends with the stream, whose end interrupts Send
	select {
	case err := <-failed:
		return err
	case <-w.Done():
		return w.Err()
	case <-s.stopping:
		return wire.Errorf(zamokpb.Code_CODE_STOPPING, "this node is stopping; watch at another one, from the last index")
	}
}
