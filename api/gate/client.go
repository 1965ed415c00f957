package gate

import (
	"context"

	"zamok/api/conns"
	"zamok/api/service"
	"zamok/raftnode"
)

// client is the caller of a call, as the service knows it.
type client struct {
	gate   *Gate
	caller Caller
	from   Arrival
}

func (c client) Identity() string            { return c.caller.Identity }
func (c client) Owns(identity string) bool   { return c.caller.MayUse(identity) }
func (c client) MayLock() bool               { return c.gate.mayLock(c.caller) }
func (c client) Key() string                 { return c.caller.Key() }
func (c client) Principal() string           { return c.caller.Principal() }
func (c client) RelayRemoved() (name string) { return c.gate.relayRemoved(c.caller) }

func (c client) Connection() any {
	if c.from.Conn == nil {
		return nil
	}
	return c.from.Conn
}

func (c client) Probe() {
	if c.from.Conn != nil {
		c.gate.Probe(c.from.Conn)
	}
}

func (c client) HungUp() bool { return c.caller.Via == nil && conns.ClosedByPeer(c.from.Conn) }

// newContext returns a context with the caller of a call. Its commands and reads are queued in turn
// with those of other principals.
func newContext(ctx context.Context, c client) context.Context {
	return service.NewContext(raftnode.From(ctx, c.Principal()), c)
}

func clientOf(ctx context.Context) client {
	c, _ := service.CallerOf(ctx).(client)
	return c
}

// CallerOf returns the caller of a call.
func CallerOf(ctx context.Context) Caller { return clientOf(ctx).caller }

func arrivalOf(ctx context.Context) Arrival { return clientOf(ctx).from }

// IsFirst reports whether the sender of a call says that it is the first transmission of its
// request.
func IsFirst(ctx context.Context) bool { return arrivalOf(ctx).First }
