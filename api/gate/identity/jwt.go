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
	// leeway is the tolerated difference between the clocks of issuer and node.
	leeway = time.Minute
	// groupsMax bounds the groups of a token.
	groupsMax = 256
)

// algorithms are those with public keys: with a shared secret, a verifier could issue tokens.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384,
	jose.ES512, jose.EdDSA,
}

// Keys are the public keys of an issuer, and the required issuer and audience of its tokens.
type Keys struct {
	set              jose.JSONWebKeySet
	issuer, audience string
}

// ParseKeys reads a JWK Set, as an issuer publishes it.
func ParseKeys(text []byte, issuer, audience string) (*Keys, error) {
	k := &Keys{issuer: issuer, audience: audience}
	switch {
	case len(text) > fileBytesMax:
		return nil, fmt.Errorf("has %d bytes; the maximum is %d", len(text), fileBytesMax)
	case issuer == "" || audience == "":
		return nil, errors.New("issuer and audience are required")
	}
	if err := json.Unmarshal(text, &k.set); err != nil {
		return nil, fmt.Errorf("is not a JWK Set: %w", err)
	}
	if len(k.set.Keys) == 0 {
		return nil, errors.New("contains no key")
	}
	for i, key := range k.set.Keys {
		if !key.Valid() || !key.IsPublic() {
			return nil, fmt.Errorf("key %d (%q) is not a public key; private and shared keys "+
				"must stay with the issuer", i+1, key.KeyID)
		}
	}
	return k, nil
}

// claims are the claims of a token that are read.
type claims struct {
	jwt.Claims
	Groups []string `json:"groups"`
}

// verify returns the subject of a token, and its groups.
func (k *Keys) verify(text string, now time.Time) (subject string, groups []string, err error) {
	token, err := jwt.ParseSigned(text, algorithms)
	if err != nil {
		return "", nil, errors.New("the token is not a JWT with a signature of RS, PS, ES or EdDSA")
	}
	var c claims
	if err := token.Claims(k.set, &c); err != nil {
		return "", nil, errors.New("no key of --jwt-keys verifies the JWT")
	}
	switch err := c.ValidateWithLeeway(
		jwt.Expected{Issuer: k.issuer, AnyAudience: jwt.Audience{k.audience}, Time: now}, leeway); {
	case errors.Is(err, jwt.ErrExpired):
		return "", nil, errors.New("the JWT has expired")
	case err != nil:
		return "", nil, fmt.Errorf("the JWT is not valid here: %w", err)
	case c.Expiry == nil:
		return "", nil, errors.New("the JWT has no expiry")
	case len(c.Groups) > groupsMax:
		return "", nil, fmt.Errorf("the JWT has %d groups; the maximum is %d", len(c.Groups),
			groupsMax)
	}
	if err := Check(c.Subject); err != nil {
		return "", nil, fmt.Errorf("the JWT's subject: %w", err)
	}
	return c.Subject, slices.Clone(c.Groups), nil
}
