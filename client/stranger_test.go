package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"zamok/api"
	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// serve serves until the test ends, and gives the address.
func serve(t testing.TB, server *grpc.Server) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})
	return l.Addr().String()
}

// stranger serves the protocol and does not keep it.
type stranger struct {
	zamokpb.UnimplementedZamokServer
	cluster string
	welcome *zamokpb.ServerMessage
}

func (s stranger) Session(stream grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	frame, err := stream.Recv()
	if err != nil {
		return err
	}
	if w := s.welcome.GetSession(); w != nil {
		w.Sent = frame.Sent
	}
	if err := stream.SetHeader(metadata.Pairs("zamok-cluster", s.cluster)); err != nil {
		return err
	}
	return stream.Send(&zamokpb.ServerFrame{Messages: []*zamokpb.ServerMessage{s.welcome}})
}

// A client does not attach to a node that answers as none of ours would: it tries again.
func TestAStrangersWelcomeIsNone(t *testing.T) {
	t.Parallel()
	lease := &zamokpb.SessionState{Session: 7, Ttl: int64(client.DefaultTTL)}
	for name, test := range map[string]struct {
		of    string // the cluster that it says it is of
		first *zamokpb.ServerMessage
		want  string
	}{
		"no state":        {"ours", &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_KeepAliveAck{KeepAliveAck: &zamokpb.KeepAliveAck{}}}, "no session state"},
		"no lease":        {"ours", &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Session{Session: &zamokpb.SessionState{Session: 7}}}, "no session state"},
		"another cluster": {"theirs", &zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Session{Session: lease}}, "belongs to cluster theirs"},
	} {
		t.Run(name, func(t *testing.T) {
			server := grpc.NewServer()
			zamokpb.RegisterZamokServer(server, stranger{cluster: test.of, welcome: test.first})
			c, err := client.New(client.Config{
				Endpoints: []string{serve(t, server)}, Cluster: "ours", RequestTimeout: 300 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			require.Eventually(t, func() bool { // until the node has answered once, the error is another one
				_, err = c.TryLock(t.Context(), "x")
				return err != nil && strings.Contains(err.Error(), test.want)
			}, patience, time.Millisecond, "%v", err)
			hangUp(t, c) // it may be asking once more, with an unknown outcome
		})
	}
}

// lossy is an operator's node that loses its first answer, and refuses from then on.
type lossy struct {
	zamokpb.UnimplementedAdminServer
	asked  atomic.Int32
	first  func() // before the first answer is lost; may be nil
	refuse error
}

func (l *lossy) answer() error {
	if l.asked.Add(1) > 1 {
		return l.refuse
	}
	if l.first != nil {
		l.first()
	}
	return status.Error(codes.Unavailable, "the connection broke")
}

// refusal is the error of a node of ours that did nothing.
func refusal(t *testing.T, code zamokpb.Code) error {
	st, err := status.New(codes.FailedPrecondition, "refused").WithDetails(&zamokpb.ErrorInfo{
		Code: code, Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE, Cluster: "theirs"})
	require.NoError(t, err)
	return st.Err()
}

// That the last attempt of a call did nothing says nothing of an earlier one without an answer.
func TestARefusalDoesNotSettleACallInDoubt(t *testing.T) {
	calls := map[string]func(context.Context, *client.Client) error{
		"ForceRelease": func(ctx context.Context, c *client.Client) error {
			_, err := c.ForceRelease(ctx, "x", 1, "a test")
			return err
		},
		"ExpireSession": func(ctx context.Context, c *client.Client) error { return c.ExpireSession(ctx, 1, "a test") },
		"Join":          func(ctx context.Context, c *client.Client) error { return c.Join(ctx, "n9", dead) },
	}
	for name, test := range map[string]struct {
		refuse error
		close  bool // the client is closed during the first attempt
		want   error
	}{
		"another cluster": {refuse: refusal(t, zamokpb.Code_CODE_WRONG_CLUSTER), want: client.ErrWrongCluster},
		"access rules":    {refuse: refusal(t, zamokpb.Code_CODE_DENIED), want: client.ErrDenied},
		"a proxy":         {refuse: status.Error(codes.PermissionDenied, "not from there"), want: client.ErrDenied},
		"closed":          {close: true, want: client.ErrClosed},
	} {
		for method, call := range calls {
			t.Run(name+"/"+method, func(t *testing.T) {
				admin := &lossy{refuse: test.refuse}
				server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
					if info.FullMethod == zamokpb.Zamok_Now_FullMethodName { // which finds the leader
						return &zamokpb.NowResponse{}, grpc.SetHeader(ctx, metadata.Pairs("zamok-cluster", "ours"))
					}
					return nil, admin.answer()
				}))
				zamokpb.RegisterZamokServer(server, stranger{})
				zamokpb.RegisterAdminServer(server, admin)
				c, err := client.New(client.Config{
					Endpoints: []string{serve(t, server)}, Cluster: "ours", RequestTimeout: patience, Logger: slog.New(slog.DiscardHandler),
				})
				require.NoError(t, err)
				defer c.Close()
				if test.close {
					admin.first = func() { _ = c.Close() }
				}
				var e *client.Error
				require.ErrorAs(t, call(soon(t), c), &e)
				require.Equal(t, client.Unknown, e.Outcome, "%v", e)
				err = call(soon(t), c) // whose first attempt is refused
				require.ErrorIs(t, err, test.want)
				require.ErrorAs(t, err, &e)
				require.Equal(t, client.NotDone, e.Outcome, "%v", e)
			})
		}
	}
}

// A long answer is cut at what one answer holds, with how much there is.
func TestALongAnswerArrives(t *testing.T) {
	const holders, listed = 300, 100
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	name := strings.Repeat("n", 512)
	locked := make(chan error, holders)
	for range holders {
		go func() {
			_, err := a.Lock(ctx, name, client.Shared(), client.WithMetadata(make([]byte, 4096)))
			locked <- err
		}()
	}
	for range holders {
		require.NoError(t, until(t, locked, "lock"))
	}
	detail, err := a.Get(ctx, name, listed)
	require.NoError(t, err)
	require.Len(t, detail.Held, listed)
	require.Equal(t, holders, detail.Holders)
}

// A Locker does not panic for what passes: a disk that is nearly full refuses new sessions for a while.
func TestALockerWaitsForRoom(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	list, err := peer.ParseList("n1=" + l.Addr().String())
	require.NoError(t, err)
	n, err := api.StartNode(t.Context(), api.NodeConfig{Config: raftnode.Config{
		ID: "n1", Store: store.Config{Dir: t.TempDir(), LowSpace: 1 << 60}, Peers: peer.Config{List: list, Listener: l},
	}})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Kill()) }()
	c, err := client.New(client.Config{Endpoints: []string{n.Client()}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer c.Close()
	require.Eventually(t, func() bool {
		_, err := c.TryLock(t.Context(), "x")
		return errors.Is(err, client.ErrLimit)
	}, patience, 10*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan any, 1)
	go func() {
		defer func() { ended <- recover() }()
		c.Locker(ctx, "x").Lock()
	}()
	select {
	case reason := <-ended:
		require.Fail(t, "it gave up", "%v", reason)
	case <-time.After(200 * time.Millisecond):
	}
	cancel()
	require.NotNil(t, until(t, ended, "end"), "its context ended")
}
