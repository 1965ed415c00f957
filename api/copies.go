package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/metadata"

	"zamok/api/access"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/session"
)

// firstKey is the metadata of a call that opens a session or acquires, and of a stream that opens a session, whose sender says
// that it was never sent before, or only in copies that were refused as not done.
const firstKey = "zamok-first"

// isFirst reports whether a call has that mark.
func isFirst(ctx context.Context) bool {
	mark := metadata.ValueFromIncomingContext(ctx, firstKey)
	return len(mark) == 1 && mark[0] == "1"
}

// ofCopy is the error of a call as its caller may take it (wire.OfCopy). What the leader has answered to a call that was relayed
// to it is no *wire.Error, and stays as it is.
func ofCopy(ctx context.Context, method string, err error) error {
	e := (*wire.Error)(nil)
	switch method {
	case zamokpb.Zamok_Acquire_FullMethodName, zamokpb.Zamok_OpenSession_FullMethodName, zamokpb.Zamok_Session_FullMethodName:
		if errors.As(err, &e) {
			return wire.OfCopy(e, isFirst(ctx))
		}
	}
	return err
}

// isKnown reports whether the state machine of this node has what a call requests: then the call is a retransmission, and needs no
// room. Only the owner of a session learns that of its tickets.
func (s *Server) isKnown(ctx context.Context, request any) bool {
	switch r := request.(type) {
	case *zamokpb.OpenSessionRequest:
		return s.knowsSecret(r.Secret)
	case *zamokpb.OpenStream:
		return r.Session == 0 && s.knowsSecret(r.Secret)
	case *zamokpb.AcquireRequest:
		if r.Session == 0 {
			return s.knowsSecret(r.Secret)
		}
		_, code := s.ownership(ctx, r.Session, r.Secret)
		return code == fsm.OK && s.knowsTicket(fsm.TicketRef{Session: session.ID(r.Session), Ticket: r.Acquire.GetTicket()})
	}
	return false
}

// knowsSecret reports whether a living session was opened with a secret.
func (s *Server) knowsSecret(secret []byte) (known bool) {
	hash := access.Hash(secret)
	s.node.View(func(m *fsm.Machine) { _, known = m.SessionBySecret(hash) })
	return known
}

// knowsTicket reports whether a ticket was requested.
func (s *Server) knowsTicket(ref fsm.TicketRef) (known bool) {
	s.node.View(func(m *fsm.Machine) { _, known = m.Ticket(ref) })
	return known
}
