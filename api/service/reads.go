package service

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// answerBytesMax: a listing, and what Get returns, ends with the element that brings it above this.
// In JSON a byte takes up to six, as <, a control character in metadata, so no answer over HTTP has
// more than 4 MiB.
const answerBytesMax = 512 << 10

const (
	ListMax = 1000 // elements of one listing
	ShowMax = 200  // holders, and waiters, that Get returns
)

// showDefault is how many holders, and waiters, Get returns if the request has no limit.
const showDefault = 100

// read lets f read much of the state, behind a read barrier: the state has everything that was
// acknowledged anywhere before the call. Nothing is applied while f runs.
func (s *Service) read(ctx context.Context, f func(*fsm.Machine)) error {
	return s.readInParts(ctx, func(m *fsm.Machine) (more bool) {
		f(m)
		return false
	})
}

// readInParts is read for more than may be read at once: part is called until it reports that there
// is no more, and between two parts entries are applied, and other calls read.
func (s *Service) readInParts(ctx context.Context, part func(*fsm.Machine) (more bool)) error {
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

// readPart lets f read when the call has its slots: one call reads at a time, one of each caller
// waits for that, and one of each connection waits for the slot of its caller. Callers on one
// connection do not wait for each other: a node relays all its calls over one.
func (s *Service) readPart(ctx context.Context, f func(*fsm.Machine)) error {
	by := CallerOf(ctx)
	caller := reader{principal: by.Principal()}
	readers := []reader{caller}
	if on := by.Connection(); on != nil {
		readers = []reader{{caller.principal, on}, caller}
	}
	slots, leave := s.readSlots.join(readers)
	defer leave()
	for _, slot := range append(slots, s.reading) {
		select {
		case slot <- struct{}{}:
			defer func() { <-slot }()
		case <-ctx.Done():
			return wire.Explain(context.Cause(ctx))
		}
	}
	s.node.View(f)
	return nil
}

// reader is a caller, or what it calls on one connection.
type reader struct {
	principal string
	conn      any // nil: all
}

// readSlots are the slots of the calls that read, or wait to do so.
type readSlots struct {
	mu sync.Mutex
	of map[reader]*readSlot
}

type readSlot struct {
	taken chan struct{} // capacity 1: full while one of the calls reads, or waits for the next slot
	calls int
}

// join returns the slots of readers. The caller calls leave after the read.
func (t *readSlots) join(readers []reader) (taken []chan struct{}, leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range readers {
		own := t.of[r]
		if own == nil {
			own = &readSlot{taken: make(chan struct{}, 1)}
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
func (s *Service) Get(ctx context.Context, req *zamokpb.GetRequest) (*zamokpb.GetResponse, error) {
	limit := cmp.Or(int(req.Limit), showDefault)
	answer := &zamokpb.GetResponse{}
	return answer, s.read(ctx, func(m *fsm.Machine) {
		lock, _ := m.Lock(req.Name)
		answer.Lock, answer.Stamp = wire.LockSummary(lock, wire.HoldOffUntil(m)), wire.StampOf(m)
		ticket := func(ref fsm.TicketRef) *zamokpb.Ticket {
			return wire.Ticket(m, ref, s.History.At)
		}
		bytes := 0
		answer.Holders = describe(m.Holders(req.Name), ticket, limit, &bytes)
		answer.Queue = describe(m.Waiters(req.Name), ticket, limit, &bytes)
	})
}

// describe converts up to limit elements, or fewer: until bytes, to which it adds, are more than
// answerBytesMax.
func describe[From any, To proto.Message](list iter.Seq[From], convert func(From) To, limit int,
	bytes *int) (converted []To) {
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
func (s *Service) List(ctx context.Context,
	req *zamokpb.ListRequest) (*zamokpb.ListResponse, error) {
	answer := &zamokpb.ListResponse{}
	var locks []fsm.LockSummary // converted after the read, when entries are applied again
	var holdOff clock.Time
	part := CallerOf(ctx).Locks(req.Prefix, req.After, cmp.Or(int(req.Limit), ListMax), &locks)
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
func (s *Service) ListSessions(ctx context.Context,
	req *zamokpb.ListSessionsRequest) (*zamokpb.ListSessionsResponse, error) {
	answer := &zamokpb.ListSessionsResponse{}
	var living []session.Session
	part := CallerOf(ctx).Sessions(session.ID(req.After), cmp.Or(int(req.Limit), ListMax), &living)
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
func (s *Service) Check(ctx context.Context,
	req *zamokpb.CheckRequest) (*zamokpb.CheckResponse, error) {
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

// Now reads the replicated clock after a read barrier of its own, so that it rises from call to
// call.
func (s *Service) Now(ctx context.Context, _ *zamokpb.NowRequest) (*zamokpb.NowResponse, error) {
	stamp, now, err := s.node.ReadBarrier(ctx)
	if err != nil {
		return nil, wire.Explain(err)
	}
	return &zamokpb.NowResponse{Stamp: wire.Stamp(stamp, now)}, nil
}

// reachedWait is how long a follower waits until it has applied the index from which it is to
// watch: usually it lags behind the answer of a leader, by milliseconds.
const reachedWait = time.Second

// checkReached refuses an index of the future, such as one of another cluster: a watch from there
// would skip events. To a follower it looks like one that it will apply soon, so it names the
// leader.
func (s *Service) checkReached(ctx context.Context, from uint64) error {
	if s.History.Reached(from) {
		return nil
	}
	stamp, _, err := s.node.ReadBarrier(ctx)
	switch {
	case err != nil:
		soon, cancel := context.WithTimeout(ctx, reachedWait)
		defer cancel()
		if s.History.Await(soon, from) {
			return nil
		}
		return wire.Explain(err)
	case from > stamp.Index:
		return wire.Invalid("from",
			"is index %d, and this cluster has reached %d only: is it of another cluster? List "+
				"again, and watch from the list's index", from, stamp.Index)
	}
	return nil
}

// Watch sends the events of locks under a prefix, and with the prefix "" also those of sessions,
// from this node's history. Sending runs on a goroutine of its own: a client that reads nothing
// would hold it forever, and is cut when an event that it has not read is forgotten.
func (s *Service) Watch(ctx context.Context, req *zamokpb.WatchRequest,
	send func(any) error) error {
	if err := s.checkReached(ctx, req.From); err != nil {
		return err
	}
	caller := CallerOf(ctx)
	w, err := s.History.Watch(ctx, req.Prefix, req.From, caller.Key(), caller.Watches)
	if err != nil {
		return err
	}
	defer w.End()
	failed := make(chan error, 1)
	s.busy.Go(func() { failed <- w.Send(send) }) // ends with the stream, whose end interrupts Send
	select {
	case err := <-failed:
		return err
	case <-w.Done():
		return w.Err()
	case <-s.Stopping:
		return wire.Errorf(zamokpb.Code_CODE_STOPPING,
			"this node is stopping; watch at another one, from the last index")
	}
}
