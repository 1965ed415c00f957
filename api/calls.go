package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zamok/api/access"
	"zamok/api/push"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

const (
	// dropEvery and dropTries: while the node is overloaded, the drop of an acquisition whose call broke is
	// submitted again so often. It was not done then, so nothing is done twice.
	dropEvery = 100 * time.Millisecond
	dropTries = 50
)

// OpenSession opens a session, or finds the one that the secret opened.
func (s *Server) OpenSession(ctx context.Context, req *zamokpb.OpenSessionRequest) (*zamokpb.OpenSessionResponse, error) {
	a, err := s.openSession(ctx, access.Hash(req.Secret), req.Settings)
	return &zamokpb.OpenSessionResponse{
		Session: uint64(a.Result.Session), Ttl: int64(a.Result.TTL), Sent: req.Sent, Time: int64(a.Time),
		TtlMin: int64(s.node.LeastTTL()),
	}, err
}

func (s *Server) openSession(ctx context.Context, secret session.Hash, settings *zamokpb.SessionSettings) (raftnode.Answer, error) {
	// Before the command: another identity with the secret must not renew the session. After it: the session may have been opened
	// meanwhile by another identity, and the command has found it.
	caller, others := access.CallerOf(ctx), false
	look := func(m *fsm.Machine) {
		if found, lives := m.SessionBySecret(secret); lives {
			others = !caller.MayUse(found.Identity)
		} else if ended, known := m.EndedSession(secret); known {
			others = !caller.MayUse(ended.Identity)
		}
	}
	var a raftnode.Answer
	var err error
	if s.node.View(look); !others {
		a, err = s.propose(ctx, access.OpenCommand(secret, caller.Identity, settings))
		s.node.View(look)
	}
	if others {
		return raftnode.Answer{}, wire.Refused(&fsm.Result{Code: fsm.WrongSecret})
	}
	if e := (*wire.Error)(nil); errors.As(err, &e) && e.Code() == zamokpb.Code_CODE_NO_SESSION {
		e.Info.Message = "not done: what this secret, or this key, has opened was closed, or has held a lock and ended; take a new one"
	}
	return a, err
}

// RenewSession is answered once the renewal is applied.
func (s *Server) RenewSession(ctx context.Context, req *zamokpb.RenewSessionRequest) (*zamokpb.RenewSessionResponse, error) {
	ttl, err := s.checkOwner(ctx, req.Session, req.Secret)
	if err != nil {
		return nil, err
	}
	a, err := raftnode.Wait(ctx, func(done raftnode.Done) { s.node.Renew(session.ID(req.Session), done) })
	e, holdUntil := refusal(&a, err), clock.Time(0)
	if e == nil && req.Ticket != 0 {
		holdUntil, e = s.checkLive(fsm.TicketRef{Session: session.ID(req.Session), Ticket: req.Ticket})
	}
	return &zamokpb.RenewSessionResponse{
		Sent: req.Sent, Time: int64(a.Time), Ttl: int64(ttl), TtlMin: int64(s.node.LeastTTL()), HoldUntil: int64(holdUntil),
	}, e.Err()
}

