package api

import (
	"context"
	"net"
	"sync"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// admit counts a request that this node carries out against the limits, and checks the access rules. The caller calls end after
// the request. Nothing was done if it returns an error, unless the error has another outcome.
func (s *Server) admit(ctx context.Context, request any) (end func(), err error) {
	if end, err = s.limit(ctx, request); err != nil {
		return nil, err
	}
	if err := s.guard.Admit(ctx, request); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// limit counts a request. It never refuses a request that keeps or ends something: a session that can't be renewed would lose
// its locks, and ends free resources. Nor does it refuse a retransmission whose first copy the state machine knows or is under way,
// since that may be done.
func (s *Server) limit(ctx context.Context, request any) (end func(), err error) {
	who, known := access.CallerOf(ctx).Account(), func() bool { return false }
	end = func() {}
	switch r := request.(type) {
	case *zamokpb.RenewSessionRequest, *zamokpb.CloseSessionRequest, *zamokpb.DropRequest, *zamokpb.DowngradeRequest,
		*zamokpb.ForceReleaseRequest, *zamokpb.ExpireSessionRequest:
		return end, nil
	case *zamokpb.OpenSessionRequest:
		known = func() bool { return s.knowsSecret(r.Secret) }
	case *zamokpb.OpenStream:
		if r.Session != 0 || s.knowsSecret(r.Secret) {
			return s.limits.Count(limits.Streams, who), nil
		}
		end, err = s.limits.Open(limits.Streams, who)
	case *zamokpb.AcquireRequest:
		known = func() bool {
			if r.Session == 0 {
				return s.knowsSecret(r.Secret)
			}
			return s.knowsTicket(fsm.TicketRef{Session: session.ID(r.Session), Ticket: r.Acquire.GetTicket()})
		}
		if end, err = s.limits.Open(limits.HeldCalls, who); err != nil && known() {
			e := wire.Explain(err)
			e.Info.Code, e.Info.Outcome = zamokpb.Code_CODE_OVERLOADED, zamokpb.Outcome_OUTCOME_UNKNOWN
			e.Info.Message = "the earlier request stays in effect, but this call cannot wait for it: " + e.Info.Message
		}
	case *zamokpb.WatchRequest:
		end, err = s.limits.Open(limits.Watches, who)
	}
	if err != nil {
		return nil, err
	}
	if err := s.limits.Ask(limits.Requests, who); err != nil && !known() {
		end()
		return nil, err
	}
	return end, nil
}

// limitAcquire is limit for an acquisition of a session's stream.
func (s *Server) limitAcquire(ctx context.Context, ref fsm.TicketRef) error {
	err := s.limits.Ask(limits.Requests, access.CallerOf(ctx).Account())
	if err != nil && s.knowsTicket(ref) {
		return nil
	}
	return err
}

// limitRelayed counts a call that this node relays; request is nil for a stream. The leader counts it as well, for the same
// caller. Acquisitions and openings of sessions are counted only there, since it recognizes retransmissions.
func (s *Server) limitRelayed(ctx context.Context, request any) (end func(), err error) {
	switch request.(type) {
	case nil:
		return s.limits.Open(limits.Relays, access.CallerOf(ctx).Account())
	case *zamokpb.AcquireRequest:
		if end, err = s.limits.Open(limits.Relays, access.CallerOf(ctx).Account()); err != nil {
			return nil, inDoubt(err, notPassedOn)
		}
		return end, nil
	case *zamokpb.OpenSessionRequest:
		return func() {}, nil
	}
	return s.limit(ctx, request)
}

// notPassedOn is about an acquisition that this node does not relay: only the leader knows the copies of other nodes.
const notPassedOn = "an earlier request for this ticket, if there was one, may be done"

// limitConnection counts a new connection of an address, or refuses it.
func (s *Server) limitConnection(from net.Addr) (end func(), err error) {
	who := limits.Network(limits.HostOf(from.String()))
	if err := s.limits.Ask(limits.Connects, who); err != nil {
		return nil, err
	}
	return s.limits.Open(limits.Connections, who)
}

// refused counts a connection that was closed because of a limit.
func (s *Server) refused(limit string, from net.Addr) {
	s.limits.Refused(limit, limits.Network(limits.HostOf(from.String())))
}

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
	if err != nil && others {
		err = inDoubt(err, "another request opens a session with this secret, and may succeed")
	}
	return a, err
}

// knows reports whether the state machine has a record.
func knows[Ref, View any](s *Server, find func(*fsm.Machine, Ref) (View, bool), ref Ref) (known bool) {
	s.node.View(func(m *fsm.Machine) { _, known = find(m, ref) })
	return known
}

// limited returns a listener with the limits of client connections.
func (s *Server) limited(l net.Listener) net.Listener {
	return s.budget.Listen(l, s.cfg.ConnsMax, s.limitConnection)
}
