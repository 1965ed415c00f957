package api

import (
	"context"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

// naming names the cluster that a call is meant for.
func naming(ctx context.Context, cluster string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, clusterKey, cluster)
}

// clusterOf is the id of a node's cluster.
func clusterOf(n *Node) (cluster string) {
	n.Raft().View(func(m *fsm.Machine) {
		id := m.Cluster()
		cluster = hex.EncodeToString(id[:])
	})
	return cluster
}

// What is meant for another cluster is refused by every node before it has any effect, be it a call or a stream, and
// a call without a cluster learns the id.
func TestWhatIsMeantForAnotherClusterIsRefused(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	leads, follows := c.leader(), c.follower()
	own, other := clusterOf(leads), strings.Repeat("0f", 16)
	for name, n := range map[string]*Node{"leader": leads, "follower": follows} {
		require.Eventually(t, func() bool { return clusterOf(n) == own }, patience, 5*time.Millisecond)
		to, secret := call(t, n), newSecret()
		settings := &zamokpb.SessionSettings{Ttl: int64(patience)}
		session := func(ctx context.Context) error {
			stream, err := to.Session(ctx)
			require.NoError(t, err)
			_ = stream.Send(&zamokpb.ClientFrame{Messages: []*zamokpb.ClientMessage{{Message: &zamokpb.ClientMessage_Open{
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
		for kind, ask := range map[string]func(context.Context) error{
			"a call": func(ctx context.Context) error {
				_, err := to.OpenSession(ctx, &zamokpb.OpenSessionRequest{Secret: secret, Settings: settings})
				return err
			},
			"an operator's": func(ctx context.Context) error {
				_, err := to.admin.Members(ctx, &zamokpb.MembersRequest{})
				return err
			},
			"a session": session,
			"a watch":   watch,
			"what is to be relayed": func(ctx context.Context) error {
				_, err := to.OpenSession(relaying(ctx), &zamokpb.OpenSessionRequest{Secret: secret, Settings: settings})
				return err
			},
		} {
			for _, named := range []string{other, "?", ""} {
				info := infoOf(t, ask(naming(soon(t), named)))
				require.Equal(t, zamokpb.Code_CODE_WRONG_CLUSTER, info.Code, "%s, %s", name, kind)
				require.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
				require.Equal(t, own, info.Cluster)
			}
		}
		var header metadata.MD
		if _, err := to.Now(naming(soon(t), own), &zamokpb.NowRequest{}, grpc.Header(&header)); err != nil {
			require.Equal(t, zamokpb.Code_CODE_NOT_LEADER, infoOf(t, err).Code)
		}
		require.Equal(t, []string{own}, header.Get(clusterKey), "every answer names its cluster, refusals too")
		require.NoError(t, watch(naming(soon(t), own)))
		require.NoError(t, watch(soon(t)), "a call that names none is served")
		_, err := healthpb.NewHealthClient(to.conn).Check(naming(soon(t), other), &healthpb.HealthCheckRequest{})
		require.NoError(t, err, "and a health check")
	}
	all, err := call(t, leads).ListSessions(soon(t), &zamokpb.ListSessionsRequest{})
	require.NoError(t, err)
	require.Empty(t, all.Sessions, "nothing was done")
}

// A node that started and has no leader yet does not know its cluster. It refuses calls that name one.
func TestANodeWithoutAClusterRefusesCallsThatNameOne(t *testing.T) {
	s := &Server{cfg: new(nodeConfig("n1", ""))}
	none := func(metadata.MD) error { return nil }
	asked := func(named ...string) context.Context {
		return metadata.NewIncomingContext(t.Context(), metadata.MD{clusterKey: named})
	}
	for _, named := range []string{"?", strings.Repeat("0f", 16)} {
		info := infoOf(t, s.checkCluster(asked(named), none))
		require.Equal(t, zamokpb.Code_CODE_NOT_LEADER, info.Code)
		require.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	}
	require.NoError(t, s.checkCluster(t.Context(), none))
	text := strings.Repeat("0f", 16)
	s.cluster.Store(&text)
	require.NoError(t, s.checkCluster(asked(text), none))
	require.Error(t, s.checkCluster(asked(text, "another"), none), "every id that is named counts")
	s.noteCluster(fsm.New())
	require.NoError(t, s.checkCluster(asked(text), none), "a machine that begins anew forgets nothing")
}

// A leader's address leads to another cluster: what is relayed there is not done, whatever its client named.
func TestARelayDoesNotLeadIntoAnotherCluster(t *testing.T) {
	t.Parallel()
	theirs := startCluster(t, 1, nil)
	leads := theirs.leader()
	text := strings.Repeat("0f", 16)
	s := &Server{cfg: new(nodeConfig("n1", ""))}
	s.cluster.Store(&text)
	md := s.relayMetadata(metadata.NewIncomingContext(soon(t), metadata.MD{}))
	_, err := call(t, leads).OpenSession(metadata.NewOutgoingContext(soon(t), md), &zamokpb.OpenSessionRequest{
		Secret: newSecret(), Settings: &zamokpb.SessionSettings{Ttl: int64(patience)}})
	require.Equal(t, zamokpb.Code_CODE_WRONG_CLUSTER, infoOf(t, err).Code)
	info := infoOf(t, s.relayFailed(err))
	require.Equal(t, zamokpb.Code_CODE_NOT_LEADER, info.Code, "the client itself named the right cluster")
	require.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
}
