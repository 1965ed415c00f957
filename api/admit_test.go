package api

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"zamok/api/gate/identity"
	"zamok/api/gate/limits"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/raftnode"
)

// TestAFloodIsRefusedAndOthersAreServed: a caller beyond its rate is refused by gRPC and HTTP, at
// the leader and at a node that relays, with the limit and how long to wait. It keeps and releases
// what it has, and others are served.
func TestAFloodIsRefusedAndOthersAreServed(t *testing.T) {
	t.Parallel()
	set, err := limits.Parse([]string{"requests-per-identity=5/s", "streams-per-identity=1",
		"watches-per-identity=1", "held-calls-per-identity=1",
		"relayed-calls-per-identity=1", "public-streams=1"})
	require.NoError(t, err)
	tokens, known := map[string]string{}, identity.Tokens{}
	for _, who := range []string{"alice", "bob", "carol", "dave", "eve"} {
		text, line, err := identity.NewToken(who, time.Time{})
		require.NoError(t, err)
		tokens[who], known[line.ID] = text, line
	}
	limited := func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Limits = set
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
	}
	c := startCluster(t, 2, limited)
	as := func(who string) context.Context {
		return metadata.AppendToOutgoingContext(relaying(soon(t)), "authorization",
			"Bearer "+tokens[who])
	}
	to := call(t, c.follower())
	s := openSession(t, as("alice"), call(t, c.follower()))
	held := s.next("alice/1", 0)
	_, err = s.Acquire(s.ctx, held)
	require.NoError(t, err)

	for err = error(nil); err == nil; {
		_, err = to.Now(as("alice"), &zamokpb.NowRequest{})
	}
	info := refusedBy(t, err, "requests-per-identity")
	assert.Equal(t, zamokpb.Code_CODE_OVERLOADED, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	assert.Less(t, info.RetryAfter, int64(time.Second))
	for err = error(nil); err == nil; {
		_, err = s.Acquire(s.ctx, s.next("alice/other", 0))
		if err != nil && infoOf(t, err).Code == zamokpb.Code_CODE_NOT_ACQUIRED {
			err = nil
		}
	}
	refusedBy(t, err, "requests-per-identity")
	for range 3 { // at once, before any rate has room again
		for err = error(nil); err == nil || infoOf(t, err).Code == zamokpb.Code_CODE_NOT_ACQUIRED; {
			_, err = s.Acquire(s.ctx, s.next("alice/other", 0))
		}
		_, err = to.Now(as("bob"), &zamokpb.NowRequest{})
		require.NoError(t, err, "another identity behind the same node has a rate of its own")
	}
	for range 10 { // what it has requested before, and what keeps or ends it
		_, err := s.Acquire(s.ctx, held)
		require.NoError(t, err)
		_, err = s.RenewSession(s.ctx,
			&zamokpb.RenewSessionRequest{Session: s.id, Secret: s.secret})
		require.NoError(t, err)
	}
	s.drop(held.Acquire.Ticket)
	_, err = s.CloseSession(s.ctx, &zamokpb.CloseSessionRequest{Session: s.id, Secret: s.secret})
	require.NoError(t, err)
	t.Run("relayed", func(t *testing.T) { relayedCallsAreBounded(t, c, as("carol")) })

	leader := startCluster(t, 1, limited).leader() // it leads whatever this machine does
	to = call(t, leader)
	var answer reply
	for answer.code = http.StatusOK; answer.code == http.StatusOK; {
		answer = send(soon(t), t, leader, "GET", "/v1/now", "", "Authorization",
			"Bearer "+tokens["alice"])
	}
	assert.Equal(t, http.StatusTooManyRequests, answer.code, answer.text)
	assert.Equal(t, "1", answer.header.Get("Retry-After"))
	assert.Equal(t, "requests-per-identity", answer.fields["field"])
	assert.Equal(t, "not_done", answer.fields["outcome"])
	assert.Equal(t, http.StatusOK,
		send(soon(t), t, leader, "GET", "/v1/now", "", "Authorization",
			"Bearer "+tokens["bob"]).code)
	assert.NotContains(t, leader.server.metricsText(t),
		`zamok_limit_refusals_total{limit="requests-per-identity"} 0`+"\n")

	t.Run("stream", func(t *testing.T) { streamsAreRateLimited(t, call(t, leader), as("dave")) })
	t.Run("held", func(t *testing.T) { heldCallsAreBounded(t, leader, as("carol")) })
	first, err := to.Watch(as("eve"), &zamokpb.WatchRequest{})
	require.NoError(t, err)
	_, err = first.Recv()
	require.NoError(t, err)
	second, err := to.Watch(as("eve"), &zamokpb.WatchRequest{})
	require.NoError(t, err)
	_, err = second.Recv()
	assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED,
		refusedBy(t, err, "watches-per-identity").Code)
	health := healthpb.NewHealthClient(to.conn)
	public, err := health.Watch(soon(t), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = public.Recv()
	require.NoError(t, err)
	public, err = health.Watch(soon(t), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = public.Recv()
	assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED,
		refusedBy(t, err, "public-streams-per-address").Code)
}

