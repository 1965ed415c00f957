package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var now = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

func TestTokens(t *testing.T) {
	alice, line, err := NewToken("alice", time.Time{})
	require.NoError(t, err)
	other, second, err := NewToken("svc/billing", now.Add(time.Hour))
	require.NoError(t, err)
	require.NotContains(t, line.String(), strings.Split(alice, "_")[2],
		"a line has no secret in it")
	file := "# of a test\n\n" + line.String() + "\n  " + second.String() + "\n"
	tokens, err := ParseTokens([]byte(file))
	require.NoError(t, err)
	v := Verifier{Tokens: tokens}

	who, err := v.Bearer(alice, now)
	require.NoError(t, err)
	require.Equal(t, "alice", who.Identity)
	who, err = v.Bearer(other, now)
	require.NoError(t, err)
	require.Equal(t, "svc/billing", who.Identity)
	_, err = v.Bearer(other, now.Add(time.Hour))
	require.ErrorContains(t, err, "expired at 2026-11-26T13:00:00Z")

	id, secret := strings.Split(alice, "_")[1], strings.Split(other, "_")[2]
	for name, wrong := range map[string]string{
		"none":           "",
		"of nothing":     "zamok_",
		"id only":        "zamok_" + id + "_",
		"another secret": "zamok_" + id + "_" + secret,
		"another id":     "zamok_aaaaaaaa_" + strings.Split(alice, "_")[2],
		"cut short":      alice[:len(alice)-1],
		"longer":         alice + "a",
		"in capitals":    strings.ToUpper(alice),
		"its hash":       "zamok_" + line.String(),
		"enormous":       strings.Repeat("a", tokenBytesMax+1),
		"no such kind":   "a.b.c",
	} {
		_, err := v.Bearer(wrong, now)
		require.Error(t, err, name)
		if len(wrong) > 10 {
			require.NotContains(t, err.Error(), wrong[6:], name)
		}
		_, err = Verifier{}.Bearer(wrong, now)
		require.Error(t, err, name)
	}
}

func TestWhatIsWrongWithAFileOfTokens(t *testing.T) {
	token, line, err := NewToken("alice", time.Time{})
	require.NoError(t, err)
	hash := strings.Fields(line.String())[2]
	for text, complaint := range map[string]string{
		token:                                "line 1: a line has an id",
		"\n" + line.ID + " alice":            "line 2: a line has an id",
		line.ID + " alice " + hash + " a b":  "a line has an id",
		"x alice " + hash:                    "the id was not",
		line.ID + " anonymous@x " + hash:     "must not begin with",
		line.ID + " alice " + hash[:10]:      "not a SHA-256",
		line.ID + " alice " + hash + " 2027": "the expiry must",
		line.String() + "\n" + line.String(): "line 2: the id is used twice",
		strings.Repeat("#", fileBytesMax+1):  "the maximum is",
		line.ID + " al\u202eice " + hash:     "U+202E",
	} {
		_, err := ParseTokens([]byte(text))
		require.ErrorContains(t, err, complaint, "%.80q", text)
		require.NotContains(t, err.Error(), token)
	}
	for _, wrong := range []string{"", "a b", "a\tb", "a\nb", "\x00", "\xff", "a\u200bb", "\u00a0",
		strings.Repeat("a", BytesMax+1), "anonymous@1"} {
		_, _, err := NewToken(wrong, time.Time{})
		require.Error(t, err, "%q", wrong)
	}
}

// issuer signs tokens.
type issuer struct {
	t   testing.TB
	key *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) issuer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return issuer{t, key}
}

func (i issuer) keys() []byte {
	text, err := json.Marshal(
		jose.JSONWebKeySet{
			Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: "1", Algorithm: string(jose.ES256),
				Use: "sig"}}})
	require.NoError(i.t, err)
	return text
}

func (i issuer) token(more map[string]any) string {
	c := map[string]any{"iss": "https://issuer", "aud": "zamok", "sub": "alice",
		"exp": now.Add(time.Hour).Unix(), "groups": []string{"sre"}}
	for k, v := range more {
		if v == nil {
			delete(c, k)
			continue
		}
		c[k] = v
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "1"}}, nil)
	require.NoError(i.t, err)
	text, err := jwt.Signed(signer).Claims(c).Serialize()
	require.NoError(i.t, err)
	return text
}

