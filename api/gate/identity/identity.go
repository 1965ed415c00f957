package identity

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"zamok/api/visible"
)

// BytesMax bounds an identity, which is stored with each session.
const BytesMax = 256

// AnonymousPrefix, followed by the network of its address, stands for the identity of an
// unauthenticated caller. No identity begins with it.
const AnonymousPrefix = "anonymous@"

// builtIn are the groups that access rules know without a definition.
var builtIn = []string{"anonymous", "authenticated"}

// Check returns an error unless text is a valid identity. Identities appear in tokens files, in
// logs and on terminals, so each must differ from a client without credentials and from a group
// that is built in, whatever its capitals.
func Check(identity string) error {
	switch lower := strings.ToLower(identity); {
	case identity == "":
		return errors.New("the identity is empty")
	case len(identity) > BytesMax:
		return fmt.Errorf("the identity has %d bytes; the maximum is %d", len(identity), BytesMax)
	case !utf8.ValidString(identity):
		return errors.New("the identity is not UTF-8")
	case strings.HasPrefix(lower, AnonymousPrefix):
		return fmt.Errorf("an identity must not begin with %s, which stands for clients without "+
			"credentials", AnonymousPrefix)
	case slices.Contains(builtIn, lower):
		return fmt.Errorf("an identity must not be %q, which is a group that access rules know "+
			"without a definition", lower)
	}
	shown := visible.Cell(identity)
	for i, r := range identity {
		// without the identity: it may be a token by mistake
		if !strings.HasPrefix(shown, identity[:i+utf8.RuneLen(r)]) {
			return fmt.Errorf("the identity has %U at byte %d: only visible characters are "+
				"allowed, and single spaces between them", r, i)
		}
	}
	return nil
}

// Who is an authenticated client.
type Who struct {
	Identity string
	Groups   []string // of a JWT
}

// Verifier verifies tokens. Without keys and tokens it accepts none.
type Verifier struct {
	Tokens Tokens
	Keys   *Keys
}

// Bearer verifies a token and returns its client.
func (v Verifier) Bearer(token string, now time.Time) (who Who, err error) {
	switch {
	case len(token) > tokenBytesMax:
		return who, fmt.Errorf("the token has %d bytes; the maximum is %d", len(token),
			tokenBytesMax)
	case strings.HasPrefix(token, tokenPrefix):
		who.Identity, err = v.Tokens.verify(token, now)
	case v.Keys != nil:
		who.Identity, who.Groups, err = v.Keys.verify(token, now)
	default:
		err = errToken
	}
	return who, err
}

// CertificateName is the part of a certificate that names a client.
type CertificateName string

// The parts.
const (
	CommonName CertificateName = "cn"
	DNSName    CertificateName = "dns"
	URI        CertificateName = "uri"
	Email      CertificateName = "email"
)

// commonName is the identifier of a common name in the subject of a certificate.
var commonName = asn1.ObjectIdentifier{2, 5, 4, 3}

// Of returns the name in a verified certificate. A certificate with several such names is refused:
// it does not say which of them counts.
func (n CertificateName) Of(c *x509.Certificate) (string, error) {
	var names []string
	switch n {
	case CommonName:
		names = []string{c.Subject.CommonName}
		for _, part := range c.Subject.Names { // crypto/x509 takes the last one of several
			if name, is := part.Value.(string); is && part.Type.Equal(commonName) &&
				name != c.Subject.CommonName {
				names = append(names, name)
			}
		}
	case DNSName:
		names = c.DNSNames
	case URI:
		for _, u := range c.URIs {
			names = append(names, u.String())
		}
	case Email:
		names = c.EmailAddresses
	}
	if len(names) != 1 {
		return "", fmt.Errorf("the certificate has %d names of type %s; exactly one is required",
			len(names), n)
	}
	return names[0], Check(names[0])
}
