package access

import (
	"cmp"
	"context"
	"errors"
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

// Caller is who makes a call.
type Caller struct {
	// Identity is what a token or a certificate proves; without one, where the call comes from (identity.AnonymousPrefix).
	Identity string
	Groups   []string // that its token has
	Address  string   // that it calls from

	account string // see Account; set by NewContext
}

// Account is what limits are counted under, and who has a share of the queue in front of the log: the identity. Anonymous
// callers of one network are one, since a machine may have any number of addresses.
func (c Caller) Account() string {
	switch host, anonymous := strings.CutPrefix(c.Identity, identity.AnonymousPrefix); {
	case c.account != "":
		return c.account
	case anonymous:
		return identity.AnonymousPrefix + limits.Network(host)
	case c.Identity == "":
		return identity.AnonymousPrefix + limits.Network(limits.HostOf(c.Address))
	}
	return c.Identity
}

func (c Caller) String() string { return cmp.Or(c.Identity, "an unknown caller") }

func (c Caller) forRules() rules.Caller {
	return rules.Caller{Identity: c.Identity, Groups: c.Groups, Anonymous: isAnonymous(c.Identity)}
}

// isAnonymous reports whether nothing proves an identity.
func isAnonymous(id string) bool { return id == "" || strings.HasPrefix(id, identity.AnonymousPrefix) }

// MayUse reports whether a caller may use a session that was opened with an identity, if it knows the secret as well. The
// secret alone is enough where nothing was proved: so access rules can be introduced while sessions live.
func (c Caller) MayUse(opened string) bool { return isAnonymous(opened) || opened == c.Identity }

type callerKey struct{}

// NewContext returns a context with the caller of a call, from whose share of the node its commands and reads are: that of
// its account.
func NewContext(ctx context.Context, c Caller) context.Context {
	c.account = c.Account()
	return context.WithValue(raftnode.From(ctx, c.account), callerKey{}, c)
}

// CallerOf returns the caller of a call.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Values are the metadata of a relayed call that name its caller, and Relayed reads them.
func (c Caller) Values() []string { return append([]string{c.Identity, c.Address}, c.Groups...) }

// Relayed is the caller as the node that relays has established it.
func Relayed(values []string) Caller {
	if len(values) < 2 {
		return Caller{}
	}
	return Caller{Identity: values[0], Address: values[1], Groups: values[2:]}
}

// Identifier establishes who makes a call, by what it shows.
type Identifier struct {
	Verifier    func() identity.Verifier
	Certificate identity.CertificateName // the part of a certificate that counts
	Required    bool                     // a call that shows neither a token nor a certificate is refused
}

// AuthorizationKey is the metadata, and the header of HTTP, that has a token.
const AuthorizationKey = "authorization"

// errNothingShown is for a call where Identifier.Required.
var errNothingShown = errors.New("show a client certificate, or a token if this cluster knows any")

// Caller returns who makes the call of ctx. A token counts before a certificate.
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
	c.Identity = identity.AnonymousPrefix + limits.HostOf(c.Address)
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

// bearer is the token that a call shows.
func bearer(ctx context.Context) (token string, shown bool, err error) {
	values := metadata.ValueFromIncomingContext(ctx, AuthorizationKey)
	switch {
	case len(values) == 0:
		return "", false, nil
	case len(values) > 1:
		return "", true, wire.Invalid(AuthorizationKey, "is there %d times", len(values))
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true, wire.Invalid(AuthorizationKey, "has the scheme of something else than Bearer TOKEN")
	}
	return strings.TrimSpace(token), true, nil
}
