package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// tokenBytesMax bounds a bearer token; a call's headers are bounded as well.
	tokenBytesMax = 8 << 10
	// leeway is how far the clocks of issuer and node may be apart.
	leeway = time.Minute
	// groupsMax bounds the groups of a token.
	groupsMax = 256
)

// algorithms are those of public keys. With a shared secret, who verifies could issue.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// Keys are the public keys of an issuer, and what its tokens must say.
type Keys struct {
	set              jose.JSONWebKeySet
	issuer, audience string
}

// ParseKeys reads a JWK Set, such as an issuer publishes.
func ParseKeys(text []byte, issuer, audience string) (*Keys, error) {
	k := &Keys{issuer: issuer, audience: audience}
	switch {
	case len(text) > fileBytesMax:
		return nil, fmt.Errorf("has %d bytes, and %d is the most", len(text), fileBytesMax)
	case issuer == "" || audience == "":
		return nil, errors.New("issuer and audience are required: a token of another issuer, or for another service, is none for this one")
	}
	if err := json.Unmarshal(text, &k.set); err != nil {
		return nil, fmt.Errorf("is no JWK Set: %w", err)
	}
	if len(k.set.Keys) == 0 {
		return nil, errors.New("has no key in it")
	}
	for i, key := range k.set.Keys {
		if !key.Valid() || !key.IsPublic() {
			return nil, fmt.Errorf("key %d (%q) is not a public key; private and shared ones stay with the issuer", i+1, key.KeyID)
		}
	}
	return k, nil
}

// claims are what of a token counts beside those that every token has.
type claims struct {
	jwt.Claims
	Groups []string `json:"groups"`
}

// verify returns the subject of a token, and its groups.
func (k *Keys) verify(text string, now time.Time) (subject string, groups []string, err error) {
	token, err := jwt.ParseSigned(text, algorithms)
	if err != nil {
		return "", nil, errors.New("the token is no JWT that is signed with a key of the kinds RS, PS, ES and EdDSA")
	}
	var c claims
	if err := token.Claims(k.set, &c); err != nil {
		return "", nil, errors.New("the JWT is signed with none of the keys that this node has of its issuer")
	}
	switch err := c.ValidateWithLeeway(jwt.Expected{Issuer: k.issuer, AnyAudience: jwt.Audience{k.audience}, Time: now}, leeway); {
	case errors.Is(err, jwt.ErrExpired):
		return "", nil, errors.New("the JWT has expired")
	case err != nil:
		return "", nil, fmt.Errorf("the JWT does not count here: %w", err)
	case c.Expiry == nil:
		return "", nil, errors.New("the JWT has no expiry")
	case len(c.Groups) > groupsMax:
		return "", nil, fmt.Errorf("the JWT has %d groups, and %d is the most", len(c.Groups), groupsMax)
	}
	if err := Check(c.Subject); err != nil {
		return "", nil, fmt.Errorf("the JWT's subject: %w", err)
	}
	return c.Subject, slices.Clone(c.Groups), nil
}
