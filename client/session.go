package client

import (
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"zamok/api/zamokpb"
	"zamok/clock"
)

// session is the client's lease and everything that depends on it. After its end the client opens
// another one. connectionstate.go has its states, stream.go its connection, ticket.go and
// ticketstate.go its acquisitions.
//
// It has three goroutines: run attaches and sends, receive reads, renewalLoop checks the clocks. A
// fourth one learns the members after each attachment. No goroutine holds the mutex while it waits.
//
// Invariants:
//
//	S1  A ticket gets its number when it is first sent, and numbers are sent in order.
//	S2  Every ticket up to the acknowledged-through number was answered, or will not be requested
//	    again; no number more than 1024 above it is sent.
//	S3  The state of a ticket only moves forward, by the table of ticketstate.go.
//	S4  A ticket that its caller gave up is queued to be dropped until the cluster reports its
//	    end.
//	S5  Only confirmations extend the local deadline: answers to the very transmission that was
//	    applied.
//	S6  A ticket that was sent has ended, and the end of a session is confirmed, only if the
//	    cluster reported it.
type session struct {
	c      *Client
	secret []byte          // never logged
	ctx    context.Context // ends with the session, with the same cause
	cancel context.CancelCauseFunc
	kick   chan struct{} // wakes renewalLoop; buffers one
	wake   chan struct{} // wakes stream.serve; buffers one

	mu     sync.Mutex // guards what follows, and every ticket
	state  connectionState
	id     uint64 // 0 = not open yet
	ttl    clock.Span
	ttlMin clock.Span           // the shortest ttl that the cluster accepts now
	lease  *clock.LocalDeadline // nil before the first SessionState
	// confirmed is the instant at which the frame of the newest confirmation was sent.
	confirmed clock.Instant

	stream *stream // nil while not attached
	// attempt is the number of the latest OpenStreams. Those that are pending together have the
	// same number, so that only one of them takes effect. unanswered is how many of that number may
	// have taken effect, because their answer is missing. opens is how many may have opened the
	// session.
	attempt           uint64
	opens, unanswered int

	unsent       list.List          // tickets not sent yet: without a number, in order
	tickets      map[uint64]*ticket // sent, and not known to have ended
	nextTicket   uint64             // the next number
	ackedThrough uint64
	completed    map[uint64]bool // numbers above ackedThrough that are complete (S2)
	delivered    uint64          // number of the latest change on this stream

	outgoing     []*ticket // tickets with something to send
	retryQueue   []*ticket // declined for the moment: sent again after a delay
	keepAliveDue bool      // send a KeepAlive
	closing      bool      // the client was closed
	closed       bool      // CloseSession was sent on this stream

	heldCount int                  // handles that are held
	holds     map[*ticket]struct{} // granted or held, with a maximum hold
	sent      clock.Instant        // the latest frame
	keptAlive clock.Instant        // the latest KeepAlive
	// checksNext is when renewalLoop checks the clocks again, if nothing wakes it before.
	checksNext clock.Instant
	silent     bool          // something was sent, and nothing was received since
	silentAt   clock.Instant // since when; a reply moves it
	probed     bool          // a KeepAlive was sent to probe the stream
	// limitLogged is when the delay by a limit was last logged.
	limitLogged clock.Instant
	renewSpan   clock.Span // time between renewals; drawn again for each
}

// warnAfter is how long the client has no stream before it logs that: longer than a failover.
const warnAfter = 2 * clock.Second

// newSession starts the goroutines of a session; run opens it.
func newSession(c *Client) *session {
	s := &session{
		c: c, secret: make([]byte, 16),
		state: unopened, kick: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		ttl: clock.FromDuration(c.cfg.TTL), nextTicket: 1,
		tickets: make(map[uint64]*ticket), completed: make(map[uint64]bool),
		holds: make(map[*ticket]struct{}),
	}
	rand.Read(s.secret) // never fails
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.drawRenewal()
	c.running.Go(s.run)
	c.running.Go(s.renewalLoop)
	return s
}

