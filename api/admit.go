package api

import (
	"context"
	"net"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/conns"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// admit counts a request that this node carries out against the limits, and checks the access rules. The caller calls end after
// the request. Nothing was done if it returns an error, unless the error has another outcome.
func (s *Server) admit(ctx context.Context, request any) (end func(), err error) {
	uncount, err := s.limit(ctx, request)
	if err != nil {
		return nil, err
	}
	if err = s.guard.Admit(ctx, request); err == nil {
		if end, err = s.settle(ctx, request, uncount); err == nil {
			return end, nil
		}
	}
	uncount()
	return nil, err
}

// settle counts an admitted call on its connection until end is called, which also calls uncount. A
// request that keeps or ends something needs no room there.
func (s *Server) settle(ctx context.Context, request any, uncount func()) (end func(), err error) {
	conn, caller := conns.Of(ctx), access.CallerOf(ctx)
	if conn == nil {
		return uncount, nil
	}
	if _, waits := request.(*zamokpb.AcquireRequest); waits {
		conn.Probe(probes(tcpWaiting))
	}
	_, relayed := relayedBy(ctx)
	leave, limit := conn.Admitted(relayed || caller.IsAuthenticated(), func() bool {
		guard := access.Guard{Rules: s.cfg.Rules} // s.guard has them when the node has started
		return guard.MayOperate(caller)
	})
	switch {
	case limit == "":
		return func() { leave(); uncount() }, nil
	case keepsOrEnds(request):
		return uncount, nil
	}
	e := wire.Errorf(zamokpb.Code_CODE_OVERLOADED, "not done: the limit %s of this node is reached, "+
		"and no other connection gives way; use another node", limit)
	e.Info.Field = limit
	return nil, e
}

// limit counts a request. It never refuses a request that keeps or ends something: a session that can't be renewed would lose
// its locks, and ends free resources. Nor does it refuse a retransmission of what the state machine has.
func (s *Server) limit(ctx context.Context, request any) (end func(), err error) {
	who := access.CallerOf(ctx).Account()
	end = func() {}
	if keepsOrEnds(request) {
		return end, nil
	}
	switch r := request.(type) {
	case *zamokpb.OpenStream:
		if r.Session != 0 || s.isKnown(ctx, r) {
			return s.limits.Count(limits.Streams, who), nil
		}
		end, err = s.limits.Open(limits.Streams, who)
	case *zamokpb.AcquireRequest:
		if end, err = s.limits.Open(limits.HeldCalls, who); err != nil && s.isKnown(ctx, r) {
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
	if err := s.limits.Ask(limits.Requests, who); err != nil && !s.isKnown(ctx, request) {
		end()
		return nil, err
	}
	return end, nil
}

// keepsOrEnds reports whether a request keeps or ends something that there is.
func keepsOrEnds(request any) bool {
	switch request.(type) {
	case *zamokpb.RenewSessionRequest, *zamokpb.CloseSessionRequest,
		*zamokpb.DropRequest, *zamokpb.DowngradeRequest,
		*zamokpb.ForceReleaseRequest, *zamokpb.ExpireSessionRequest:
		return true
	}
	return false
}

// limitAcquire is limit for an acquisition of a session's stream.
func (s *Server) limitAcquire(ctx context.Context, ref fsm.TicketRef) error {
	err := s.limits.Ask(limits.Requests, access.CallerOf(ctx).Account())
	if err != nil && s.knowsTicket(ref) {
		return nil
	}
	return err
}

// admitRelayed is admit for a call that this node relays; request is nil for a stream. The rules
// are the leader's.
func (s *Server) admitRelayed(ctx context.Context, request any) (end func(), err error) {
	uncount, err := s.limitRelayed(ctx, request)
	if err != nil {
		return nil, err
	}
	if end, err = s.settle(ctx, request, uncount); err != nil {
		uncount()
	}
	return end, err
}

// limitRelayed counts a call that this node relays; request is nil for a stream. The leader counts it as well, for the same
// caller. Acquisitions and openings of sessions are counted only there, since it recognizes retransmissions.
func (s *Server) limitRelayed(ctx context.Context, request any) (end func(), err error) {
	switch request.(type) {
	case nil:
		return s.limits.Open(limits.Relays, access.CallerOf(ctx).Account())
	case *zamokpb.AcquireRequest:
		return s.limits.Open(limits.Relays, access.CallerOf(ctx).Account())
	case *zamokpb.OpenSessionRequest:
		return func() {}, nil
	}
	return s.limit(ctx, request)
}

// refused counts a connection that was closed because of a limit.
func (s *Server) refused(limit string, from net.Addr) {
	s.limits.Refused(limit, limits.Network(limits.HostOf(from.String())))
}

// limited returns a listener with the limits of client connections.
func (s *Server) limited(l net.Listener) net.Listener {
	return s.budget.Listen(l, s.cfg.ConnsMax, s.limits)
}