// refusedBy requires a refusal by a limit.
func refusedBy(t *testing.T, err error, limit string) *zamokpb.ErrorInfo {
	t.Helper()
	info := infoOf(t, err)
	require.Equal(t, limit, info.Field, info.Message)
	require.Positive(t, info.RetryAfter)
	return info
}

// openAll leaves a caller no place for calls that wait, at one node.
func openAll(t *testing.T, n *Node, who string) {
	for _, kind := range []limits.Kind{limits.HeldCalls, limits.Relays} {
		end, err := n.server.limits.Open(kind, who)
		require.NoError(t, err)
		t.Cleanup(end)
	}
}

// relayedCallsAreBounded: only the leader knows whether there was an earlier transmission.
func relayedCallsAreBounded(t *testing.T, c *cluster, ctx context.Context) {
	s := openSession(t, ctx, call(t, c.leader()))
	for _, n := range c.nodes {
		openAll(t, n, "carol")
	}
	for { // until the node that is called does not become the leader meanwhile
		_, err := call(t, c.follower()).Acquire(s.ctx, s.next("carol/2", 0))
		if info := infoOf(t, err); info.Field != "held-calls-per-identity" {
			info = refusedBy(t, err, "relayed-calls-per-identity")
			assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, info.Outcome)
			return
		}
	}
}

// heldCallsAreBounded: a call that would be one too many did nothing, unless its ticket was
// requested before.
func heldCallsAreBounded(t *testing.T, n *Node, ctx context.Context) {
	s := openSession(t, ctx, call(t, n))
	known := s.next("carol/1", 0)
	_, err := s.Acquire(s.ctx, known)
	require.NoError(t, err)
	openAll(t, n, "carol")
	_, err = s.Acquire(asFirst(s.ctx), s.next("carol/2", 0))
	info := refusedBy(t, err, "held-calls-per-identity")
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	_, err = s.Acquire(s.ctx, known)
	info = refusedBy(t, err, "held-calls-per-identity")
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, info.Outcome, "it is held")
	assert.Equal(t, zamokpb.Code_CODE_OVERLOADED, info.Code)
	notOwner := proto.CloneOf(known)
	notOwner.Secret = newSecret()
	_, err = s.Acquire(s.ctx, notOwner)
	info = refusedBy(t, err, "held-calls-per-identity")
	assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED, info.Code,
		"whether there is such a ticket is its owner's")
}

