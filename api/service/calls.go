package service

import (
	"context"
	"errors"
	"time"

	"zamok/api/push"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

const (
	// dropEvery and dropTries: while the node is overloaded, the drop of an acquisition whose call
	// broke is submitted again so often. The node had not done it, so the drop takes effect once.
	dropEvery = 100 * time.Millisecond
	dropTries = 50
)

// OpenSession opens a session, or finds the one that the secret opened.
func (s *Service) OpenSession(ctx context.Context,
	req *zamokpb.OpenSessionRequest) (*zamokpb.OpenSessionResponse, error) {
	a, err := s.openSession(ctx, wire.Hash(req.Secret), req.Settings)
	return &zamokpb.OpenSessionResponse{
		Session: uint64(a.Result.Session), Ttl: int64(a.Result.TTL), Sent: req.Sent,
		Time:   int64(a.Time),
		TtlMin: int64(s.node.LeastTTL()),
	}, err
}

func (s *Service) openSession(ctx context.Context, secret session.Hash,
	settings *zamokpb.SessionSettings) (raftnode.Answer, error) {
	// Before the command: another identity with the secret must not renew the session. After it:
	// the session may have been opened meanwhile by another identity, and the command has found it.
	caller, others := CallerOf(ctx), false
	look := func(m *fsm.Machine) {
		if found, lives := m.SessionBySecret(secret); lives {
			others = !caller.Owns(found.Identity)
		} else if ended, known := m.EndedSession(secret); known {
			others = !caller.Owns(ended.Identity)
		}
	}
	var a raftnode.Answer
	var err error
	if s.node.View(look); !others {
		a, err = s.propose(ctx, wire.OpenCommand(secret, caller.Identity(), settings))
		s.node.View(look)
	}
	if others {
		return raftnode.Answer{}, wire.FromResult(&fsm.Result{Code: fsm.WrongSecret})
	}
	if e := (*wire.Error)(nil); errors.As(err, &e) && e.Code() == zamokpb.Code_CODE_NO_SESSION {
		e.Info.Message = "not done: what this secret, or this key, has opened was closed, or has " +
			"held a lock and ended; take a new one"
	}
	return a, err
}

// RenewSession is answered once the renewal is applied.
func (s *Service) RenewSession(ctx context.Context,
	req *zamokpb.RenewSessionRequest) (*zamokpb.RenewSessionResponse, error) {
	ttl := s.ttl(req.Session) // the session may end right after the renewal
	a, err := raftnode.Wait(ctx,
		func(done raftnode.Done) { s.node.Renew(session.ID(req.Session), done) })
	e, holdUntil := refusal(&a, err), clock.Time(0)
	if e == nil && req.Ticket != 0 {
		holdUntil, e = s.checkLive(
			fsm.TicketRef{Session: session.ID(req.Session), Ticket: req.Ticket})
	}
	return &zamokpb.RenewSessionResponse{
		Sent: req.Sent, Time: int64(a.Time), Ttl: int64(ttl), TtlMin: int64(s.node.LeastTTL()),
		HoldUntil: int64(holdUntil),
	}, e.Err()
}

// checkLive refuses a ticket that has ended. It returns when its grant ends by its maximum hold; 0:
// it has none.
func (s *Service) checkLive(ref fsm.TicketRef) (holdUntil clock.Time, e *wire.Error) {
	state := fsm.TicketState{State: fsm.Ended} // unless it is known
	s.node.View(func(m *fsm.Machine) {
		if t, known := m.Ticket(ref); known {
			state = t.TicketState
		}
	})
	if state.State != fsm.Ended {
		return state.HoldUntil, nil
	}
	return 0, endedError(state)
}

// ttl is that of a session, which never changes; 0: it has ended.
func (s *Service) ttl(id uint64) (ttl clock.Span) {
	s.node.View(func(m *fsm.Machine) {
		if living, lives := m.Session(session.ID(id)); lives {
			ttl = living.TTL
		}
	})
	return ttl
}

// CloseSession ends a session at its client's request. As long as the state machine remembers that
// its client has closed it, a repetition has the same answer.
func (s *Service) CloseSession(ctx context.Context,
	req *zamokpb.CloseSessionRequest) (*zamokpb.CloseSessionResponse, error) {
	id, response := session.ID(req.Session), &zamokpb.CloseSessionResponse{}
	if s.closedBefore(req, response) {
		return response, nil
	}
	dropped := make(chan *zamokpb.TicketState, 1)
	if req.Ticket != 0 { // submitted before the end of the session, so it is answered before
		s.node.Submit(ctx, &fsm.Drop{Session: id, Ticket: req.Ticket},
			func(a raftnode.Answer, err error) {
				if refusal(&a, err) == nil {
					dropped <- wire.TicketState(wire.ResultState(req.Ticket, &a.Result))
				}
			})
	}
	_, err := s.propose(ctx, &fsm.CloseSession{Session: id})
	select {
	case response.State = <-dropped:
	default:
	}
	if e := (*wire.Error)(nil); errors.As(err, &e) && e.Code() == zamokpb.Code_CODE_NO_SESSION &&
		s.closedBefore(req, response) {
		err = nil
	}
	return response, err
}

// closedBefore reports whether the session was closed before by its client, and completes the
// response then. The gate knows that the secret is that of the session.
func (s *Service) closedBefore(req *zamokpb.CloseSessionRequest,
	response *zamokpb.CloseSessionResponse) bool {
	var ended fsm.EndedSession
	s.node.View(func(m *fsm.Machine) { ended, _ = m.EndedSession(wire.Hash(req.Secret)) })
	if ended.Reason != fsm.Closed {
		return false
	}
	if req.Ticket != 0 && ended.Ticket != 0 {
		response.State = wire.TicketState(
			fsm.TicketState{Ticket: req.Ticket, State: fsm.Ended, Reason: ended.Ticket})
	}
	return true
}

// Acquire is held open until the ticket is granted or ended, or for poll. Without a session it
// opens one.
func (s *Service) Acquire(ctx context.Context,
	req *zamokpb.AcquireRequest) (*zamokpb.AcquireResponse, error) {
	if req.Session != 0 {
		return s.acquire(ctx, req, session.ID(req.Session), s.ttl(req.Session))
	}
	opened, err := s.openSession(ctx, wire.Hash(req.Secret), req.Settings)
	if err != nil {
		return nil, err
	}
	id, same := opened.Result.Session, true
	s.node.View(func(m *fsm.Machine) {
		found, alive := m.Session(id) // opened now, or before
		same = !alive || found.Meta == string(req.Settings.GetMeta())
	})
	if !same {
		return nil, wire.Errorf(zamokpb.Code_CODE_REFUSED,
			"not done: the session of this secret is alive, and was opened with other metadata; "+
				"repeat that request unchanged, or use another secret")
	}
	return s.acquire(ctx, req, id, opened.Result.TTL)
}

// acquire requests a ticket of a session and waits for it.
func (s *Service) acquire(ctx context.Context, req *zamokpb.AcquireRequest, id session.ID,
	ttl clock.Span) (*zamokpb.AcquireResponse, error) {
	began := time.Now()
	command := wire.AcquireCommand(id, req.AckedThrough, req.Acquire)
	ref := fsm.TicketRef{Session: command.Session, Ticket: command.Ticket}
	var wait *push.Waiter
	s.dropping.Lock()
	s.node.View(func(m *fsm.Machine) {
		ticket, _ := m.Ticket(ref)
		// before it is proposed: the event comes before the answer
		wait = s.Hub.Await(ref, ticket.State == fsm.Granted)
	})
	s.dropping.Unlock()
	a, err := s.propose(ctx, command)
	state := wire.ResultState(command.Ticket, &a.Result)
	if e := (*wire.Error)(nil); req.Session == 0 && errors.As(err, &e) &&
		e.Code() == zamokpb.Code_CODE_LIMIT_EXCEEDED && wait.IsOnly() {
		state.State = fsm.Ended // it was not requested, so its session ends
	}
	// this node can't know its end any more, and the caller may request it at another node
	keepsWaiting := false
	if err == nil && state.State == fsm.Waiting {
		end, waits := s.wait(ctx, req, wait, id, ttl, began)
		if !waits {
			state = end.State
		}
		if end.Err != nil {
			// also if the end of this node has cancelled the call by now
			err, keepsWaiting = end.Err, true
		}
	}
	if ctx.Err() != nil && state.State != fsm.Ended && !keepsWaiting &&
		CallerOf(ctx).RelayRemoved() == "" {
		// Its answer would not arrive. The Acquire was submitted before, so the end comes behind
		// it. Should leadership be lost first, the ticket lives as long as its session.
		end := fsm.Command(&fsm.Drop{Session: id, Ticket: ref.Ticket})
		if req.Session == 0 {
			end = &fsm.WithdrawSession{Session: id}
		}
		s.dropFor(ctx, wait, end, dropTries)
		return nil, wire.Explain(context.Cause(ctx))
	}
	if req.Session == 0 && state.State == fsm.Ended {
		// if that fails, its ttl ends it
		s.node.Submit(ctx, &fsm.WithdrawSession{Session: id}, func(raftnode.Answer, error) {})
	}
	switch {
	case err != nil:
		wait.Cancel()
		return nil, err
	case state.State == fsm.Ended:
		wait.Cancel()
		return nil, endedError(state)
	}
	wait.Answered() // one that waits on after poll has no call here until it is requested again
	if state.State == fsm.Granted {
		s.Metrics.Waited(command.Items, time.Since(began))
	}
	return &zamokpb.AcquireResponse{
		State: wire.TicketState(state), Sent: req.Sent, Time: int64(a.Time), Ttl: int64(ttl),
		Session: uint64(id),
		TtlMin:  int64(s.node.LeastTTL()),
	}, nil
}

// wait waits for the end of a ticket's wait, and renews a session of its own meanwhile. It reports
// whether the ticket waits on, as far as this node knows.
func (s *Service) wait(ctx context.Context, req *zamokpb.AcquireRequest, wait *push.Waiter,
	id session.ID, ttl clock.Span, began time.Time,
) (end push.Waited, waits bool) {
	var enough, renew <-chan time.Time
	if req.Poll > 0 {
		timer := time.NewTimer(time.Duration(req.Poll) - time.Since(began))
		defer timer.Stop()
		enough = timer.C
	}
	if req.Session == 0 {
		ticker := time.NewTicker(ttl.Duration() / 3)
		defer ticker.Stop()
		renew = ticker.C
	}
	for {
		select {
		case <-renew:
			// if the session ends, so does the wait
			s.node.Renew(id, func(raftnode.Answer, error) {})
			continue
		case end := <-wait.Done():
			if end.Err == nil {
				return end, false
			}
			e := wire.StreamEnded(end.Err.Code(), "the ticket waits on: %v", end.Err)
			s.nameLeader(e)
			return push.Waited{Err: e}, true
		case <-s.Stopping:
			return push.Waited{Err: wire.StreamEnded(zamokpb.Code_CODE_STOPPING,
				"the ticket waits on, and this node is stopping; request the same ticket from "+
					"another node")}, true
		case <-enough:
		case <-ctx.Done():
			if removed := CallerOf(ctx).RelayRemoved(); removed != "" {
				return push.Waited{Err: wire.StreamEnded(zamokpb.Code_CODE_NOT_LEADER,
					"the ticket waits on, and %s; request the same ticket from another node",
					removed)}, true
			}
		}
		return push.Waited{}, true
	}
}

// dropFor ends the ticket of a call that broke, unless another call has requested the same ticket.
// One that comes now waits for the submission of the end, so that its Acquire is behind it and has
// the true answer.
func (s *Service) dropFor(ctx context.Context, wait *push.Waiter, end fsm.Command, tries int) {
	s.dropping.Lock()
	defer s.dropping.Unlock()
	if !wait.IsOnly() {
		wait.Cancel()
		return
	}
	s.node.Submit(ctx, end, func(_ raftnode.Answer, err error) {
		if errors.Is(err, raftnode.ErrOverloaded) && tries > 1 && !s.isStopping() {
			// a node that is closed refuses
			time.AfterFunc(dropEvery, func() { s.dropFor(ctx, wait, end, tries-1) })
			return
		}
		wait.Cancel()
	})
}

// endedError is the reason for which a ticket that was requested is not held.
func endedError(t fsm.TicketState) *wire.Error {
	var e *wire.Error
	switch t.Reason {
	case fsm.WaitTimeout:
		e = wire.Errorf(zamokpb.Code_CODE_NOT_ACQUIRED, "not acquired: the wait timed out")
	case fsm.Closed, fsm.Expired, fsm.Disconnected, fsm.ExpiredByOperator, fsm.Restored:
		e = wire.Errorf(zamokpb.Code_CODE_NO_SESSION, "not acquired: the session ended meanwhile")
	default:
		e = wire.Errorf(zamokpb.Code_CODE_TICKET_ENDED, "not held: the ticket ended meanwhile")
	}
	e.Info.Reason = zamokpb.Reason(t.Reason)
	return e
}

// Drop ends a ticket, whatever its state.
func (s *Service) Drop(ctx context.Context,
	req *zamokpb.DropRequest) (*zamokpb.DropResponse, error) {
	command := s.dropCommand(ctx,
		fsm.Drop{Session: session.ID(req.Session), Ticket: req.Ticket,
			AckedThrough: req.AckedThrough})
	a, err := s.propose(ctx, command)
	response := &zamokpb.DropResponse{
		State: wire.TicketState(wire.ResultState(req.Ticket, &a.Result)), Sent: req.Sent,
		Time: int64(a.Time)}
	if _, unrenewed := command.(*fsm.DropUnrenewed); unrenewed {
		response.Sent = nil
	}
	return response, err
}

// dropCommand is the command of a Drop. A caller that may open no session releases, and prolongs
// nothing by that.
func (s *Service) dropCommand(ctx context.Context, c fsm.Drop) fsm.Command {
	if !CallerOf(ctx).MayLock() {
		return (*fsm.DropUnrenewed)(&c)
	}
	return &c
}

// Downgrade makes the exclusive locks of a ticket shared.
func (s *Service) Downgrade(ctx context.Context,
	req *zamokpb.DowngradeRequest) (*zamokpb.DowngradeResponse, error) {
	command := &fsm.Downgrade{Session: session.ID(req.Session), Ticket: req.Ticket,
		AckedThrough: req.AckedThrough}
	a, err := s.propose(ctx, command)
	return &zamokpb.DowngradeResponse{
		State: wire.TicketState(wire.ResultState(req.Ticket, &a.Result)), Sent: req.Sent,
		Time: int64(a.Time)}, err
}

// refusal is the reason for which a command was not carried out; nil: it was.
func refusal(a *raftnode.Answer, err error) *wire.Error {
	if err != nil {
		return wire.Explain(err)
	}
	return wire.FromResult(&a.Result)
}

// propose carries out a command.
func (s *Service) propose(ctx context.Context, command fsm.Command) (raftnode.Answer, error) {
	arrived := time.Now()
	a, err := raftnode.Wait(ctx, func(done raftnode.Done) { s.node.Submit(ctx, command, done) })
	e := refusal(&a, err)
	s.Answered(ctx, arrived, e)
	if e == nil {
		return a, nil
	}
	if len(e.Info.Blockers) > 0 {
		s.node.View(func(m *fsm.Machine) { wire.Describe(m, e.Info.Blockers) })
	}
	return a, e
}
