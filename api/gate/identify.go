package gate

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/gate/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// AuthenticateEvery is how often the caller of a call that lasts is authenticated again: a token
// expires, or is removed from its file.
const AuthenticateEvery = 5 * time.Second

// Identify authenticates the caller of a call, or takes the identity from the node that relays it.
// CallerOf the context that it returns is the caller.
func (g *Gate) Identify(ctx context.Context, from Arrival, method string) (context.Context, error) {
	caller, err := g.identify(from)
	ctx = newContext(ctx, client{g, caller, from})
	if err == nil {
		return ctx, nil
	}
	g.Metrics.Unauthenticated()
	// that of its network: it may not be who it says
	network := Caller{Address: caller.Address}.Principal()
	if refused := g.Limits.Take(limits.Requests, network); refused != nil {
		return ctx, refused
	}
	g.Audit.RecordDenial(network, auditEvent(ctx, method, nil, err))
	return ctx, err
}

func (g *Gate) identify(from Arrival) (Caller, error) {
	if from.Via != nil {
		return relayed(from.Via, from.Caller), nil
	}
	return g.Identity.Caller(from, time.Now())
}

// identifyAgain returns why a call ends that began some time ago: its caller is no longer
// authenticated with the same identity, or the node that relays it was removed.
func (g *Gate) identifyAgain(ctx context.Context, method string) error {
	again, err := g.Identify(ctx, arrivalOf(ctx), method)
	if was := CallerOf(ctx).Identity; err == nil && CallerOf(again).Identity != was {
		err = errors.New("its credentials are now those of another identity, not of " + was)
	}
	if removed := g.relayRemoved(CallerOf(ctx)); removed != "" {
		return wire.StreamEnded(zamokpb.Code_CODE_NOT_LEADER,
			"the call ends, because %s; use another node", removed)
	}
	if err == nil {
		return nil
	}
	return wire.StreamEnded(zamokpb.Code_CODE_UNAUTHENTICATED,
		"the call ends, because its caller is not authenticated any more: %v", err)
}

// relayRemoved says that the node that relays a call was removed; "": it was not. Then the end of
// the call is not its client's.
func (g *Gate) relayRemoved(c Caller) string {
	if via := c.Via; via != nil && !g.node.HasServer(*via) {
		return via.Name + ", which relays it, is no node of this cluster any more"
	}
	return ""
}

// whileAllowed returns a context for a call that may last and carry no message meanwhile: an
// acquisition that waits, and a watch. It ends, with the reason as its cause, when the caller is no
// longer authenticated, or the rules no longer allow the request. The rules of a relayed request
// are the leader's. The caller calls stop after the call.
func (g *Gate) whileAllowed(ctx context.Context, request proto.Message,
	relayed bool) (lasting context.Context, stop func()) {
	d := g.row(request)
	if !d.Lasts {
		return ctx, func() {}
	}
	lasting, cancel := context.WithCancelCause(ctx)
	var mu sync.Mutex // guards timer
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(AuthenticateEvery, func() {
		if err := g.withdrawn(ctx, d, request, relayed); err != nil {
			cancel(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if lasting.Err() == nil { // or it was stopped
			timer.Reset(AuthenticateEvery)
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
func (g *Gate) withdrawn(ctx context.Context, d *Request, request proto.Message,
	relayed bool) error {
	if err := g.identifyAgain(ctx, d.Method); err != nil || relayed {
		return err
	}
	if verb, why := g.denial(CallerOf(ctx), d, request); why != "" {
		e := wire.StreamEnded(zamokpb.Code_CODE_DENIED,
			"the call ends, because the rules have changed: %s", why)
		g.deny(ctx, verb, auditEvent(ctx, "", request, e))
		return e
	}
	return nil
}
