package api

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"zamok/api/gate/identity"
	"zamok/api/gate/rules"
	"zamok/api/zamokpb"
)

// With TLS that requires certificates, HTTP authenticates callers as gRPC does, by certificate or
// token, and refuses others. Health and metrics need no credentials, profiles need operate.
func TestHTTPAuthenticatesCallers(t *testing.T) {
	t.Parallel()
	pool, certificate := selfSigned(t) // of "a test"
	token, line, err := identity.NewToken("bob", time.Time{})
	require.NoError(t, err)
	known, err := identity.ParseTokens([]byte(line.String()))
	require.NoError(t, err)
	set, err := rules.Parse([]byte(`
rules:
  - identities: [a test]
    names: [a/*]
    may: [lock, read]
  - identities: [bob]
    may: [operate]
`))
	require.NoError(t, err)
	lines := &auditLines{}
	n := startCluster(t, 1, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Profile, cfg.Audit = true, lines
		cfg.Rules = func() *rules.Set { return set }
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
		cfg.Peers.TLS = func() *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: pool}
		}
		cfg.ClientTLS = func() *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: pool,
				ClientAuth: tls.RequireAndVerifyClientCert}
		}
	}).leader()
	do := func(with *tls.Config, method, path, body string, headers ...string) (int, string) {
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: with}
		request, err := http.NewRequestWithContext(soon(t), method, "https://"+n.HTTP()+path,
			strings.NewReader(body))
		require.NoError(t, err)
		for i := 0; i < len(headers); i += 2 {
			request.Header.Set(headers[i], headers[i+1])
		}
		request.Host = request.Header.Get("Host")
		answer, err := (&http.Client{Transport: transport}).Do(request)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(text)
	}
	nothing := &tls.Config{RootCAs: pool}
	shown := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{certificate}}
	byToken := []string{"Authorization", "Bearer " + token}

	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/metrics": 200, "/v1/now": 401, "/v1/lock?name=a/x": 401,
		"/debug/pprof/cmdline": 401,
	} {
		code, text := do(nothing, "GET", path, "")
		assert.Equal(t, want, code, "%s: %s", path, text)
	}
	code, text := do(nothing, "GET", "/metrics", "")
	require.Equal(t, 200, code, text)
	for _, shownTo := range []string{"clients", "peers"} {
		at, _ := scrape(t, text)
		assert.InDelta(t, certificate.Leaf.NotAfter.Unix(),
			at[`zamok_certificate_expiry_timestamp_seconds{certificate="`+shownTo+`"}`], 0)
	}
	code, text = do(shown, "POST", "/v1/sessions", `{"ttl":"10s"}`)
	require.Equal(t, 200, code, text)
	code, text = do(shown, "GET", "/v1/sessions", "")
	assert.Equal(t, 200, code, text)
	assert.Contains(t, text, `"identity":"a test"`)
	code, text = do(shown, "GET", "/v1/lock?name=b", "")
	assert.Equal(t, 403, code, text)
	readProfiles(t, lines, func(headers ...string) (code int) {
		code, _ = do(shown, "GET", "/debug/pprof/cmdline", "", headers...)
		return code
	}, byToken)
	code, text = do(nothing, "POST", "/v1/admin/transfer", `{"to":"n1"}`, byToken...)
	assert.NotContains(t, []int{401, 403}, code, text)

	code, text = do(shown, "GET", "/v1/now", "", "Origin", "https://evil.example")
	assert.Equal(t, 403, code, text)
	code, text = do(shown, "GET", "/v1/now", "", "Host", "evil.example")
	assert.Equal(t, 403, code, text)
	code, text = do(shown, "GET", "/v1/now", "", "Origin", "https://"+n.HTTP())
	assert.Equal(t, 200, code, text)
	plain, err := http.Get("http://" + n.HTTP() + "/healthz")
	require.NoError(t, err)
	plain.Body.Close()
	assert.Equal(t, 400, plain.StatusCode)

	grpcAuthenticates(t, n, nothing, token)
}

// grpcAuthenticates calls by gRPC without a certificate: a token is enough where there are any, and
// with neither only the health is answered.
func grpcAuthenticates(t *testing.T, n *Node, nothing *tls.Config, token string) {
	conn, err := grpc.NewClient("passthrough:///"+n.Client(),
		grpc.WithTransportCredentials(credentials.NewTLS(nothing)))
	require.NoError(t, err)
	defer conn.Close()
	now := func(ctx context.Context) error {
		_, err := zamokpb.NewZamokClient(conn).Now(ctx, &zamokpb.NowRequest{})
		return err
	}
	assert.NoError(t,
		now(metadata.AppendToOutgoingContext(soon(t), "authorization", "Bearer "+token)))
	assert.Equal(t, codes.Unauthenticated, status.Code(now(soon(t))))
	_, err = healthpb.NewHealthClient(conn).Check(soon(t), &healthpb.HealthCheckRequest{})
	assert.NoError(t, err)
}

// readProfiles requests a profile as "a test", who may not operate, and as "bob", who may.
func readProfiles(t *testing.T, lines *auditLines, do func(headers ...string) (code int),
	asBob []string) {
	lines.take(t)
	assert.Equal(t, http.StatusForbidden, do())
	assert.Equal(t, http.StatusOK, do(asBob...))
	read := lines.take(t)
	require.Len(t, read, 2, "who requested a profile is recorded")
	assert.Equal(t, []string{"a test", "pprof cmdline", "not done"},
		[]string{read[0].Who, read[0].Call, read[0].Outcome})
	assert.Equal(t, []string{"bob", "pprof cmdline", "done"},
		[]string{read[1].Who, read[1].Call, read[1].Outcome})
	for _, crossSite := range [][]string{{"Origin", "https://evil.example"},
		{"Host", "evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		assert.Equal(t, http.StatusForbidden, do(append(crossSite, asBob...)...))
	}
}
