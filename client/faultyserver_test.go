package client_test

import (
	"context"
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

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/admin"
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

// faultyServer answers with a wrong first message.
type faultyServer struct {
	zamokpb.UnimplementedZamokServer
	cluster string
	first   *zamokpb.ServerMessage
}

func (s faultyServer) Session(
	stream grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	frame, err := stream.Recv()
	if err != nil {
		return err
	}
	if w := s.first.GetSession(); w != nil {
		w.Sent = frame.Sent
	}
	if err := stream.SetHeader(metadata.Pairs("zamok-cluster", s.cluster)); err != nil {
		return err
	}
	return stream.Send(&zamokpb.ServerFrame{Messages: []*zamokpb.ServerMessage{s.first}})
}

// A client attaches only to a node whose first message is a valid session state. It tries again.
func TestANodeWithoutASessionStateIsNotAttached(t *testing.T) {
	t.Parallel()
	lease := &zamokpb.SessionState{Session: 7, Ttl: int64(client.DefaultTTL)}
	for name, test := range map[string]struct {
		of    string // the cluster that it says it is of
		first *zamokpb.ServerMessage
		want  string
	}{
		"no state": {"ours",
			&zamokpb.ServerMessage{
				Message: &zamokpb.ServerMessage_KeepAliveAck{
					KeepAliveAck: &zamokpb.KeepAliveAck{}}}, "no session state"},
		"no lease": {"ours",
			&zamokpb.ServerMessage{
				Message: &zamokpb.ServerMessage_Session{
					Session: &zamokpb.SessionState{Session: 7}}}, "no session state"},
		"another cluster": {"theirs",
			&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Session{Session: lease}},
			"belongs to cluster theirs"},
	} {
		t.Run(name, func(t *testing.T) {
			server := grpc.NewServer()
			zamokpb.RegisterZamokServer(server, faultyServer{cluster: test.of, first: test.first})
			c, err := client.New(client.Config{
				Endpoints: []string{serve(t, server)}, Cluster: "ours",
				RequestTimeout: 300 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			// until the node has answered once, the error is another one
			require.Eventually(t, func() bool {
				_, err = c.TryLock(t.Context(), "x")
				return err != nil && strings.Contains(err.Error(), test.want)
			}, testTimeout, time.Millisecond, "%v", err)
			hangUp(t, c) // it may be trying again, with an unknown outcome
		})
	}
}

// lossy loses its first answer to an operator, and returns an error from then on.
type lossy struct {
	zamokpb.UnimplementedAdminServer
	calls atomic.Int32
	first func() // before the first answer is lost; may be nil
	err   error
}

func (l *lossy) answer() error {
	if l.calls.Add(1) > 1 {
		return l.err
	}
	if l.first != nil {
		l.first()
	}
	return status.Error(codes.Unavailable, "the connection broke")
}

// notDone is the error of a node that did nothing.
func notDone(t *testing.T, code zamokpb.Code) error {
	st, err := status.New(codes.FailedPrecondition, "refused").WithDetails(&zamokpb.ErrorInfo{
		Code: code, Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE, Cluster: "theirs"})
	require.NoError(t, err)
	return st.Err()
}

// That the last attempt of a call did nothing leaves open what an unanswered one did before.
func TestALaterRefusalLeavesACallInDoubt(t *testing.T) {
	calls := map[string]func(context.Context, *admin.Admin) error{
		"ForceRelease": func(ctx context.Context, op *admin.Admin) error {
			_, err := op.ForceRelease(ctx, "x", 1, "a test")
			return err
		},
		"ExpireSession": func(ctx context.Context, op *admin.Admin) error {
			return op.ExpireSession(ctx, 1, "a test")
		},
		"Join": func(ctx context.Context, op *admin.Admin) error {
			return op.Join(ctx, "n9", dead)
		},
	}
	for name, test := range map[string]struct {
		err   error
		close bool // the client is closed during the first attempt
		want  error
	}{
		"another cluster": {err: notDone(t, zamokpb.Code_CODE_WRONG_CLUSTER),
			want: client.ErrWrongCluster},
		"access rules": {err: notDone(t, zamokpb.Code_CODE_DENIED), want: client.ErrDenied},
		"a proxy": {err: status.Error(codes.PermissionDenied, "not from there"),
			want: client.ErrDenied},
		"closed": {close: true, want: client.ErrClosed},
	} {
		for method, call := range calls {
			t.Run(name+"/"+method, func(t *testing.T) {
				node := &lossy{err: test.err}
				server := grpc.NewServer(
					grpc.UnaryInterceptor(func(ctx context.Context, req any,
						info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
						// which finds the leader
						if info.FullMethod == zamokpb.Zamok_Now_FullMethodName {
							return &zamokpb.NowResponse{}, grpc.SetHeader(ctx,
								metadata.Pairs("zamok-cluster", "ours"))
						}
						return nil, node.answer()
					}))
				zamokpb.RegisterZamokServer(server, faultyServer{})
				zamokpb.RegisterAdminServer(server, node)
				c, err := client.New(client.Config{
					Endpoints: []string{serve(t, server)}, Cluster: "ours",
					RequestTimeout: testTimeout, Logger: slog.New(slog.DiscardHandler),
				})
				require.NoError(t, err)
				defer c.Close()
				if test.close {
					node.first = func() { _ = c.Close() }
				}
				var e *client.Error
				require.ErrorAs(t, call(soon(t), admin.New(c)), &e)
				require.Equal(t, client.Unknown, e.Outcome, "%v", e)
				err = call(soon(t), admin.New(c)) // whose first attempt gets the error
				require.ErrorIs(t, err, test.want)
				require.ErrorAs(t, err, &e)
				require.Equal(t, client.NotDone, e.Outcome, "%v", e)
			})
		}
	}
}
