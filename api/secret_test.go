package api

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"zamok/api/gate/identity"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// TestNoSecretIsInALog looks for the secrets and tokens that clients used, in all that three nodes
// log and record at level debug, and in all that they answer, errors and metrics among it, unless
// it is the client's own new secret.
func TestNoSecretIsInALog(t *testing.T) {
	t.Parallel()
	tokens, known := tokensFor(t, "alice", "root", "mallory")
	logs, records := &auditLines{}, &auditLines{}
	c := startCluster(t, 3, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Logger = slog.New(slog.NewTextHandler(logs,
			&slog.HandlerOptions{Level: slog.LevelDebug}))
		cfg.Audit, cfg.Rules = records, theseRules(t, `
rules:
  - identities: [alice, root]
    names: ["*"]
    may: [lock, read, watch, release, operate]
`)
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
	})
	c.leader()
	var answers strings.Builder
	secrets := []string{tokens["alice"], tokens["root"], tokens["mallory"]}
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(relaying(soon(t)), "authorization", "Bearer "+token)
	}
	for i, n := range c.nodes {
		answer := func(code int, method, path, body string, headers ...string) {
			r := send(soon(t), t, n, method, path, body,
				append([]string{"Authorization", "Bearer " + tokens["alice"]}, headers...)...)
			assert.Equal(t, code, r.code, "%s %s: %s", method, path, r.text)
			answers.WriteString(r.text)
		}
		failed := func(err error) {
			require.Error(t, err)
			fmt.Fprintf(&answers, "%v %+v %v\n", err, err, status.Convert(err).Details())
		}
		// By gRPC: its own secret, another one, and tokens that nobody knows.
		to, wrong, forged := call(t, n), newSecret(), tokens["alice"][:20]+"forged"+strconv.Itoa(i)
		s := openSession(t, as(tokens["alice"]), to)
		state := s.hold("a")
		_, err := s.Acquire(s.ctx,
			&zamokpb.AcquireRequest{Session: s.id, Secret: wrong, Acquire: s.next("b", 0).Acquire})
		failed(err)
		_, err = s.Acquire(as(tokens["mallory"]), s.next("b", 0)) // which is recorded
		failed(err)
		_, err = s.OpenSession(s.ctx,
			&zamokpb.OpenSessionRequest{Secret: append(wrong, "too long"...)})
		failed(err)
		_, err = to.Now(as(forged), &zamokpb.NowRequest{})
		failed(err)
		_, err = to.Now(as(forged+" "+tokens["root"]), &zamokpb.NowRequest{})
		failed(err)
		_, err = to.admin.ForceRelease(as(tokens["root"]),
			&zamokpb.ForceReleaseRequest{Name: "a", Token: state.Token, Reason: "a test"})
		require.NoError(t, err)
		stream := openStreamIn(as(tokens["alice"]), t, to, settings(clock.Minute))
		secrets = append(secrets, string(s.secret), string(wrong), forged, string(stream.Secret))

		// Over HTTP.
		secret, key := newSecret(), hex.EncodeToString(newSecret())
		text := hex.EncodeToString(secret)
		answer(400, "POST", "/v1/sessions", `{"secret":"`+text+`","ttl":"x"}`)
		answer(400, "POST", "/v1/sessions", `{"secrets":"`+text+`"}`)
		answer(400, "POST", "/v1/sessions", `{"ttl":"`+text+`x"}`)
		require.Equal(t, 200, send(soon(t), t, n, "POST", "/v1/sessions", `{"secret":"`+text+`"}`,
			"Authorization", "Bearer "+tokens["alice"]).code)
		answer(403, "DELETE", "/v1/sessions/"+strconv.FormatUint(s.id, 10), "",
			"Zamok-Secret", text)
		answer(400, "DELETE", "/v1/sessions/1?secret="+text, "")
		answer(400, "GET", "/v1/check?name=a&token="+tokens["root"], "")
		answer(401, "GET", "/v1/now", "", "Authorization",
			"Basic "+base64.StdEncoding.EncodeToString(secret))
		answer(401, "GET", "/v1/now", "", "Authorization", "Bearer "+forged)
		require.Equal(t, 200, send(soon(t), t, n, "POST", "/v1/acquire",
			`{"name":"by key `+strconv.Itoa(i)+`"}`, "Idempotency-Key", key, "Authorization",
			"Bearer "+tokens["alice"]).code)
		answer(409, "POST", "/v1/acquire", `{"name":"another"}`, "Idempotency-Key", key)
		for _, path := range []string{"/v1/sessions", "/v1/locks", "/v1/lock?name=by+key+0",
			"/v1/members", "/v1/status", "/metrics", "/readyz"} {
			answer(200, "GET", path, "")
		}
		secrets = append(secrets, string(secret), key)
	}
	for what, text := range map[string]string{"the logs": logs.all.String(),
		"the audit logs": records.all.String(), "the answers": answers.String()} {
		require.Greater(t, len(text), 1000, what)
		for _, secret := range secrets {
			for _, form := range []string{
				secret, hex.EncodeToString([]byte(secret)),
				base64.StdEncoding.EncodeToString([]byte(secret)),
				strings.Trim(fmt.Sprint([]byte(secret)), "[]"),
				strings.Trim(strconv.Quote(secret), `"`),
				strings.Trim(strconv.QuoteToASCII(secret), `"`),
			} {
				assert.NotContains(t, text, form, what)
			}
		}
	}
}

// TestNothingTracesCalls: gRPC has a trace of requests with their contents. TestReflection shows
// that its service that shows connections is not served.
func TestNothingTracesCalls(t *testing.T) {
	t.Parallel()
	assert.False(t, grpc.EnableTracing)
	n := startCluster(t, 1, serveHTTP).leader()
	assert.Equal(t, 404, send(soon(t), t, n, "GET", "/debug/requests", "").code)
}
