package api

import (
	"context"
	"errors"
	"time"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

const (
	// dropEvery and dropTries: while the node is overloaded, the drop of an acquisition that nobody
	// waits for any more is handed in again so often. It was not done then, so nothing is done twice.
	dropEvery = 100 * time.Millisecond
	dropTries = 50
)

// OpenSession opens a session, or finds the one that the secret opened.
func (s *Server) OpenSession(ctx context.Context, req *zamokpb.OpenSessionRequest) (*zamokpb.OpenSessionResponse, error) {
	secret, f := hashOf(req.Secret)
	if f == nil {
		f = checkSent(req.Sent)
	}
	if f == nil {
		f = s.may(ctx, VerbSession, "")
	}
	if f == nil {
		f = s.roomFor(secret)
	}
	if f != nil {
		return nil, f
	}
	command, f := openCommand(secret, identity(ctx), req.Settings, s.node.Timeout())
	if f != nil {
		return nil, f
	}
	a, err := s.propose(ctx, command)
	if err != nil {
		return nil, err
	}
	return &zamokpb.OpenSessionResponse{
		Session: uint64(a.Result.Session), Ttl: int64(a.Result.TTL), Sent: req.Sent, Time: int64(a.Time),
	}, nil
}

// RenewSession is answered once the renewal is applied.
func (s *Server) RenewSession(ctx context.Context, req *zamokpb.RenewSessionRequest) (*zamokpb.RenewSessionResponse, error) {
	id, err := s.own(ctx, VerbSession, req.Session, req.Secret, req.Sent)
	if err != nil {
		return nil, err
	}
	a, err := s.renew(ctx, id)
	if err != nil {
		return nil, err
	}
	var ttl clock.Span
	s.node.View(func(m *fsm.Machine) {
		living, _ := m.Session(id)
		ttl = living.TTL
	})
	return &zamokpb.RenewSessionResponse{Sent: req.Sent, Time: int64(a.Time), Ttl: int64(ttl), TtlMin: int64(ttlMin(s.node.Timeout()))}, nil
}

// CloseSession ends a session by its client's wish. One that is over already is as its client wants it,
// but the server can't tell whose it was.
func (s *Server) CloseSession(ctx context.Context, req *zamokpb.CloseSessionRequest) (*zamokpb.CloseSessionResponse, error) {
	id, err := s.own(ctx, VerbSession, req.Session, req.Secret, nil)
	if err != nil {
		return nil, err
	}
	if _, err := s.propose(ctx, &fsm.CloseSession{Session: id}); err != nil {
		return nil, err
	}
	return &zamokpb.CloseSessionResponse{}, nil
}

// Acquire is held open until the ticket is granted or over.
func (s *Server) Acquire(ctx context.Context, req *zamokpb.AcquireRequest) (*zamokpb.AcquireResponse, error) {
	began := time.Now()
	command, f := acquireCommand(session.ID(req.Session), req.AckedThrough, req.Acquire)
	if f == nil {
		f = s.mayAcquire(ctx, command.Items)
	}
	if f == nil {
		f = s.roomForTicket(fsm.TicketRef{Session: command.Session, Ticket: command.Ticket})
	}
	if f != nil {
		return nil, f
	}
	id, err := s.own(ctx, VerbSession, req.Session, req.Secret, req.Sent)
	if err != nil {
		return nil, err
	}
	// Before it is proposed: the event comes before the answer.
	wait := s.hub.addWaiter(fsm.TicketRef{Session: id, Ticket: command.Ticket})
	defer s.hub.cancelWait(wait)
	a, err := s.propose(ctx, command)
	if err != nil {
		if ctx.Err() != nil {
			s.abandon(wait)
		}
		return nil, err
	}
	state := resultState(command.Ticket, a.Result)
	if state.State == fsm.Waiting {
		if state, err = s.await(ctx, wait); err != nil {
			return nil, err
		}
	}
	switch {
	case state.State == fsm.Ended:
		return nil, endedError(state)
	case ctx.Err() != nil:
		s.abandon(wait) // granted to nobody: the answer would not arrive
		return nil, explain(context.Cause(ctx))
	}
	s.observer.waited(command.Items, time.Since(began))
	return &zamokpb.AcquireResponse{State: ticketState(state), Sent: req.Sent, Time: int64(a.Time)}, nil
}

// await holds a call until its ticket is granted or gone. If the caller goes away first, the ticket is
// dropped; if this node can't tell any more, it waits on, and the caller may ask for it elsewhere.
func (s *Server) await(ctx context.Context, wait *waiter) (fsm.TicketState, error) {
	select {
	case end := <-wait.end:
		if end.failure == nil {
			return end.state, nil
		}
		f := streamEnded(end.failure.info.Code, "the ticket waits on: %v", end.failure)
		if id, client := s.node.Leader(); id != s.id {
			f.info.Leader, f.info.LeaderAddress = id, client
		}
		return fsm.TicketState{}, f
	case <-s.stopping:
		return fsm.TicketState{}, streamEnded(zamokpb.Code_CODE_STOPPING,
			"the ticket waits on, and this node is stopping; ask another for the same ticket")
	case <-ctx.Done():
		s.abandon(wait)
		return fsm.TicketState{}, explain(context.Cause(ctx))
	}
}

// abandon drops a ticket that nobody waits for any more. The Acquire was handed in before, so the drop
// comes behind it. Should leadership be lost first, the ticket lives as long as its session.
func (s *Server) abandon(wait *waiter) {
	if !s.hub.repeated(wait) {
		s.dropFor(wait.ref, dropTries)
	}
}

func (s *Server) dropFor(ref fsm.TicketRef, tries int) {
	s.node.Submit(&fsm.Drop{Session: ref.Session, Ticket: ref.Ticket}, func(_ raftnode.Answer, err error) {
		if errors.Is(err, raftnode.ErrOverloaded) && tries > 1 && !s.isStopping() {
			time.AfterFunc(dropEvery, func() { s.dropFor(ref, tries-1) }) // a node that is closed refuses
		}
	})
}

// endedError says why a ticket that was asked for is not held.
func endedError(t fsm.TicketState) *failure {
	var f *failure
	switch t.Reason {
	case fsm.WaitTimeout:
		f = fail(zamokpb.Code_CODE_NOT_ACQUIRED, "not acquired: the wait was over")
	case fsm.Closed, fsm.Expired, fsm.Disconnected, fsm.Evicted, fsm.Restored:
		f = fail(zamokpb.Code_CODE_NO_SESSION, "not acquired: the session ended meanwhile")
	default:
		f = fail(zamokpb.Code_CODE_TICKET_ENDED, "not held: the ticket ended meanwhile")
	}
	f.info.Reason = zamokpb.Reason(t.Reason)
	return f
}

// Drop ends a ticket whatever it is.
func (s *Server) Drop(ctx context.Context, req *zamokpb.DropRequest) (*zamokpb.DropResponse, error) {
	a, err := s.ofTicket(ctx, req, &fsm.Drop{Session: session.ID(req.Session), Ticket: req.Ticket, AckedThrough: req.AckedThrough})
	if err != nil {
		return nil, err
	}
	state := ticketState(resultState(req.Ticket, a.Result))
	return &zamokpb.DropResponse{State: state, Sent: req.Sent, Time: int64(a.Time)}, nil
}

// Downgrade makes the exclusive locks of a ticket shared.
func (s *Server) Downgrade(ctx context.Context, req *zamokpb.DowngradeRequest) (*zamokpb.DowngradeResponse, error) {
	a, err := s.ofTicket(ctx, req, &fsm.Downgrade{Session: session.ID(req.Session), Ticket: req.Ticket, AckedThrough: req.AckedThrough})
	if err != nil {
		return nil, err
	}
	state := ticketState(resultState(req.Ticket, a.Result))
	return &zamokpb.DowngradeResponse{State: state, Sent: req.Sent, Time: int64(a.Time)}, nil
}

// ticketRequest is what the requests about one ticket have in common.
type ticketRequest interface {
	GetSession() uint64
	GetSecret() []byte
	GetSent() []byte
	GetTicket() uint64
}

// ofTicket proposes a command of a session's owner about a ticket.
func (s *Server) ofTicket(ctx context.Context, req ticketRequest, command fsm.Command) (raftnode.Answer, error) {
	if f := checkTicket(req.GetTicket()); f != nil {
		return raftnode.Answer{}, f
	}
	if _, err := s.own(ctx, VerbDrop, req.GetSession(), req.GetSecret(), req.GetSent()); err != nil {
		return raftnode.Answer{}, err
	}
	return s.propose(ctx, command)
}

// own checks that the caller may do this with a session: that the rules let it, and that it knows the
// session's secret, which the commands of a session do not carry.
func (s *Server) own(ctx context.Context, verb Verb, number uint64, secret, sent []byte) (session.ID, error) {
	id := session.ID(number)
	hash, f := hashOf(secret)
	if f == nil {
		f = checkSent(sent)
	}
	if f == nil {
		f = s.may(ctx, verb, "")
	}
	if f != nil {
		return 0, f
	}
	found, mine := s.ownedBy(id, hash)
	if !found {
		// This node may be behind: then it must not say that there is no such session. And a session
		// that is still to come has an id which others could guess.
		if _, _, err := s.node.Fence(ctx); err != nil {
			return 0, explain(err)
		}
		found, mine = s.ownedBy(id, hash)
	}
	switch {
	case !found:
		return 0, refused(&fsm.Result{Code: fsm.NoSession})
	case !mine:
		return 0, refused(&fsm.Result{Code: fsm.WrongSecret})
	}
	return id, nil
}

func (s *Server) ownedBy(id session.ID, secret session.Hash) (found, mine bool) {
	s.node.View(func(m *fsm.Machine) {
		var living session.Session
		living, found = m.Session(id)
		mine = found && living.Secret == secret
	})
	return found, mine
}

// roomFor refuses another session while there is little disk.
func (s *Server) roomFor(secret session.Hash) *failure {
	return s.room(func(m *fsm.Machine) (there bool) { _, there = m.SessionBySecret(secret); return there })
}

// roomForTicket refuses another acquisition while there is little disk.
func (s *Server) roomForTicket(ref fsm.TicketRef) *failure {
	return s.room(func(m *fsm.Machine) (there bool) { _, there = m.Ticket(ref); return there })
}

// room refuses what would need more disk, while too few nodes have room on theirs. That is the leader's to say: one
// that does not lead refuses as such. What is there already may be asked for again, and what ends locks continues.
func (s *Server) room(there func(*fsm.Machine) bool) (f *failure) {
	reason := s.node.NoRoom()
	if reason == "" {
		return nil
	}
	known := false
	s.node.View(func(m *fsm.Machine) { known = there(m) })
	if known {
		return nil
	}
	return fail(zamokpb.Code_CODE_DISK_LOW, "not done: the cluster is short of disk: %s; no new sessions and acquisitions until "+
		"there is room on a majority; locks that are held stay so", reason)
}

// propose has a command carried out, or says why not in the wire's words.
func (s *Server) propose(ctx context.Context, command fsm.Command) (raftnode.Answer, error) {
	a, err := s.node.Propose(ctx, command)
	if err != nil {
		return a, explain(err)
	}
	if f := refused(&a.Result); f != nil {
		if len(f.info.Blockers) > 0 {
			s.node.View(func(m *fsm.Machine) { describe(m, f.info.Blockers) })
		}
		return a, f
	}
	return a, nil
}

// renew waits until a renewal is applied.
func (s *Server) renew(ctx context.Context, id session.ID) (raftnode.Answer, error) {
	type outcome struct {
		answer raftnode.Answer
		err    error
	}
	ch := make(chan outcome, 1)
	s.node.Renew(id, func(a raftnode.Answer, err error) { ch <- outcome{a, err} })
	select {
	case o := <-ch:
		if o.err != nil {
			return o.answer, explain(o.err)
		}
		if f := refused(&o.answer.Result); f != nil {
			return o.answer, f
		}
		return o.answer, nil
	case <-ctx.Done():
		return raftnode.Answer{}, explain(context.Cause(ctx))
	}
}
