package api

import (
	"context"
	"net"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// admit counts a request that this node carries out against the limits, and checks the access rules. The caller calls end after
// the request. Nothing was done if it returns an error, unless the error has another outcome.
func (s *Server) admit(ctx context.Context, request any) (end func(), err error) {
	if end, err = s.limit(ctx, request); err != nil {
		if _, acquires := request.(*zamokpb.AcquireRequest); acquires && !s.node.Status().Leading {
			err = inDoubt(err, notPassedOn) // the state here may be behind
		}
		return nil, err
	}
	if err := s.guard.Admit(ctx, request); err != nil {
		end()
		if s.isCopy(ctx, request) {
			err = inDoubt(err, "an earlier copy of this request took effect, or may")
		}
		return nil, err
	}
	return end, nil
}

// limit counts a request. It never refuses a request that keeps or ends something: a session that can't be renewed would lose
// its locks, and ends free resources. Nor does it refuse a retransmission whose first copy the state machine knows or is under way,
// since that may be done.
func (s *Server) limit(ctx context.Context, request any) (end func(), err error) {
	who := access.CallerOf(ctx).Account()
	end = func() {}
	switch r := request.(type) {
	case *zamokpb.RenewSessionRequest, *zamokpb.CloseSessionRequest, *zamokpb.DropRequest, *zamokpb.DowngradeRequest,
		*zamokpb.ForceReleaseRequest, *zamokpb.ExpireSessionRequest:
		return end, nil
	case *zamokpb.OpenStream:
		if r.Session != 0 || s.isCopy(ctx, r) {
			return s.limits.Count(limits.Streams, who), nil
		}
		end, err = s.limits.Open(limits.Streams, who)
	case *zamokpb.AcquireRequest:
		if end, err = s.limits.Open(limits.HeldCalls, who); err != nil && s.isCopy(ctx, r) {
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
	if err := s.limits.Ask(limits.Requests, who); err != nil && !s.isCopy(ctx, request) {
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

// limited returns a listener with the limits of client connections.
func (s *Server) limited(l net.Listener) net.Listener {
	return s.budget.Listen(l, s.cfg.ConnsMax, s.limitConnection)
}
