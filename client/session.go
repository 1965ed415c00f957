package client

import (
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"time"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// session is the client's lease and everything that depends on it. After its end the client makes another one.
type session struct {
	c      *Client
	secret []byte          // never logged
	ctx    context.Context // ends with the session, for the same cause
	cancel context.CancelCauseFunc
	kick   chan struct{} // wakes renewalLoop; holds one
	wake   chan struct{} // wakes the sender; holds one

	mu     sync.Mutex // guards what follows, and every ticket
	state  connectionState
	id     uint64 // 0 = not open yet
	ttl    clock.Span
	ttlMin clock.Span           // the shortest that the cluster lets begin now
	lease  *clock.LocalDeadline // nil before the first SessionState
	// confirmed is when the frame was sent that the newest confirmation answers.
	confirmed clock.Instant

	link *stream // nil while not attached
	// attempt is the number of the latest OpenStreams. Those that are pending together share one, so
	// that one of them takes effect. Of those with this number unanswered may have. opens is how many
	// were sent that may have opened the session.
	attempt           uint64
	opens, unanswered int

	fresh        list.List          // of tickets not sent yet: without a number, in order
	tickets      map[uint64]*ticket // sent, and not known to have ended
	nextTicket   uint64             // the next number
	ackedThrough uint64
	answered     map[uint64]bool // above ackedThrough
	reported     uint64          // the changes that this stream has delivered

	outgoing   []*ticket // have something to send
	retryQueue []*ticket // refused for the moment: sent again after a pause
	alive      bool      // send a KeepAlive
	closing    bool      // the client was closed
	closed     bool      // CloseSession was sent on this stream

	heldCount int                  // handles that are held
	holds     map[*ticket]struct{} // granted or held, with a maximum hold
	sent      clock.Instant        // the latest frame
	keptAlive clock.Instant        // the latest KeepAlive
	// checksNext is when renewalLoop checks the clocks, unless it is woken before.
	checksNext clock.Instant
	silent     bool          // something was sent, and nothing was received since
	silentAt   clock.Instant // since when
	probed     bool          // a KeepAlive was sent to probe the stream
	// limitLogged is when a refusal by a limit was last logged.
	limitLogged clock.Instant
	renewSpan   clock.Span // between renewals; drawn anew for each
}

// warnAfter is how long no leader is reachable before that is logged: longer than a failover.
const warnAfter = 2 * clock.Second

// newSession starts a session. It is opened by run.
func newSession(c *Client) *session {
	s := &session{
		c: c, secret: make([]byte, 16),
		state: unopened, kick: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		ttl: clock.FromDuration(c.cfg.TTL), nextTicket: 1,
		tickets: make(map[uint64]*ticket), answered: make(map[uint64]bool), holds: make(map[*ticket]struct{}),
	}
	rand.Read(s.secret) // never fails
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.drawRenewal()
	c.running.Go(s.run)
	c.running.Go(s.renewalLoop)
	return s
}

// run opens the session at the leader, or reattaches to it, and serves the stream; when that breaks, it begins again. It
// returns when the session has ended.
func (s *session) run() {
	var between pause
	patience, detached, warned := patienceMin, s.c.clock.Now(), false
	tries := attempts[*stream]{begin: s.openStream}
	defer tries.end()
	for ; s.ctx.Err() == nil; between.wait(s.ctx) {
		var st *stream
		err := s.c.nodes.askInTurn(s.ctx, theLeader, func(one *node) error {
			if len(tries.pending) == 0 {
				s.mu.Lock()
				s.attempt, s.unanswered = s.attempt+1, 0
				s.mu.Unlock()
			}
			e := s.opened(tries.ask(s.ctx, one, patience))
			for e.err == errOtherAttached && len(tries.pending) > 0 { // its answer is on its way, or lost
				if e = s.opened(tries.wait(s.ctx, one, patienceMin)); e.err == errNoAnswer {
					tries.end()
				}
			}
			st = e.value
			return e.result(one)
		})
		switch {
		case err == nil:
			tries.end()
			s.c.running.Go(func() { s.c.nodes.discover(s.ctx, st.node) })
			began := s.c.clock.Now()
			s.streamEnded(st, st.serve())
			if patience, detached, warned = patienceMin, s.c.clock.Now(), false; detached.Since(began) > clock.Second {
				between = pause{}
			}
		case err == errNotAnswered || errors.Is(err, ErrWrongCluster) && s.considersLeaseValid(): // its own cluster may come back
			patience = min(2*patience, patienceMax)
			if !warned && s.ctx.Err() == nil && s.c.clock.Now().Since(detached) > warnAfter {
				warned = true
				s.mu.Lock()
				held := s.heldCount
				s.mu.Unlock()
				s.c.log.Warn("zamok: no node serves this session, so no lock is granted or renewed; retrying; if the nodes do not answer, check that a majority of them is running",
					"held", held, "nodes", strings.TrimPrefix(s.c.nodes.unavailable(NotDone, nil).Error(), "zamok: unavailable: "))
			}
		default:
			s.end(err)
		}
	}
}

// streamEnded applies the end of a stream.
func (s *session) streamEnded(st *stream, cause error) {
	s.mu.Lock()
	s.become(streamBroke)
	s.link = nil
	s.mu.Unlock()
	if s.ctx.Err() != nil || errors.Is(cause, errBypassed) {
		return // that ended the stream, and the node has not failed
	}
	s.c.nodes.note(st.node, cause, false)
	if infoOf(cause).GetCode() == zamokpb.Code_CODE_SUPERSEDED {
		s.end(errTakenOver)
	}
}

// errTakenOver is the end of a session that has been attached by an OpenStream with a higher number than any of ours, or with one
// that ours has too: another program knows the secret, a copy of this process perhaps. What it does with our locks can't
// be known.
var errTakenOver = &Error{Kind: ErrSessionExpired, Outcome: Unknown,
	Message: "another program uses the same session, a copy of this process perhaps, and has taken it over"}

// end ends the session here, without confirmation. Its locks are lost, and waiting calls continue in another session.
func (s *session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(abort, cause)
}

// finish ends the session for good, by endReported or abort. The caller has the mutex.
func (s *session) finish(e connectionEvent, cause error) {
	if !s.become(e) {
		return
	}
	s.cancel(cause) // first, so who asks again because a lock is lost finds another session
	for _, t := range s.tickets {
		t.endWithSession(cause)
	}
	for s.fresh.Len() > 0 {
		s.fresh.Front().Value.(*ticket).endWithSession(cause)
	}
	s.tickets, s.outgoing, s.retryQueue = nil, nil, nil
	s.link = nil
}

// considersLeaseValid reports whether the lease is considered valid.
func (s *session) considersLeaseValid() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease != nil && s.lease.Valid(s.c.clock.Now())
}