func TestJWT(t *testing.T) {
	mine, other := newIssuer(t), newIssuer(t)
	keys, err := ParseKeys(mine.keys(), "https://issuer", "zamok")
	require.NoError(t, err)
	v := Verifier{Keys: keys}
	who, err := v.Bearer(mine.token(nil), now)
	require.NoError(t, err)
	require.Equal(t, Who{"alice", []string{"sre"}}, who)
	who, err = v.Bearer(mine.token(map[string]any{"aud": []string{"x", "zamok"}, "groups": nil}),
		now.Add(time.Hour+leeway/2))
	require.NoError(t, err)
	require.Equal(t, Who{Identity: "alice"}, who)

	for name, wrong := range map[string]string{
		"another's key":     other.token(nil),
		"expired":           mine.token(map[string]any{"exp": now.Add(-2 * leeway).Unix()}),
		"no expiry":         mine.token(map[string]any{"exp": nil}),
		"not yet":           mine.token(map[string]any{"nbf": now.Add(2 * leeway).Unix()}),
		"another audience":  mine.token(map[string]any{"aud": "etcd"}),
		"no audience":       mine.token(map[string]any{"aud": nil}),
		"another issuer":    mine.token(map[string]any{"iss": "https://other"}),
		"no subject":        mine.token(map[string]any{"sub": nil}),
		"anonymous":         mine.token(map[string]any{"sub": "anonymous@127.0.0.1"}),
		"a control":         mine.token(map[string]any{"sub": "a\nb"}),
		"groups of numbers": mine.token(map[string]any{"groups": []int{1}}),
		"many groups": mine.token(
			map[string]any{"groups": strings.Split(strings.Repeat("g,", groupsMax+1), ",")}),
		"no algorithm": "eyJhbGciOiJub25lIn0." + strings.Split(mine.token(nil), ".")[1] + ".",
		"no JWT":       "x",
	} {
		_, err := v.Bearer(wrong, now)
		require.Error(t, err, name)
		assert.NotContains(t, err.Error(), "eyJ", name)
	}

	// A public key, taken as a shared secret, signs nothing here.
	shared, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: mine.keys()}, nil)
	require.NoError(t, err)
	forged, err :=
		jwt.Signed(shared).Claims(jwt.Claims{Subject: "alice", Issuer: "https://issuer",
			Audience: jwt.Audience{"zamok"}}).Serialize()
	require.NoError(t, err)
	_, err = v.Bearer(forged, now)
	require.Error(t, err)

	private, err := json.Marshal(
		jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: mine.key, KeyID: "1"}}})
	require.NoError(t, err)
	secret, err := json.Marshal(
		jose.JSONWebKeySet{
			Keys: []jose.JSONWebKey{{Key: []byte("a shared secret of some length...")}}})
	require.NoError(t, err)
	for _, text := range []string{"", "{}", `{"keys":[]}`, `{"keys":[{}]}`, string(private),
		string(secret)} {
		_, err := ParseKeys([]byte(text), "i", "a")
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "shared secret of")
	}
	_, err = ParseKeys(mine.keys(), "", "zamok")
	require.Error(t, err)
}

func TestTheNameInACertificate(t *testing.T) {
	at, err := url.Parse("spiffe://prod/ns/billing")
	require.NoError(t, err)
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "alice"}, DNSNames: []string{"a.example", "b.example"},
		URIs: []*url.URL{at},
	}
	name, err := CommonName.Of(c)
	require.NoError(t, err)
	require.Equal(t, "alice", name)
	name, err = URI.Of(c)
	require.NoError(t, err)
	require.Equal(t, "spiffe://prod/ns/billing", name)
	_, err = DNSName.Of(c)
	require.ErrorContains(t, err, "has 2 names")
	_, err = Email.Of(c)
	require.ErrorContains(t, err, "has 0 names")
	c.Subject.Names = []pkix.AttributeTypeAndValue{{Type: commonName, Value: "mallory"},
		{Type: commonName, Value: "alice"}}
	_, err = CommonName.Of(c)
	require.ErrorContains(t, err, "has 2 names")
	c.Subject.Names = nil
	c.Subject.CommonName = "anonymous@x"
	_, err = CommonName.Of(c)
	require.Error(t, err)
}

