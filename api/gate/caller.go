package gate

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"zamok/api/gate/identity"
	"zamok/api/gate/limits"
	"zamok/api/gate/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/raftnode/peer"
)

// Caller is the client that makes a call.
type Caller struct {
	// Identity is that of the token or certificate, or that of an anonymous caller.
	Identity string
	Groups   []string // of its JWT
	Address  string
	// Via is the node that relays the call, and has authenticated the caller. Nil: it came here.
	Via *peer.Server
}

// via is the name of the node that relays the call.
func (c Caller) via() string {
	if c.Via == nil {
		return ""
	}
	return c.Via.Name
}

// anonymous is the identity of callers without a token or a certificate. Those of one network are
// one, since a machine may have any number of addresses.
func anonymous(address string) string {
	return identity.AnonymousPrefix + limits.Network(limits.HostOf(address))
}

// Principal is the name under which limits, the audit log and the queue in front of the log count a
// caller: its identity, or without one the network of its address, as in the state machine. A
// caller whose credentials are wrong counts as anonymous.
func (c Caller) Principal() string {
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
func isAnonymous(id string) bool {
	return id == "" || strings.HasPrefix(id, identity.AnonymousPrefix)
}

// IsAuthenticated reports whether the caller has shown a token or a certificate.
func (c Caller) IsAuthenticated() bool { return !isAnonymous(c.Identity) }

// MayUse reports whether a caller may use a session that was opened with an identity, if it has the
// secret as well. For a session of an anonymous caller the secret is enough, so that authentication
// can be introduced while sessions live.
func (c Caller) MayUse(opened string) bool { return isAnonymous(opened) || opened == c.Identity }

// Values encodes a caller as metadata of a relayed call; relayed decodes it.
func (c Caller) Values() []string { return append([]string{c.Identity, c.Address}, c.Groups...) }

// relayed is the caller as the relaying node has authenticated it.
func relayed(via *peer.Server, values []string) Caller {
	if len(values) < 2 {
		return Caller{Via: via}
	}
	return Caller{Identity: values[0], Address: values[1], Groups: values[2:], Via: via}
}

// Identifier authenticates calls.
type Identifier struct {
	Verifier    func() identity.Verifier
	Certificate identity.CertificateName // the part of a certificate that is the identity
	Required    bool                     // calls without a token or a certificate are refused
}

// errNothingShown refuses a call without credentials if Identifier.Required is set.
var errNothingShown = errors.New("a client certificate or a bearer token is required")

// Caller authenticates a call. A token takes precedence over a certificate.
func (i Identifier) Caller(from Arrival, now time.Time) (Caller, error) {
	if from.Address == "" {
		if i.Required {
			return Caller{}, unauthenticated(errNothingShown)
		}
		return Caller{}, nil
	}
	c := Caller{Address: from.Address}
	if len(from.Tokens) > 0 {
		token, err := bearer(from.Tokens)
		who, refused := i.Verifier().Bearer(token, now)
		c.Identity, c.Groups = who.Identity, who.Groups
		return c, unauthenticated(cmp.Or(err, refused))
	}
	if from.Certificate != nil {
		name, err := i.Certificate.Of(from.Certificate)
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
	return wire.Errorf(zamokpb.Code_CODE_UNAUTHENTICATED,
		"not done: the caller is not authenticated: %v", err)
}

// bearer returns the token in the values of Authorization.
func bearer(values []string) (token string, err error) {
	if len(values) > 1 {
		return "", wire.Invalid(zamokpb.AuthorizationKey, "is set %d times", len(values))
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", wire.Invalid(zamokpb.AuthorizationKey, "must have the form Bearer TOKEN")
	}
	return strings.TrimSpace(token), nil
}