// leaseConfirmed is until when the cluster may hold what this session holds if nothing more of it arrives there, as far as
// clocks of the promised rates go and the cluster has a leader. Here the later end is the safe one, of the clock that says
// less has passed. It is zero while the cluster answers: then the session is renewed. The caller has the mutex.
func (s *session) leaseConfirmed() time.Time {
	if s.link != nil && !s.silent {
		return time.Time{}
	}
	end := s.sent.Add(s.ttl + clock.Margin(s.ttl))
	return time.Now().Add(end.Since(s.c.clock.Now()).Duration())
}

// close ends the session on purpose. Handles are lost before the cluster can grant their locks to others.
func (s *session) close(patience time.Duration) error {
	s.mu.Lock()
	closed := &Error{Kind: ErrClosed}
	for _, t := range s.tickets {
		t.lose(closed)
		t.giveUp(closed)
	}
	for s.fresh.Len() > 0 {
		s.fresh.Front().Value.(*ticket).giveUp(closed)
	}
	s.closing = true
	if s.state == unopened {
		s.finish(abort, closed)
	}
	s.mu.Unlock()
	signal(s.wake)
	over, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	<-over.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &UnconfirmedError{Until: s.leaseConfirmed()}
	switch s.state {
	case sessionEnded:
		return nil
	case sessionAborted:
		e.cause = &Error{Kind: ErrUnavailable, Outcome: Unknown, cause: context.Cause(s.ctx)}
	default:
		e.cause = s.c.nodes.unavailable(Unknown, errors.New("the session's end was not confirmed"))
		s.finish(abort, closed)
	}
	return e
}

// signal sends to a channel of capacity one without blocking.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