// run opens the session at the leader, or attaches to it again, and serves the stream. When the
// stream breaks, it starts over. It returns when the session has ended.
func (s *session) run() {
	var retry backoff
	timeout, detached, warned := attemptTimeoutMin, s.c.clock.Now(), false
	tries := attempts[*stream]{begin: s.openStream}
	defer tries.end()
	for ; s.ctx.Err() == nil; retry.wait(s.ctx) {
		var st *stream
		err := s.c.nodes.tryInTurn(s.ctx, leaderOrRelay, func(one *node) error {
			if len(tries.pending) == 0 {
				s.mu.Lock()
				s.attempt, s.unanswered = s.attempt+1, 0
				s.mu.Unlock()
			}
			e := s.opened(tries.try(s.ctx, one, timeout))
			// its answer is on its way, or lost
			for e.err == errOtherAttached && len(tries.pending) > 0 {
				if e = s.opened(tries.wait(s.ctx, one, attemptTimeoutMin)); e.err == errNoAnswer {
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
			if timeout, detached, warned = attemptTimeoutMin, s.c.clock.Now(),
				false; detached.Since(began) > clock.Second {
				retry = backoff{}
			}
		case err == errRoundFailed || errors.Is(err, ErrWrongCluster) && s.considersLeaseValid():
			// its own cluster may come back
			timeout = min(2*timeout, attemptTimeoutMax)
			if !warned && s.ctx.Err() == nil && s.c.clock.Now().Since(detached) > warnAfter {
				warned = true
				s.mu.Lock()
				held := s.heldCount
				s.mu.Unlock()
				s.c.log.Warn(
					"zamok: no node serves this session, so no lock is granted or renewed; "+
						"retrying; if the nodes do not answer, check that a majority of them "+
						"is running",
					"held", held, "nodes", nodesText(s.c.nodes.unavailable(NotDone, nil).Nodes))
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
	s.stream = nil
	s.mu.Unlock()
	if s.ctx.Err() != nil || errors.Is(cause, errRelayUnneeded) {
		return // that ended the stream, and the node has not failed
	}
	s.c.nodes.record(st.node, cause, false)
	if infoOf(cause).GetCode() == zamokpb.Code_CODE_SUPERSEDED {
		s.end(errTakenOver)
	}
}

// errTakenOver ends a session that another program has attached: by an OpenStream with a higher
// number than this session has used, or with the same one. That program knows the secret, so it may
// be a copy of this process. It is unknown what it does with the locks.
var errTakenOver = &Error{Kind: ErrSessionExpired, Outcome: Unknown,
	Message: "another program uses the same session, a copy of this process perhaps, and has " +
		"taken it over"}

// end ends the session here, without a confirmation. Its locks are lost, and waiting calls continue
// in another session.
func (s *session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(abort, cause)
}

// finish ends the session for good, by endConfirmed or abort. The caller has the mutex.
func (s *session) finish(e connectionEvent, cause error) {
	if !s.become(e) {
		return
	}
	s.cancel(cause) // first: a caller that learns of a loss and acquires again gets another session
	for _, t := range s.tickets {
		t.endWithSession(cause)
	}
	for s.unsent.Len() > 0 {
		s.unsent.Front().Value.(*ticket).endWithSession(cause)
	}
	s.tickets, s.outgoing, s.retryQueue = nil, nil, nil
	s.stream = nil
}

// considersLeaseValid reports whether the lease is considered valid.
func (s *session) considersLeaseValid() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease != nil && s.lease.Valid(s.c.clock.Now())
}

// leaseConfirmed is the time until which the cluster may hold this session's locks if nothing more
// arrives there, provided that the cluster has a leader and the clocks keep the promised rates. Of
// the two clocks the later end counts here, because that is the safe side. The time is zero while
// the cluster answers, since the session is renewed then. The caller has the mutex.
func (s *session) leaseConfirmed() time.Time {
	if s.stream != nil && !s.silent {
		return time.Time{}
	}
	end := s.sent.Add(s.ttl + clock.Margin(s.ttl))
	return time.Now().Add(end.Since(s.c.clock.Now()).Duration())
}

// close ends the session for Close. Handles are lost before the cluster can grant their locks to
// others.
func (s *session) close(timeout time.Duration) error {
	s.mu.Lock()
	closed := &Error{Kind: ErrClosed}
	for _, t := range s.tickets {
		t.lose(closed)
		t.giveUp(closed)
	}
	for s.unsent.Len() > 0 {
		s.unsent.Front().Value.(*ticket).giveUp(closed)
	}
	s.closing = true
	if s.state == unopened {
		s.finish(abort, closed)
	}
	s.mu.Unlock()
	signal(s.wake)
	sleep(s.ctx, timeout)
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
