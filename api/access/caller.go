package access

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"zamok/fsm"
)

// Caller is who makes a call.
type Caller struct {
	// Identity is the name in a verified certificate, or else the host that the call came from. A name that the state
	// machine would refuse becomes "".
	Identity string
}

type callerKey struct{}

// NewContext returns a context with the caller of a call.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of a call.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Connected is the caller as far as the connection shows.
func Connected(ctx context.Context) Caller {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return Caller{}
	}
	name, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		name = p.Addr.String()
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		if chains := info.State.VerifiedChains; len(chains) > 0 && len(chains[0]) > 0 && chains[0][0].Subject.CommonName != "" {
			name = chains[0][0].Subject.CommonName
		}
	}
	return Caller{Identity: identity(name)}
}

// Encode returns the caller for the metadata of a relayed call, and Relayed reads it. Metadata is printable ASCII, and an
// identity is not: a key that ends with -bin carries any bytes.
func (c Caller) Encode() []string { return []string{c.Identity} }

// Relayed is the caller as another node has established it.
func Relayed(values []string) Caller {
	if len(values) != 1 {
		return Caller{}
	}
	return Caller{Identity: identity(values[0])}
}

// identity is a name, or "" if the state machine would refuse it.
func identity(name string) string {
	if checkText("identity", name, 0, fsm.IdentityBytesMax) != nil {
		return ""
	}
	return name
}
