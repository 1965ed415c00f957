package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"zamok/api"
	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/raftnode"
)

// stranger serves the protocol and does not keep it.
type stranger struct {
	zamokpb.UnimplementedZamokServer
	welcome *zamokpb.ServerMessage
}

func (s stranger) Session(stream grpc.BidiStreamingServer[zamokpb.ClientFrame, zamokpb.ServerFrame]) error {
	frame, err := stream.Recv()
	if err != nil {
		return err
	}
	if w := s.welcome.GetWelcome(); w != nil {
		w.Sent = frame.Sent
	}
	return stream.Send(&zamokpb.ServerFrame{Messages: []*zamokpb.ServerMessage{s.welcome}})
}

// A client believes no node that says what none of ours would: it asks on, and does not come to harm.
func TestAStrangersWelcomeIsNone(t *testing.T) {
	defer noneLeft(t)
	for name, first := range map[string]*zamokpb.ServerMessage{
		"no welcome": {Message: &zamokpb.ServerMessage_Heard{Heard: &zamokpb.Heard{}}},
		"no lease":   {Message: &zamokpb.ServerMessage_Welcome{Welcome: &zamokpb.Welcome{Session: 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			server := grpc.NewServer()
			zamokpb.RegisterZamokServer(server, stranger{welcome: first})
			served := make(chan error, 1)
			go func() { served <- server.Serve(l) }()
			defer func() {
				server.Stop()
				require.NoError(t, <-served)
			}()
			c, err := client.New(client.Config{
				Endpoints: []string{l.Addr().String()}, RequestTimeout: 300 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			for ctx, told := soon(t), false; !told; { // before it was heard, nothing can be said of it
				_, err = c.TryLock(ctx, "x")
				require.ErrorIs(t, err, client.ErrUnavailable)
				told = strings.Contains(err.Error(), "no welcome")
			}
			hangUp(t, c) // it may be asking once more: who can say what came of that?
		})
	}
}

// A long answer arrives whole, where gRPC by itself takes 4 MiB.
func TestALongAnswerArrives(t *testing.T) {
	const holders = 1000
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	name := strings.Repeat("n", 512)
	locked := make(chan error, holders)
	for range holders {
		go func() {
			_, err := a.Lock(ctx, name, client.AsShared(), client.Metadata(make([]byte, 4096)))
			locked <- err
		}()
	}
	for range holders {
		require.NoError(t, until(t, locked, "lock"))
	}
	detail, err := a.Get(ctx, name, holders)
	require.NoError(t, err)
	require.Len(t, detail.Held, holders)
}

// A Locker does not panic for what passes: a disk that is nearly full refuses new sessions for a while.
func TestALockerWaitsForRoom(t *testing.T) {
	defer noneLeft(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n, err := api.StartNode(t.Context(), api.NodeConfig{
		ID: "n1", Dir: t.TempDir(), Cluster: "n1=" + l.Addr().String(), PeerListener: l,
		Tune: func(c *raftnode.Config) { c.Mark = 1 << 60 },
	})
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
	case why := <-ended:
		require.Fail(t, "it gave up", "%v", why)
	case <-time.After(200 * time.Millisecond):
	}
	cancel()
	require.NotNil(t, until(t, ended, "end"), "its context ended")
}
