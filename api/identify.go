package api

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// authenticateEvery is how often the caller of a call that lasts is authenticated again: a token expires, or is removed from
// its file.
const authenticateEvery = 5 * time.Second

// identify authenticates the caller of a call, or takes the identity from the node that relays it.
func (s *Server) identify(ctx context.Context, method string) (context.Context, error) {
	if _, relayed := relayedBy(ctx); relayed {
		return access.NewContext(ctx, access.Relayed(metadata.ValueFromIncomingContext(ctx, callerKey))), nil
	}
	caller, err := s.cfg.Identity.Caller(ctx, time.Now())
	ctx = access.NewContext(ctx, caller)
	if err == nil {
		return ctx, nil
	}
	s.metrics.Unauthenticated()
	account := access.Caller{Address: caller.Address}.Account() // that of its network: it may not be who it says
	if limited := s.limits.Ask(limits.Requests, account); limited != nil {
		return ctx, limited
	}
	s.audit.RecordDenial(account, auditEvent(ctx, method, nil, err))
	return ctx, err
}

// identifyAgain returns why a call ends that began some time ago: its caller is no longer authenticated with the same identity,
// or the node that relays it was removed.
func (s *Server) identifyAgain(ctx context.Context, method string) error {
	again, err := s.identify(ctx, method)
	if was := access.CallerOf(ctx).Identity; err == nil && access.CallerOf(again).Identity != was {
		err = errors.New("its credentials are now those of another identity, not of " + was)
	}
	if removed := s.relayRemoved(ctx); removed != "" {
		return wire.StreamEnded(zamokpb.Code_CODE_NOT_LEADER, "the call ends, because %s; ask another node", removed)
	}
	if err == nil {
		return nil
	}
	return wire.StreamEnded(zamokpb.Code_CODE_UNAUTHENTICATED, "the call ends, because its caller is not authenticated any more: %v", err)
}

// relayRemoved reports that the node that relays a call was removed: "" if it was not. Then the end of the call is not its client's.
func (s *Server) relayRemoved(ctx context.Context) string {
	if from, relayed := relayedBy(ctx); relayed && !s.node.HasServer(from) {
		return from.Name + ", which relays it, is no node of this cluster any more"
	}
	return ""
}

// whileAllowed returns a context for a call that may last and carry no message meanwhile: an acquisition that waits, and a watch.
// It ends, with the reason as its cause, when the caller is no longer authenticated, or the rules no longer allow the request. A
// nil request is one that another node decides about. The caller calls stop after the call.
func (s *Server) whileAllowed(ctx context.Context, method string, request any) (lasting context.Context, stop func()) {
	if method != zamokpb.Zamok_Acquire_FullMethodName && method != zamokpb.Zamok_Watch_FullMethodName {
		return ctx, func() {}
	}
	lasting, cancel := context.WithCancelCause(ctx)
	var mu sync.Mutex // guards timer
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(authenticateEvery, func() {
		if err := s.withdrawn(ctx, method, request); err != nil {
			cancel(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if lasting.Err() == nil { // or it was stopped
			timer.Reset(authenticateEvery)
		}
	})
	return lasting, func() {
		cancel(nil)
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}

// withdrawn returns why a call ends that was admitted, if its caller may not make it any more.
func (s *Server) withdrawn(ctx context.Context, method string, request any) error {
	if err := s.identifyAgain(ctx, method); err != nil || request == nil {
		return err
	}
	if err := s.guard.Admit(ctx, request); err != nil && wire.Explain(err).Code() == zamokpb.Code_CODE_DENIED {
		return wire.StreamEnded(zamokpb.Code_CODE_DENIED, "the call ends, because the rules have changed: %s",
			strings.TrimPrefix(err.Error(), "not done: "))
	}
	return nil
}

// identified is a stream whose context has its caller. It removes from messages what the caller may not see.
type identified struct {
	grpc.ServerStream
	ctx     context.Context
	server  *Server
	method  string
	began   time.Time
	checked atomic.Int64          // time of the last authentication, since began
	ended   atomic.Pointer[error] // set when the caller is no longer authenticated
}

func (s *identified) Context() context.Context { return s.ctx }

func (s *identified) SendMsg(m any) error {
	if err := s.authenticate(); err != nil {
		return err
	}
	s.server.guard.Redact(access.CallerOf(s.ctx), m)
	return s.ServerStream.SendMsg(m)
}

func (s *identified) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.authenticate()
}

// authenticate ends the stream if its caller is no longer authenticated with the same identity.
func (s *identified) authenticate() error {
	if ended := s.ended.Load(); ended != nil {
		return *ended
	}
	now, before := int64(time.Since(s.began)), s.checked.Load()
	if time.Duration(now-before) < authenticateEvery || !s.checked.CompareAndSwap(before, now) {
		return nil
	}
	err := s.server.identifyAgain(s.ctx, s.method)
	if err != nil {
		s.ended.Store(&err)
	}
	return err
}