// checkLive refuses a ticket that has ended. It returns when its grant ends by its maximum hold; 0: it has none.
func (s *Server) checkLive(ref fsm.TicketRef) (holdUntil clock.Time, e *wire.Error) {
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

// CloseSession ends a session at its client's request. Only if the state machine remembers that its client has closed it, the
// answer to a repetition is the same.
func (s *Server) CloseSession(ctx context.Context, req *zamokpb.CloseSessionRequest) (*zamokpb.CloseSessionResponse, error) {
	id, response := session.ID(req.Session), &zamokpb.CloseSessionResponse{}
	if _, err := s.checkOwner(ctx, req.Session, req.Secret); err != nil {
		return response, s.closedBefore(ctx, req, response, err)
	}
	dropped := make(chan *zamokpb.TicketState, 1)
	if req.Ticket != 0 { // submitted before the end of the session, so it is answered before
		s.node.Submit(ctx, &fsm.Drop{Session: id, Ticket: req.Ticket}, func(a raftnode.Answer, err error) {
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
	return response, s.closedBefore(ctx, req, response, err)
}

// closedBefore returns nil in place of NO_SESSION, and fills in the response, if the caller's session was closed before by its
// client.
func (s *Server) closedBefore(ctx context.Context, req *zamokpb.CloseSessionRequest, response *zamokpb.CloseSessionResponse, err error) error {
	e := (*wire.Error)(nil)
	if !errors.As(err, &e) || e.Code() != zamokpb.Code_CODE_NO_SESSION {
		return err
	}
	ended := s.endedSession(ctx, req.Session, req.Secret)
	if ended.Reason != fsm.Closed {
		return err
	}
	if req.Ticket != 0 && ended.Ticket != 0 {
		response.State = wire.TicketState(fsm.TicketState{Ticket: req.Ticket, State: fsm.Ended, Reason: ended.Ticket})
	}
	return nil
}

// endedSession is what this node remembers of a caller's session that has ended.
func (s *Server) endedSession(ctx context.Context, id uint64, secret []byte) (ended fsm.EndedSession) {
	s.node.View(func(m *fsm.Machine) { ended, _ = m.EndedSession(access.Hash(secret)) })
	if ended.ID != session.ID(id) || !access.CallerOf(ctx).MayUse(ended.Identity) {
		return fsm.EndedSession{}
	}
	return ended
}

// Acquire is held open until the ticket is granted or ended, or for respond_within. Without a session it opens one.
func (s *Server) Acquire(ctx context.Context, req *zamokpb.AcquireRequest) (*zamokpb.AcquireResponse, error) {
	if req.Session != 0 {
		ttl, err := s.checkOwner(ctx, req.Session, req.Secret)
		if err != nil {
			return nil, err
		}
		return s.acquire(ctx, req, session.ID(req.Session), ttl)
	}
	opened, err := s.openSession(ctx, access.Hash(req.Secret), req.Settings)
	if err != nil {
		return nil, err
	}
	id, same := opened.Result.Session, true
	s.node.View(func(m *fsm.Machine) {
		found, alive := m.Session(id) // opened now, or before
		same = !alive || found.Metadata == string(req.Settings.GetMetadata())
	})
	if !same {
		return nil, wire.Errorf(zamokpb.Code_CODE_REFUSED, "not done: the session of this secret is alive, and was opened with other "+
			"metadata; repeat that request unchanged, or use another secret")
	}
	return s.acquire(ctx, req, id, opened.Result.TTL)
}

// acquire requests a ticket of a session and waits for it.
func (s *Server) acquire(ctx context.Context, req *zamokpb.AcquireRequest, id session.ID, ttl clock.Span) (*zamokpb.AcquireResponse, error) {
	began := time.Now()
	command := access.AcquireCommand(id, req.AckedThrough, req.Acquire)
	ref := fsm.TicketRef{Session: command.Session, Ticket: command.Ticket}
	var wait *push.Waiter
	s.dropping.Lock()
	s.node.View(func(m *fsm.Machine) {
		ticket, _ := m.Ticket(ref)
		wait = s.hub.Await(ref, ticket.State == fsm.Granted) // before it is proposed: the event comes before the answer
	})
	s.dropping.Unlock()
	a, err := s.propose(ctx, command)
	state := wire.ResultState(command.Ticket, &a.Result)
	if req.Session == 0 && refusedForRoom(err) && wait.IsOnly() {
		state.State = fsm.Ended // it was not requested, so its session ends as if it had been refused in the log
	}
	keepsWaiting := false // this node can't know its end any more, and the caller may request it at another node
	if err == nil && state.State == fsm.Waiting {
		end, waits := s.wait(ctx, req, wait, id, ttl, began)
		if !waits {
			state = end.State
		}
		if end.Err != nil {
			err, keepsWaiting = end.Err, true // also if the end of this node has cancelled the call by now
		}
	}
	if ctx.Err() != nil && state.State != fsm.Ended && !keepsWaiting && s.relayRemoved(ctx) == "" {
		// Its answer would not arrive. The Acquire was submitted before, so the end comes behind it. Should
		// leadership be lost first, the ticket lives as long as its session.
		end := fsm.Command(&fsm.Drop{Session: id, Ticket: ref.Ticket})
		if req.Session == 0 {
			end = &fsm.WithdrawSession{Session: id}
		}
		s.dropFor(ctx, wait, end, dropTries)
		return nil, wire.Explain(context.Cause(ctx))
	}
	if req.Session == 0 && state.State == fsm.Ended {
		s.node.Submit(ctx, &fsm.WithdrawSession{Session: id}, func(raftnode.Answer, error) {}) // if that fails, its ttl ends it
	}
	switch {
	case err != nil:
		wait.Cancel()
		return nil, err
	case state.State == fsm.Ended:
		wait.Cancel()
		return nil, endedError(state)
	}
	wait.Answered() // one that waits on after respond_within has no call here until it is requested again
	if state.State == fsm.Granted {
		s.metrics.Waited(command.Items, time.Since(began))
	}
	return &zamokpb.AcquireResponse{
		State: wire.TicketState(state), Sent: req.Sent, Time: int64(a.Time), Ttl: int64(ttl), Session: uint64(id),
		TtlMin: int64(s.node.LeastTTL()),
	}, nil
}

// wait waits for the end of a ticket's wait, and renews a session of its own meanwhile. It reports whether the ticket
// waits on, as far as this node knows.
func (s *Server) wait(ctx context.Context, req *zamokpb.AcquireRequest, wait *push.Waiter, id session.ID, ttl clock.Span, began time.Time,
) (end push.Waited, waits bool) {
	var enough, renew <-chan time.Time
	if req.RespondWithin > 0 {
		timer := time.NewTimer(time.Duration(req.RespondWithin) - time.Since(began))
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
			s.node.Renew(id, func(raftnode.Answer, error) {}) // if the session ends, so does the wait
			continue
		case end := <-wait.Done():
			if end.Err == nil {
				return end, false
			}
			e := wire.StreamEnded(end.Err.Code(), "the ticket waits on: %v", end.Err)
			s.nameLeader(e)
			return push.Waited{Err: e}, true
		case <-s.stopping:
			return push.Waited{Err: wire.StreamEnded(zamokpb.Code_CODE_STOPPING,
				"the ticket waits on, and this node is stopping; ask another for the same ticket")}, true
		case <-enough:
		case <-ctx.Done():
			if removed := s.relayRemoved(ctx); removed != "" {
				return push.Waited{Err: wire.StreamEnded(zamokpb.Code_CODE_NOT_LEADER,
					"the ticket waits on, and %s; ask another node for the same ticket", removed)}, true
			}
		}
		return push.Waited{}, true
	}
}

// dropFor ends the ticket of a call that broke, unless another call has requested the same ticket. One that
// comes now waits for the submission of the end, so that its Acquire is behind it and has the true answer.
func (s *Server) dropFor(ctx context.Context, wait *push.Waiter, end fsm.Command, tries int) {
	s.dropping.Lock()
	defer s.dropping.Unlock()
	if !wait.IsOnly() {
		wait.Cancel()
		return
	}
	s.node.Submit(ctx, end, func(_ raftnode.Answer, err error) {
		if errors.Is(err, raftnode.ErrOverloaded) && tries > 1 && !s.isStopping() {
			time.AfterFunc(dropEvery, func() { s.dropFor(ctx, wait, end, tries-1) }) // a node that is closed refuses
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
	case fsm.Closed, fsm.Expired, fsm.Disconnected, fsm.Evicted, fsm.Restored:
		e = wire.Errorf(zamokpb.Code_CODE_NO_SESSION, "not acquired: the session ended meanwhile")
	default:
		e = wire.Errorf(zamokpb.Code_CODE_TICKET_ENDED, "not held: the ticket ended meanwhile")
	}
	e.Info.Reason = zamokpb.Reason(t.Reason)
	return e
}

// Drop ends a ticket, whatever its state.
func (s *Server) Drop(ctx context.Context, req *zamokpb.DropRequest) (*zamokpb.DropResponse, error) {
	command := s.dropCommand(ctx, fsm.Drop{Session: session.ID(req.Session), Ticket: req.Ticket, AckedThrough: req.AckedThrough})
	a, err := s.proposeOwned(ctx, req.Session, req.Secret, command)
	response := &zamokpb.DropResponse{State: wire.TicketState(wire.ResultState(req.Ticket, &a.Result)), Sent: req.Sent, Time: int64(a.Time)}
	if _, unrenewed := command.(*fsm.DropUnrenewed); unrenewed {
		response.Sent = nil
	}
	return response, err
}

// dropCommand is the command of a Drop. A caller that may open no session releases, and prolongs nothing by that.
func (s *Server) dropCommand(ctx context.Context, c fsm.Drop) fsm.Command {
	if !s.guard.MayLock(access.CallerOf(ctx)) {
		return (*fsm.DropUnrenewed)(&c)
	}
	return &c
}

// Downgrade makes the exclusive locks of a ticket shared.
func (s *Server) Downgrade(ctx context.Context, req *zamokpb.DowngradeRequest) (*zamokpb.DowngradeResponse, error) {
	command := &fsm.Downgrade{Session: session.ID(req.Session), Ticket: req.Ticket, AckedThrough: req.AckedThrough}
	a, err := s.proposeOwned(ctx, req.Session, req.Secret, command)
	return &zamokpb.DowngradeResponse{State: wire.TicketState(wire.ResultState(req.Ticket, &a.Result)), Sent: req.Sent, Time: int64(a.Time)}, err
}

// proposeOwned carries out a command of a session's owner.
func (s *Server) proposeOwned(ctx context.Context, id uint64, secret []byte, command fsm.Command) (raftnode.Answer, error) {
	if _, err := s.checkOwner(ctx, id, secret); err != nil {
		return raftnode.Answer{}, err
	}
	return s.propose(ctx, command)
}

// checkOwner checks that the caller opened a session and knows its secret, which the commands of a session do not carry:
// neither ever changes. It returns the session's ttl.
func (s *Server) checkOwner(ctx context.Context, id uint64, secret []byte) (ttl clock.Span, err error) {
	for behind := true; ; behind = false {
		ttl, code := s.ownership(ctx, id, secret)
		if code != fsm.NoSession || !behind {
			e := wire.Refused(&fsm.Result{Code: code})
			if code == fsm.NoSession {
				e.Info.Reason = zamokpb.Reason(s.endedSession(ctx, id, secret).Reason)
			}
			if e.Code() == zamokpb.Code_CODE_WRONG_SECRET {
				e.Info.Message = fmt.Sprintf("the secret or the identity is not that of session %d; nothing was done", id)
			}
			return ttl, e.Err()
		}
		// This node may be behind: then it must not deny that there is such a session. And a session that
		// will be opened has an id which others could guess.
		if _, _, err := s.node.ReadBarrier(ctx); err != nil {
			return 0, wire.Explain(err)
		}
	}
}

// ownership is checkOwner in the state of this node, which may be behind.
func (s *Server) ownership(ctx context.Context, id uint64, secret []byte) (ttl clock.Span, code fsm.Code) {
	hash, caller := access.Hash(secret), access.CallerOf(ctx)
	s.node.View(func(m *fsm.Machine) {
		living, found := m.Session(session.ID(id))
		ttl = living.TTL
		switch {
		case !found:
			code = fsm.NoSession
		case living.Secret != hash, !caller.MayUse(living.Identity):
			code = fsm.WrongSecret
		}
	})
	return ttl, code
}

// refusal is the reason for which a command was not carried out; nil: it was.
func refusal(a *raftnode.Answer, err error) *wire.Error {
	if err != nil {
		return wire.Explain(err)
	}
	return wire.Refused(&a.Result)
}

// propose carries out a command.
func (s *Server) propose(ctx context.Context, command fsm.Command) (raftnode.Answer, error) {
	arrived := time.Now()
	a, err := raftnode.Answer{}, s.checkRoom(command)
	if err == nil {
		a, err = raftnode.Wait(ctx, func(done raftnode.Done) { s.node.Submit(ctx, command, done) })
	}
	e := refusal(&a, err)
	s.answered(ctx, arrived, e)
	if e == nil {
		return a, nil
	}
	if len(e.Info.Blockers) > 0 {
		s.node.View(func(m *fsm.Machine) { wire.Describe(m, e.Info.Blockers) })
	}
	return a, e
}
