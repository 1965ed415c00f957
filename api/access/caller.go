package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"

	"zamok/api/access/identity"
	"zamok/api/access/limits"
	"zamok/api/access/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/raftnode"
)

// Caller is the client that makes a call.
type Caller struct {
	// Identity is that of the token or certificate, or that of an anonymous caller.
	Identity string
	Groups   []string // of its JWT
	Address  string
}

// anonymous is the identity of callers without a token or a certificate. Those of one network are one, since a machine may have
// any number of addresses.
func anonymous(address string) string {
	return identity.AnonymousPrefix + limits.Network(limits.HostOf(address))
}

// Account is what limits are counted under, and who has a share of the queue in front of the log: the identity, under which the
// state machine counts as well. A caller whose credentials are wrong counts as anonymous.
func (c Caller) Account() string {
	if c.Identity == "" {
		return anonymous(c.Address)
	}
	return c.Identity
}

func (c Caller) String() string { return cmp.Or(c.Identity, "an unknown caller") }

func (c Caller) forRules() rules.Caller {
	return rules.Caller{Identity: c.Identity, Groups: c.Groups, Anonymous: isAnonymous(c.Identity)}
}

// Key is the same for callers that may do the same, whatever the rules are.
func (c Caller) Key() string {
	if isAnonymous(c.Identity) {
		return ""
	}
	return fmt.Sprintf("%q %q", c.Identity, c.Groups)
}

// isAnonymous reports whether an identity is not authenticated.
func isAnonymous(id string) bool { return id == "" || strings.HasPrefix(id, identity.AnonymousPrefix) }

// IsAuthenticated reports whether the caller has shown a token or a certificate.
func (c Caller) IsAuthenticated() bool { return !isAnonymous(c.Identity) }

// MayUse reports whether a caller may use a session that was opened with an identity, if it has the secret as well. For a
// session of an anonymous caller the secret is enough, so that authentication can be introduced while sessions live.
func (c Caller) MayUse(opened string) bool { return isAnonymous(opened) || opened == c.Identity }

type callerKey struct{}

// NewContext returns a context with the caller of a call, from whose share of the node its commands and reads are: that of
// its account.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(raftnode.From(ctx, c.Account()), callerKey{}, c)
}

// CallerOf returns the caller of a call.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Values encodes a caller as metadata of a relayed call; Relayed decodes it.
func (c Caller) Values() []string { return append([]string{c.Identity, c.Address}, c.Groups...) }

// Relayed is the caller as the relaying node has authenticated it.
func Relayed(values []string) Caller {
	if len(values) < 2 {
		return Caller{}
	}
	return Caller{Identity: values[0], Address: values[1], Groups: values[2:]}
}

// Identifier authenticates calls.
type Identifier struct {
	Verifier    func() identity.Verifier
	Certificate identity.CertificateName // the part of a certificate that is the identity
	Required    bool                     // calls without a token or a certificate are refused
}

// AuthorizationKey is the metadata key, and the HTTP header, of a token.
const AuthorizationKey = "authorization"

// errNothingShown refuses a call without credentials if Identifier.Required is set.
var errNothingShown = errors.New("a client certificate or a bearer token is required")

// Caller authenticates the call of ctx. A token takes precedence over a certificate.
func (i Identifier) Caller(ctx context.Context, now time.Time) (Caller, error) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok || p.Addr == nil {
		if i.Required {
			return Caller{}, unauthenticated(errNothingShown)
		}
		return Caller{}, nil
	}
	c := Caller{Address: p.Addr.String()}
	if token, shown, err := bearer(ctx); err != nil || shown {
		who, refused := i.Verifier().Bearer(token, now)
		c.Identity, c.Groups = who.Identity, who.Groups
		return c, unauthenticated(cmp.Or(err, refused))
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		name, err := i.Certificate.Of(info.State.VerifiedChains[0][0])
		c.Identity = name
		return c, unauthenticated(err)
	}
	c.Identity = anonymous(c.Address)
	if i.Required {
		return c, unauthenticated(errNothingShown)
	}
	return c, nil
}

func unauthenticated(err error) error {
	if err == nil {
		return nil
	}
	return wire.Errorf(zamokpb.Code_CODE_UNAUTHENTICATED, "not done: the caller is not authenticated: %v", err)
}

// bearer returns the token of a call.
func bearer(ctx context.Context) (token string, shown bool, err error) {
	values := metadata.ValueFromIncomingContext(ctx, AuthorizationKey)
	switch {
	case len(values) == 0:
		return "", false, nil
	case len(values) > 1:
		return "", true, wire.Invalid(AuthorizationKey, "is set %d times", len(values))
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true, wire.Invalid(AuthorizationKey, "must have the form Bearer TOKEN")
	}
	return strings.TrimSpace(token), true, nil
}
