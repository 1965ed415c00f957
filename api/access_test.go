package api

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"zamok/api/audit"
	"zamok/api/gate/identity"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// auditLines collects the audit logs of a cluster.
type auditLines struct {
	mu   sync.Mutex // guards what follows
	all  bytes.Buffer
	full bool
}

func (a *auditLines) Write(line []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.full {
		return 0, syscall.ENOSPC
	}
	return a.all.Write(line)
}

// take returns the events since it was called last.
func (a *auditLines) take(t *testing.T) (events []audit.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for line := range bytes.Lines(a.all.Bytes()) {
		var e audit.Event
		require.NoError(t, json.Unmarshal(line, &e))
		e.Time, e.From = time.Time{}, ""
		events = append(events, e)
	}
	a.all.Reset()
	return events
}

const testRules = `
rules:
  - identities: [alice]
    names: [a/*]
    may: [lock, read, watch]
  - identities: [bob]
    names: [a/b]
    may: [lock]
  - identities: [root]
    names: ["*"]
    may: [read, release, operate]
`

// TestCallersAreKnownOnEveryNode: a caller's token counts on the leader, through a node that
// relays, and over HTTP.
func TestCallersAreKnownOnEveryNode(t *testing.T) {
	t.Parallel()
	tokens, known := tokensFor(t, "alice", "bob", "root", "mallory")
	next, line, err := identity.NewToken("alice", time.Time{})
	require.NoError(t, err)
	tokens["alice's next"], known[line.ID] = next, line
	lines := &auditLines{}
	c := startCluster(t, 2, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Rules, cfg.Audit = theseRules(t, testRules), lines
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
	})
	leader := c.leader()
	as := func(who string) context.Context {
		return metadata.AppendToOutgoingContext(relaying(soon(t)), "authorization",
			"Bearer "+tokens[who])
	}
	for _, n := range c.nodes {
		to, at, via := call(t, n), n.cfg.ID+"/", ""
		if n != leader {
			via = n.cfg.ID
		}
		s := openSession(t, as("alice"), to)
		require.Equal(t, "alice", identityOf(leader, s.id))
		lock := func(s *sessionOf, ctx context.Context, name string) *zamokpb.ErrorInfo {
			_, err := s.Acquire(ctx, s.next(name, 0))
			return infoOf(t, err)
		}
		s.hold("a/" + at)
		require.Empty(t, lines.take(t), "what is allowed to everybody is not recorded")
		info := lock(s, s.ctx, "b")
		assert.Equal(t, zamokpb.Code_CODE_DENIED, info.Code)
		denied := lines.take(t)
		require.Len(t, denied, 1)
		assert.Equal(t, audit.Event{
			Node: leader.cfg.ID, Who: "alice", Via: via, Call: "Acquire", Outcome: "not done",
			Code: "DENIED", Message: denied[0].Message, On: denied[0].On,
		}, denied[0])
		assert.Equal(t, "b", denied[0].On["lock 1"])
		assert.Contains(t, info.Message, denied[0].Message)

		ofAnother(t, as("bob"), to, s)
		denied = lines.take(t)
		require.Len(t, denied, 3)
		for i, called := range []string{"Acquire", "OpenSession", "Session"} {
			assert.Equal(t, audit.Event{
				Node: leader.cfg.ID, Who: "bob", Via: via, Call: called, Outcome: "not done",
				Code:    "WRONG_SECRET",
				Message: denied[i].Message, On: denied[i].On,
			}, denied[i])
		}
		otherTokens(t, n, s, tokens, as("alice's next"))

		// Without a token, with a wrong one, and with one that is known and allows nothing.
		_, err := to.Now(relaying(soon(t)), &zamokpb.NowRequest{})
		assert.Equal(t, zamokpb.Code_CODE_DENIED, infoOf(t, err).Code)
		_, err = to.Now(as("mallory"), &zamokpb.NowRequest{})
		assert.Equal(t, zamokpb.Code_CODE_DENIED, infoOf(t, err).Code)
		lines.take(t)
		_, err = to.Now(metadata.AppendToOutgoingContext(relaying(soon(t)), "authorization",
			"Bearer zamok_x_y"), &zamokpb.NowRequest{})
		assert.Equal(t, zamokpb.Code_CODE_UNAUTHENTICATED, infoOf(t, err).Code)
		assert.Equal(t, codes.Unauthenticated, status.Code(err))
		refused := lines.take(t)
		require.Len(t, refused, 1)
		assert.Equal(t, "UNAUTHENTICATED", refused[0].Code)
		assert.Equal(t, n.cfg.ID, refused[0].Node, "it is not passed on")

		// The same over HTTP.
		get := func(who, path string) reply {
			if who == "" {
				return send(soon(t), t, n, "GET", path, "")
			}
			return send(soon(t), t, n, "GET", path, "", "Authorization", "Bearer "+tokens[who])
		}
		path := "/v1/lock?name=" + url.QueryEscape("a/"+at)
		assert.Equal(t, http.StatusOK, get("alice", path).code)
		assert.Equal(t, http.StatusForbidden, get("bob", path).code)
		assert.Equal(t, http.StatusForbidden, get("", path).code)
		unknown := send(soon(t), t, n, "GET", path, "", "Authorization", "Bearer x")
		assert.Equal(t, http.StatusUnauthorized, unknown.code)
		assert.Equal(t, "Bearer", unknown.header.Get("WWW-Authenticate"))
		assert.Equal(t, http.StatusUnauthorized,
			send(soon(t), t, n, "GET", path, "", "Authorization", "Basic x").code)
		assert.Equal(t, http.StatusOK, get("root", "/v1/sessions").code)
		lines.take(t)

		operate(t, as("root"), to, s, "a/"+at, lines)
	}
}

