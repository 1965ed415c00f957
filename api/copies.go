package api

import (
	"context"
	"sync"

	"zamok/api/access"
	"zamok/api/push"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// knowsSecret reports whether a session was opened with a secret, or this node has proposed that.
func (s *Server) knowsSecret(secret []byte) bool {
	hash := access.Hash(secret)
	return s.openings.under(hash) || knows(s, (*fsm.Machine).SessionBySecret, hash)
}

// knowsTicket reports whether a ticket was requested, or a call or a stream of this node requests it.
func (s *Server) knowsTicket(ref fsm.TicketRef) bool {
	return s.hub.Requested(ref) || knows(s, (*fsm.Machine).Ticket, ref)
}

// openings counts the commands that open a session and have no answer yet, by the secret.
type openings struct {
	mu       sync.Mutex
	underWay map[session.Hash]int
}

func (o *openings) under(secret session.Hash) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.underWay[secret] > 0
}

func (o *openings) add(secret session.Hash, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.underWay[secret] += n; o.underWay[secret] == 0 {
		delete(o.underWay, secret)
	}
}

// proposeOpening is propose for a command that opens a session. Until it is answered, even if ctx ends before, retransmissions
// are recognized by its secret.
func (s *Server) proposeOpening(ctx context.Context, command *fsm.OpenSession) (raftnode.Answer, error) {
	others := s.openings.under(command.Secret)
	a, err := s.proposeAs(ctx, command, func(done raftnode.Done) {
		s.openings.add(command.Secret, 1)
		s.node.Submit(ctx, command, func(a raftnode.Answer, err error) {
			s.openings.add(command.Secret, -1)
			done(a, err)
		})
	})
	switch {
	case err == nil:
	case others:
		err = inDoubt(err, "another request opens a session with this secret, and may succeed")
	case knows(s, (*fsm.Machine).SessionBySecret, command.Secret):
		err = inDoubt(err, "an earlier request has opened a session with this secret")
	}
	return a, err
}

// refusedCopy is the refusal of a call for a ticket, which may be a copy of another call.
func (s *Server) refusedCopy(err error, wait *push.Waiter, ref fsm.TicketRef) error {
	switch {
	case wait.Shared():
		return inDoubt(err, "another call has requested this ticket and may get it")
	case knows(s, (*fsm.Machine).Ticket, ref):
		return inDoubt(err, "an earlier request for this ticket took effect")
	}
	return err
}

// knows reports whether the state machine has a record.
func knows[Ref, View any](s *Server, find func(*fsm.Machine, Ref) (View, bool), ref Ref) (known bool) {
	s.node.View(func(m *fsm.Machine) { _, known = find(m, ref) })
	return known
}

// inDoubt is the refusal of a call before the log, if another one for the same ticket or session was here as well, or has been done.
// That may have been proposed, and when it broke, it left the ticket to this one.
func inDoubt(err error, other string) error {
	e := wire.Explain(err)
	switch e.Code() {
	case zamokpb.Code_CODE_OVERLOADED, zamokpb.Code_CODE_LIMIT_EXCEEDED, zamokpb.Code_CODE_DISK_LOW, zamokpb.Code_CODE_NOT_LEADER,
		zamokpb.Code_CODE_STOPPING:
		e.Info.Outcome = zamokpb.Outcome_OUTCOME_UNKNOWN
		e.Info.Message = other + "; of this one: " + e.Info.Message
	}
	return e
}

// notPassedOn is about an acquisition that this node does not relay: only the leader knows the copies of other nodes.
const notPassedOn = "an earlier request for this ticket, if there was one, may be done"