// TestNoIdentityLooksAnonymous: neither a token, a JWT nor a certificate makes an identity that
// reads like a client without credentials, or like a group that is built in.
func TestNoIdentityLooksAnonymous(t *testing.T) {
	mine := newIssuer(t)
	keys, err := ParseKeys(mine.keys(), "https://issuer", "zamok")
	require.NoError(t, err)
	for name, complaint := range map[string]string{
		"anonymous":     `must not be "anonymous", which is a group`,
		"Anonymous":     `must not be "anonymous", which is a group`,
		"authenticated": `must not be "authenticated", which is a group`,
		"AUTHENTICATED": `must not be "authenticated", which is a group`,
		"anonymous@1.2.3.4": "must not begin with anonymous@, which stands for clients without " +
			"credentials",
		"Anonymous@host": "must not begin with anonymous@, which stands for clients without " +
			"credentials",
	} {
		_, _, err := NewToken(name, time.Time{})
		require.ErrorContains(t, err, complaint)
		_, err = ParseTokens([]byte("\naaaaaaaa " + name + " " + strings.Repeat("0", 64)))
		require.ErrorContains(t, err, "line 2: ")
		require.ErrorContains(t, err, complaint)
		_, err = Verifier{Keys: keys}.Bearer(mine.token(map[string]any{"sub": name}), now)
		require.ErrorContains(t, err, complaint)
		_, err = CommonName.Of(&x509.Certificate{Subject: pkix.Name{CommonName: name}})
		require.ErrorContains(t, err, complaint)
		_, err = DNSName.Of(&x509.Certificate{DNSNames: []string{name}})
		require.ErrorContains(t, err, complaint)
	}
	for _, other := range []string{"anonymous-2", "anonymously", "x/anonymous",
		"authenticated.svc"} {
		require.NoError(t, Check(other))
	}
}

func FuzzParseTokens(f *testing.F) {
	_, line, err := NewToken("alice", now)
	require.NoError(f, err)
	f.Add([]byte(line.String()))
	f.Fuzz(func(t *testing.T, text []byte) {
		if tokens, err := ParseTokens(text); err == nil {
			for _, token := range tokens {
				again, err := ParseTokens([]byte(token.String()))
				require.NoError(t, err)
				require.Equal(t, token.String(), again[token.ID].String())
			}
		}
	})
}

// FuzzBearer has one JWT and one token to accept. Whatever else is accepted is the same token,
// spelled otherwise: nothing becomes another identity, or a later expiry.
func FuzzBearer(f *testing.F) {
	// the same one in all processes of a run
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), bytes.Repeat([]byte{7}, 32))
	require.NoError(f, err)
	i := issuer{f, key}
	keys, err := ParseKeys(i.keys(), "https://issuer", "zamok")
	require.NoError(f, err)
	const token = "zamok_aaaaaaaa_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	line := Token{ID: "aaaaaaaa", Identity: "bob", hash: sha256.Sum256([]byte(token)),
		Expires: now.Add(time.Hour)}
	tokens, err := ParseTokens([]byte(line.String()))
	require.NoError(f, err)
	v := Verifier{Tokens: tokens, Keys: keys}
	for _, seed := range []string{
		i.token(nil), i.token(nil)[:60], i.token(map[string]any{"sub": "bob"})[:100],
		i.token(map[string]any{"exp": now.Add(-time.Hour).Unix()}),
		token, token[:20], "zamok__", "eyJhbGciOiJub25lIn0.e30.",
		`{"payload":"e30","signatures":[{"protected":"e30","signature":"AA"}]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		who, err := v.Bearer(text, now)
		_, late := v.Bearer(text, now.Add(24*time.Hour))
		require.Error(t, late)
		switch {
		case err != nil:
			require.Equal(t, Who{}, who)
			require.Less(t, len(err.Error()), 300)
		case strings.HasPrefix(text, tokenPrefix):
			require.Equal(t, token, text)
			require.Equal(t, Who{Identity: "bob"}, who)
		default:
			require.Equal(t, Who{"alice", []string{"sre"}}, who)
		}
	})
}