// streamsAreRateLimited: acquisitions beyond the rate are refused one by one. The stream goes on
// with renewals and releases, and a session is attached whatever there is.
func streamsAreRateLimited(t *testing.T, c caller, ctx context.Context) {
	w := openStreamIn(ctx, t, c, settings(clock.Minute))
	var frame []*zamokpb.ClientMessage
	for ticket := range uint64(20) {
		m := exclusive(ticket+1, "dave", int64(clock.Minute))
		m.GetAcquire().First = true
		frame = append(frame, m)
	}
	w.send(frame...)
	var info *zamokpb.ErrorInfo
	for info.GetField() == "" {
		info = w.answer().GetError()
	}
	assert.Equal(t, zamokpb.Code_CODE_OVERLOADED, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	assert.Positive(t, info.RetryAfter)
	w.send(drop(1))
	for w.change().State.State != stateEnded {
	}
	other := dialIn(asFirst(ctx), t, c)
	other.send(
		openMessage(&zamokpb.OpenStream{Secret: other.Secret, Settings: settings(clock.Minute)}))
	ended := infoOf(t, other.end())
	assert.Equal(t, "streams-per-identity", ended.Field)
	assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED, ended.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, ended.Outcome)
	again := dialIn(ctx, t, c)
	again.send(openMessage(&zamokpb.OpenStream{Secret: w.Secret, Session: w.Session}))
	require.NoError(t, again.receive())
	assert.Equal(t, codes.Aborted, status.Code(w.end()),
		"the other stream of the session has taken over")
}

// TestAnAddressDoesNotConnectTooOften: beyond the rate its connections are closed.
func TestAnAddressDoesNotConnectTooOften(t *testing.T) {
	t.Parallel()
	s := newServer(&NodeConfig{
		Config: raftnode.Config{Logger: slog.New(slog.DiscardHandler)}, ConnsMax: 100,
		Limits: limits.Set{"connects-per-address": 1},
	})
	from, connects := make(chan string), 10
	l := s.clientListener(addresses{from: from})
	go func() {
		defer close(from)
		for range connects {
			from <- "192.0.2.1"
		}
	}()
	accepted := 0
	for _, err := l.Accept(); err == nil; _, err = l.Accept() {
		accepted++
	}
	assert.Less(t, accepted, connects)
	assert.Contains(t, s.metricsText(t),
		fmt.Sprintf(`zamok_limit_refusals_total{limit="connects-per-address"} %d`+"\n",
			connects-accepted))
}

// addresses is a listener whose connections come from addresses, without a network.
type addresses struct {
	net.Listener
	from chan string
}

func (a addresses) Accept() (net.Conn, error) {
	host, more := <-a.from
	if !more {
		return nil, net.ErrClosed
	}
	near, _ := net.Pipe()
	return connFrom{near, host}, nil
}

type connFrom struct {
	net.Conn
	host string
}

func (c connFrom) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 1} }

// TestTheLogNamesWhoIsRefused: by a limit of the node and by a quota, with how often.
func TestTheLogNamesWhoIsRefused(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer // the log writes one line after the other
	tokens, known := tokensFor(t, "alice", "bob")
	n := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Logger, cfg.Limits = slog.New(slog.NewTextHandler(&text, nil)),
			limits.Set{"watches-per-identity": 1}
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
	}).leader()
	to := call(t, n)
	as := func(who string) context.Context {
		return metadata.AppendToOutgoingContext(soon(t), "authorization", "Bearer "+tokens[who])
	}
	_, err := to.admin.Settings(as("alice"),
		&zamokpb.SettingsRequest{Quotas: &zamokpb.Quotas{Sessions: 4, Share: 25}})
	require.NoError(t, err)
	openSession(t, as("alice"), to)
	for range 7 {
		_, err := to.OpenSession(as("alice"),
			&zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: settings(clock.Minute)})
		refusedBy(t, err, "identity_sessions")
	}
	for range 4 { // the first is served
		watch, err := to.Watch(as("bob"), &zamokpb.WatchRequest{})
		require.NoError(t, err)
		_, _ = watch.Recv()
	}
	require.NoError(t, n.Close())
	assert.Contains(t, text.String(), "limit=identity_sessions caller=alice refused=7\n")
	assert.Contains(t, text.String(), "limit=watches-per-identity caller=bob refused=3\n")
}
