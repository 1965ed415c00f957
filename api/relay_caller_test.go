package api

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"zamok/api/gate/identity"
	"zamok/api/rpc"
	"zamok/api/zamokpb"
)

// The longest token, and the most groups in it (package identity).
const longestToken, mostGroups = 8 << 10, 256

// issuer signs JWTs.
type issuer struct {
	t   *testing.T
	key ed25519.PrivateKey
}

func newIssuer(t *testing.T) issuer {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return issuer{t, key}
}

func (i issuer) verifier() identity.Verifier {
	public := base64.RawURLEncoding.EncodeToString(i.key.Public().(ed25519.PublicKey))
	keys, err := identity.ParseKeys(
		[]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":"`+public+`"}]}`),
		"https://issuer", "zamok")
	require.NoError(i.t, err)
	return identity.Verifier{Keys: keys}
}

// token makes a token of alice with that number of groups, whose names begin with a text and of
// which the last is "last". Another claim makes it as long as a token of so many bytes can be.
func (i issuer) token(groups int, text string, bytes int) string {
	names := ""
	for g := range groups - 1 {
		names += fmt.Sprintf(`"%s%d",`, text, g)
	}
	for rest := bytes*3/4 - len(names); rest >= 0; rest-- {
		payload := fmt.Sprintf(
			`{"iss":"https://issuer","aud":"zamok","sub":"alice","exp":%d,"rest":"%s","groups":[%s"last"]}`,
			time.Now().Add(time.Hour).Unix(), strings.Repeat("-", rest), names)
		text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","kid":"1"}`)) + "." +
			base64.RawURLEncoding.EncodeToString([]byte(payload))
		if signature := base64.RawURLEncoding.EncodeToString(
			ed25519.Sign(i.key, []byte(text))); len(text)+1+len(signature) <= bytes {
			return text + "." + signature
		}
	}
	require.FailNow(i.t, "the groups need a longer token")
	return ""
}

// TestACallerWithManyGroupsIsRelayed: a caller that a follower has authenticated is known to the
// leader with all groups, whatever else the call has in its metadata. A token with more is refused
// where it is shown.
func TestACallerWithManyGroupsIsRelayed(t *testing.T) {
	t.Parallel()
	jwts := newIssuer(t)
	tokens := map[string]string{
		"short names": jwts.token(mostGroups, "", longestToken),
		"long names":  jwts.token(mostGroups, strings.Repeat("n", 14), longestToken),
		// A byte that is not UTF-8 is read as U+FFFD, which has three.
		"names that grow": jwts.token(mostGroups, strings.Repeat("\xff", 14), longestToken),
		"one long name":   jwts.token(2, strings.Repeat("\xff", 5700), longestToken),
	}
	c := startCluster(t, 2, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Rules = theseRules(t,
			"groups: {last: token}\nrules: [{groups: [last], names: ['*'], may: [lock]}]")
		cfg.Identity.Verifier = jwts.verifier
	})
	leader := c.leader()
	for name, token := range tokens {
		for _, n := range c.nodes {
			ctx := metadata.AppendToOutgoingContext(relaying(soon(t)), zamokpb.AuthorizationKey,
				"Bearer "+token,
				"x-trace", strings.Repeat("t", rpc.HeaderBytesMax-longestToken-1<<10))
			s := openSession(t, ctx, call(t, n))
			assert.Equal(t, "alice", identityOf(leader, s.id), "%s through %s", name, n.cfg.ID)
			s.hold(name)
			s.drop(1)
			answer := send(soon(t), t, n, "GET", "/v1/now", "", "Authorization", "Bearer "+token)
			assert.Equal(t, http.StatusOK, answer.code, "%s over HTTP of %s: %v", name,
				n.cfg.ID, answer)
		}
	}

	for reason, token := range map[string]string{
		"the JWT has 257 groups; the maximum is 256": jwts.token(mostGroups+1, "", longestToken),
		"bytes; the maximum is 8192":                 jwts.token(mostGroups, "", longestToken+4),
	} {
		_, err := call(t, c.follower()).Now(metadata.AppendToOutgoingContext(relaying(soon(t)),
			zamokpb.AuthorizationKey, "Bearer "+token), &zamokpb.NowRequest{})
		require.Equal(t, zamokpb.Code_CODE_UNAUTHENTICATED, infoOf(t, err).Code)
		assert.ErrorContains(t, err, reason)
	}
}
