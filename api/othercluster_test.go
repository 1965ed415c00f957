package api

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"net"
	"zamok/api/gate"
	"zamok/api/relay"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
)

// naming names the cluster that a call is for.
func naming(ctx context.Context, cluster string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, zamokpb.ClusterKey, cluster)
}

// clusterOf is the id of a node's cluster.
func clusterOf(n *Node) (cluster string) {
	n.Raft().View(func(m *fsm.Machine) {
		id := m.Cluster()
		cluster = hex.EncodeToString(id[:])
	})
	return cluster
}

// Every node refuses a call or a stream for another cluster before it has any effect. A call that
// names no cluster learns the id.
func TestRequestsForAnotherClusterAreRefused(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	leads, follows := c.leader(), c.follower()
	own, other := clusterOf(leads), strings.Repeat("0f", 16)
	for name, n := range map[string]*Node{"leader": leads, "follower": follows} {
		require.Eventually(t, func() bool { return clusterOf(n) == own }, patience,
			5*time.Millisecond)
		to, secret := call(t, n), newSecret()
		settings := &zamokpb.SessionSettings{Ttl: int64(patience)}
		session := func(ctx context.Context) error {
			stream, err := to.Session(ctx)
			require.NoError(t, err)
			_ = stream.Send(&zamokpb.ClientFrame{
				Messages: []*zamokpb.ClientMessage{{Message: &zamokpb.ClientMessage_Open{
					Open: &zamokpb.OpenStream{Secret: secret, Settings: settings}}}}})
			_, err = stream.Recv()
			return err
		}
		watch := func(ctx context.Context) error {
			stream, err := to.Watch(ctx, &zamokpb.WatchRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			return err
		}
		for kind, send := range map[string]func(context.Context) error{
			"a call": func(ctx context.Context) error {
				_, err := to.OpenSession(ctx,
					&zamokpb.OpenSessionRequest{Secret: secret, Settings: settings})
				return err
			},
			"an operator's": func(ctx context.Context) error {
				_, err := to.admin.Members(ctx, &zamokpb.MembersRequest{})
				return err
			},
			"a session": session,
			"a watch":   watch,
			"what is to be relayed": func(ctx context.Context) error {
				_, err := to.OpenSession(relaying(ctx),
					&zamokpb.OpenSessionRequest{Secret: secret, Settings: settings})
				return err
			},
		} {
			for _, named := range []string{other, "?", ""} {
				info := infoOf(t, send(naming(soon(t), named)))
				require.Equal(t, zamokpb.Code_CODE_WRONG_CLUSTER, info.Code, "%s, %s", name, kind)
				require.NotEqual(t, zamokpb.Outcome_OUTCOME_DONE, info.Outcome)
				require.Equal(t, own, info.Cluster)
			}
		}
		var header metadata.MD
		if _, err := to.Now(naming(soon(t), own), &zamokpb.NowRequest{},
			grpc.Header(&header)); err != nil {
			require.Equal(t, zamokpb.Code_CODE_NOT_LEADER, infoOf(t, err).Code)
		}
		require.Equal(t, []string{own}, header.Get(zamokpb.ClusterKey),
			"every answer names its cluster, refusals too")
		require.NoError(t, watch(naming(soon(t), own)))
		require.NoError(t, watch(soon(t)), "a call that names none is served")
		_, err := healthpb.NewHealthClient(to.conn).Check(naming(soon(t), other),
			&healthpb.HealthCheckRequest{})
		require.NoError(t, err, "and a health check")
	}
	all, err := call(t, leads).ListSessions(soon(t), &zamokpb.ListSessionsRequest{})
	require.NoError(t, err)
	require.Empty(t, all.Sessions, "nothing was done")
}

// Over HTTP, too, every answer names the cluster of its node, and a request that names another is
// refused: in a header, and in the grant that is the body of a later request about it, or in a
// query, since a browser's EventSource sends no header of its own.
func TestARequestOverHTTPForAnotherCluster(t *testing.T) {
	t.Parallel()
	c, other := startCluster(t, 1, serveHTTP), startCluster(t, 1, serveHTTP)
	ctx, n := soon(t), c.leader()
	grant := send(ctx, t, n, "POST", "/v1/acquire", `{"name":"stock"}`)
	require.Equal(t, 200, grant.code, grant.text)
	ours := grant.fields["cluster"].(string)
	theirs := send(ctx, t, other.leader(), "GET", "/v1/members", "").fields["cluster"].(string)
	require.NotEqual(t, theirs, ours)
	for _, path := range []string{"/v1/members", "/v1/nothing", "/v1/openapi.json", "/healthz",
		"/readyz", "/metrics"} {
		require.Equal(t, ours, send(ctx, t, n, "GET", path, "").header.Get("Zamok-Cluster"), path)
	}
	session := fmt.Sprintf("/v1/sessions/%s", grant.fields["session"])
	for _, request := range []struct{ method, path, body string }{
		{"POST", "/v1/acquire", `{"name":"other"}`}, {"POST", "/v1/renew", grant.text},
		{"POST", "/v1/release", grant.text},
		{"POST", "/v1/downgrade", grant.text}, {"POST", session + "/renew", ""},
		{"DELETE", session, ""}, {"POST", "/v1/sessions", "{}"},
		{"GET", "/v1/hold?name=other", ""}, {"GET", "/v1/watch", ""}, {"GET", "/v1/status", ""},
		{"GET", "/v1/lock?name=stock", ""},
	} {
		headers := []string{"Zamok-Cluster", theirs}
		if strings.HasPrefix(request.path, session) {
			headers = append(headers, "Zamok-Secret", grant.fields["secret"].(string))
		}
		refused := send(ctx, t, n, request.method, request.path, request.body, headers...)
		require.Equal(t, 409, refused.code, "%s %s: %s", request.method, request.path, refused.text)
		require.Equal(t, "wrong_cluster", refused.fields["code"])
		want := "not_done"
		if acquires := request.path == "/v1/acquire" || request.path == "/v1/sessions" ||
			strings.HasPrefix(request.path, "/v1/hold"); acquires {
			want = "unknown"
		}
		require.Equal(t, want, refused.fields["outcome"], request.path)
		require.Equal(t, ours, refused.header.Get("Zamok-Cluster"))
	}
	// the other cluster may have such a session, too
	for _, path := range []string{"/v1/renew", "/v1/downgrade", "/v1/release"} {
		refused := send(ctx, t, other.leader(), "POST", path, grant.text)
		require.Equal(t, "wrong_cluster", refused.fields["code"], refused.text)
	}
	for _, path := range []string{"/v1/hold?name=other&cluster=", "/v1/watch?cluster="} {
		require.Equal(t, "wrong_cluster", send(ctx, t, n, "GET", path+theirs, "").fields["code"])
	}
	held := listen(ctx, t, n, "/v1/hold?name=other&cluster="+ours)
	require.Equal(t, ours, held.next("granted").data["cluster"])
	held.cut()
	require.Equal(t, 200, send(ctx, t, n, "POST", "/v1/release", grant.text, "Zamok-Cluster",
		ours).code, "nothing was done before")
}

// fromAnotherCluster is a node that reaches a leader of another cluster under the address of its
// own.
type fromAnotherCluster struct{ other *Node }

func (f fromAnotherCluster) DialRelay(ctx context.Context, _ peer.Server) (net.Conn, error) {
	return f.other.Raft().DialRelay(ctx, f.other.Raft().LeaderServer())
}

// A leader's address leads to another cluster: what is relayed there is not done, whatever its
// client named.
func TestARelayDoesNotLeadIntoAnotherCluster(t *testing.T) {
	t.Parallel()
	theirs := startCluster(t, 2, nil)
	leader := theirs.leader()
	r := relay.New(relay.Config{
		Limits: leader.server.limits, Cluster: func() string { return strings.Repeat("0f", 16) },
		Stopping: make(chan struct{}),
	})
	defer r.Close()
	r.Start(fromAnotherCluster{theirs.follower()})
	ctx, err := leader.server.gate.Identify(soon(t), gate.Arrival{Address: "192.0.2.1:1"}, "")
	require.NoError(t, err)
	_, err = r.Call(ctx, leader.Raft().LeaderServer(),
		gate.OfMethod(zamokpb.Zamok_OpenSession_FullMethodName), &zamokpb.OpenSessionRequest{
			Secret: newSecret(), Settings: settings(clock.Minute),
		})
	info := infoOf(t, err)
	require.Equal(t, zamokpb.Code_CODE_NOT_LEADER, info.Code,
		"the client itself named the right cluster")
	require.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	require.Contains(t, info.Message, "a node of another cluster")
}