// ofAnother uses the session of another identity, whose secret is known: three times it is of no
// use.
func ofAnother(t *testing.T, ctx context.Context, to caller, s *sessionOf) {
	_, err := s.Acquire(ctx, s.next("a/b", 0))
	assert.Equal(t, zamokpb.Code_CODE_WRONG_SECRET, infoOf(t, err).Code)
	_, err = s.OpenSession(ctx,
		&zamokpb.OpenSessionRequest{Secret: s.secret, Settings: settings(clock.Minute)})
	assert.Equal(t, zamokpb.Code_CODE_WRONG_SECRET, infoOf(t, err).Code)
	stream := dialIn(ctx, t, to)
	stream.send(openMessage(&zamokpb.OpenStream{Session: s.id, Secret: s.secret}))
	info := infoOf(t, stream.end())
	assert.Equal(t, zamokpb.Code_CODE_WRONG_SECRET, info.Code)
	assert.Contains(t, info.Message, fmt.Sprintf("session %d", s.id))
}

// otherTokens renews a session of alice with the token of another identity, and with another one of
// hers.
func otherTokens(t *testing.T, n *Node, s *sessionOf, tokens map[string]string,
	next context.Context) {
	renew := func(who string) reply {
		return send(soon(t), t, n, "POST", fmt.Sprintf("/v1/sessions/%d/renew", s.id), "{}",
			"Authorization", "Bearer "+tokens[who], "Zamok-Secret", hex.EncodeToString(s.secret))
	}
	assert.Equal(t, http.StatusForbidden, renew("bob").code)
	assert.Equal(t, http.StatusOK, renew("alice's next").code)
	_, err := s.RenewSession(next, &zamokpb.RenewSessionRequest{Session: s.id, Secret: s.secret})
	require.NoError(t, err)
}

// operate makes an operator's calls, for a lock that a session has and for the session: they are
// recorded, whatever came of them.
func operate(t *testing.T, ctx context.Context, to caller, s *sessionOf, name string,
	lines *auditLines) {
	_, err := to.admin.ForceRelease(ctx,
		&zamokpb.ForceReleaseRequest{Name: name, Token: 1, Reason: "a test"})
	require.NoError(t, err)
	_, err = to.admin.ExpireSession(ctx, &zamokpb.ExpireSessionRequest{Session: 1 << 40})
	require.Error(t, err)
	_, err = to.admin.ExpireSession(ctx, &zamokpb.ExpireSessionRequest{Session: s.id})
	require.NoError(t, err)
	operated := lines.take(t)
	require.Len(t, operated, 3)
	assert.Equal(t, "ForceRelease", operated[0].Call)
	assert.Equal(t, "done", operated[0].Outcome)
	assert.Equal(t, map[string]string{"name": name, "token": "1", "reason": "a test"},
		operated[0].On)
	assert.Equal(t, "not done", operated[1].Outcome)
	assert.Equal(t, "NO_SESSION", operated[1].Code)
	assert.Equal(t, "done", operated[2].Outcome)
	assert.Equal(t, "root", operated[2].Who)
}

// TestAFullAuditLogStopsNoCall: what can't be recorded is counted, and done all the same. Denials
// are counted by verb.
func TestAFullAuditLogStopsNoCall(t *testing.T) {
	t.Parallel()
	tokens, known := tokensFor(t, "root", "bob")
	lines := &auditLines{full: true}
	n := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Rules, cfg.Audit, cfg.Logger = theseRules(t, testRules), lines,
			slog.New(slog.DiscardHandler)
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
		cfg.Files = func() map[string]bool {
			return map[string]bool{"rules": true, "tokens": false}
		}
	}).leader()
	to := call(t, n)
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(soon(t), "authorization", "Bearer "+token)
	}
	_, err := to.admin.Settings(as(tokens["root"]),
		&zamokpb.SettingsRequest{LongestTtl: int64(2 * clock.Hour)})
	require.NoError(t, err)
	_, err = to.Get(as(tokens["bob"]), &zamokpb.GetRequest{Name: "x"})
	require.Equal(t, zamokpb.Code_CODE_DENIED, infoOf(t, err).Code)
	_, err = to.Now(as("nonsense"), &zamokpb.NowRequest{})
	require.Equal(t, zamokpb.Code_CODE_UNAUTHENTICATED, infoOf(t, err).Code)
	text := n.server.metricsText(t)
	for _, line := range []string{
		"zamok_audit_failures_total 3", `zamok_denied_total{verb="read"} 1`,
		"zamok_unauthenticated_total 1",
		`zamok_file_usable{file="rules"} 1`, `zamok_file_usable{file="tokens"} 0`,
	} {
		assert.Contains(t, text, "\n"+line+"\n")
	}
}

// TestAFloodOfDenialsIsCounted: by gRPC and HTTP, with and without valid credentials. A caller that
// is not authenticated counts under its network, whatever identity it claims. What an operator does
// meanwhile is written.
func TestAFloodOfDenialsIsCounted(t *testing.T) {
	t.Parallel()
	tokens, known := tokensFor(t, "root", "bob")
	expired, line, err := identity.NewToken("root", time.Now().Add(-time.Hour))
	require.NoError(t, err)
	known[line.ID] = line
	lines := &auditLines{}
	n := startCluster(t, 1, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Profile = true
		cfg.Rules, cfg.Audit = theseRules(t, testRules), lines
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
	}).leader()
	to := call(t, n)
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(soon(t), "authorization", "Bearer "+token)
	}
	const each = 100
	began := time.Now()
	for range each {
		_, err := to.Get(as(tokens["bob"]), &zamokpb.GetRequest{Name: "x"})
		require.Equal(t, zamokpb.Code_CODE_DENIED, infoOf(t, err).Code)
		_, err = to.Now(as(expired), &zamokpb.NowRequest{})
		require.Equal(t, zamokpb.Code_CODE_UNAUTHENTICATED, infoOf(t, err).Code)
		_, err = to.admin.Settings(as(tokens["root"]),
			&zamokpb.SettingsRequest{LongestTtl: int64(2 * clock.Hour)})
		require.NoError(t, err)
		require.Equal(t, http.StatusForbidden,
			send(soon(t), t, n, "GET", "/debug/pprof/cmdline", "", "Authorization",
				"Bearer "+tokens["bob"]).code)
	}
	lineMax := 10 * int(2+time.Since(began)/time.Second) // ten at once, and ten a second
	text := n.server.metricsText(t)
	require.NoError(t, n.Close())
	counts, written, omitted := map[string]int{}, map[string]int{}, 0
	for _, e := range lines.take(t) {
		counts[e.Who] += max(e.Omitted, 1)
		omitted += e.Omitted
		if e.Omitted == 0 {
			written[e.Who]++
		}
	}
	assert.Equal(t, each, written["root"])
	assert.Equal(t, 2*each, counts["bob"])
	assert.LessOrEqual(t, written["bob"], lineMax)
	assert.LessOrEqual(t, written[""], lineMax) // the others are the network's
	assert.Equal(t, each, counts[""]+counts["anonymous@127.0.0.1"])
	assert.True(t, strings.Contains(text, fmt.Sprintf("\nzamok_audit_omitted_total %d\n", omitted)),
		omitted)
}
