package client_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/admin"
)

// A watch of everything reports a session's end, after what the session held.
func TestAWatchReportsSessions(t *testing.T) {
	c := startCluster(t, 1)
	a := c.client(func(cfg *client.Config) { cfg.Label = "a till" })
	b, ctx := c.client(nil), soon(t)
	at, err := admin.New(b).Now(ctx)
	require.NoError(t, err)
	held, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	_, err = b.Lock(ctx, "y")
	require.NoError(t, err)
	require.NoError(t, admin.New(b).ExpireSession(ctx, held.Session(), "enough"))
	var seen []client.Event
	for m, err := range b.Watch(ctx, "", at.Index) {
		require.NoError(t, err)
		seen = append(seen, m.Events...)
		if n := len(seen); n > 0 && seen[n-1].Kind == client.EventEnded {
			break
		}
	}
	end := seen[len(seen)-1]
	require.Equal(t, client.Event{
		Index: end.Index, Kind: client.EventEnded, Session: held.Session(),
		Reason: "expired_by_operator", Text: "enough", Label: "a till",
	}, end)
	lost := seen[len(seen)-2]
	require.Equal(t, client.EventLost, lost.Kind)
	require.Equal(t, held.Token(), lost.Token)
	require.Equal(t, "ended", end.Kind.String())
	require.Equal(t, "unknown", client.EventKind(250).String())
}

// A watch leaves nothing out and repeats nothing, though its node dies.
func TestAWatchGoesOnAtAnotherNode(t *testing.T) {
	t.Parallel()
	const locks = 40
	c := startCluster(t, 3)
	a, b, ctx := c.client(nil), c.client(nil), soon(t)
	begun := make(chan struct{})
	var once sync.Once
	seen := make(chan []client.Token, 1)
	go func() {
		watching, cancel := context.WithCancel(ctx)
		defer cancel()
		var tokens []client.Token
		for m, err := range b.Watch(watching, "w/", 0) {
			if err != nil {
				t.Error(err)
				break
			}
			once.Do(func() { close(begun) })
			for _, e := range m.Events {
				if e.Kind == client.EventGranted {
					tokens = append(tokens, e.Token)
				}
			}
			if len(tokens) == locks {
				break
			}
		}
		seen <- tokens
	}()
	until(t, begun, "where the watch begins")
	var granted []client.Token
	for i := range locks {
		l, err := a.Lock(ctx, "w/x")
		require.NoError(t, err)
		granted = append(granted, l.Token())
		require.NoError(t, l.Unlock(ctx))
		if i == locks/2 {
			require.NoError(t, c.leader().Kill())
		}
	}
	require.Equal(t, granted, until(t, seen, "all events"))
}

// A loop may end its context and leave: nothing is yielded after that, which would panic.
func TestALoopThatIsLeftYieldsNothingMore(t *testing.T) {
	c := startCluster(t, 1)
	a := c.client(nil)
	for range 20 {
		ctx, cancel := context.WithCancel(soon(t))
		for _, err := range a.Watch(ctx, "", 0) {
			require.NoError(t, err)
			cancel()
			break
		}
		ctx, cancel = context.WithCancel(soon(t))
		for _, err := range a.Election("x").Observe(ctx) {
			require.NoError(t, err)
			cancel()
			break
		}
		ctx, cancel = context.WithCancel(soon(t))
		cancel()
		for _, err := range a.Election("x").Observe(ctx) {
			require.ErrorIs(t, err, context.Canceled)
		}
	}
}

// forgetful is a node that remembers events after an index.
type forgetful struct {
	zamokpb.UnimplementedZamokServer
	after   uint64
	watches chan struct{} // receives an element for each watch; may be nil
}

func (f forgetful) Watch(req *zamokpb.WatchRequest,
	stream grpc.ServerStreamingServer[zamokpb.WatchFrame]) error {
	if f.watches != nil {
		f.watches <- struct{}{}
	}
	if err := stream.SetHeader(metadata.Pairs("zamok-cluster", "c")); err != nil {
		return err
	}
	if req.From < f.after {
		st, err := status.New(codes.OutOfRange, "not remembered").WithDetails(&zamokpb.ErrorInfo{
			Code: zamokpb.Code_CODE_COMPACTED, Outcome: zamokpb.Outcome_OUTCOME_NOT_DONE})
		if err != nil {
			return err
		}
		return st.Err()
	}
	return stream.Send(&zamokpb.WatchFrame{Index: req.From}) // then it ends, as when the node stops
}

// A watch tries the other nodes before it gives up because a node does not remember what comes
// next, and gives up if none of them does.
func TestAWatchAsksWhoRemembers(t *testing.T) {
	t.Parallel()
	watches := make(chan struct{}, 64)
	var endpoints []string
	for _, n := range []forgetful{{after: 100, watches: watches}, {after: 50},
		{after: 100, watches: watches}} {
		server := grpc.NewServer()
		zamokpb.RegisterZamokServer(server, n)
		endpoints = append(endpoints, serve(t, server))
	}
	c, err := client.New(client.Config{Endpoints: endpoints, Cluster: "c",
		Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer c.Close()
	for len(watches) == 0 { // nodes are tried in any order
		for m, err := range c.Watch(soon(t), "", 60) {
			require.NoError(t, err)
			require.EqualValues(t, 60, m.Index)
			break
		}
	}
	for _, err := range c.Watch(soon(t), "", 40) {
		require.ErrorIs(t, err, client.ErrCompacted)
	}
}

// A watch from an index that the cluster has not reached would leave out what comes before it.
func TestAWatchFromTheFutureIsRefused(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	a, ctx := c.client(nil), soon(t)
	at, err := admin.New(a).Now(ctx)
	require.NoError(t, err)
	for _, err := range a.Watch(ctx, "", at.Index+1_000_000) {
		require.ErrorIs(t, err, client.ErrInvalid)
		require.ErrorContains(t, err, "of another cluster?")
	}
	for m, err := range a.Watch(ctx, "", at.Index) {
		require.NoError(t, err)
		require.Equal(t, at.Index, m.Index)
		break
	}
}

// busy is a node that sends the events of several indexes in one frame.
type busy struct {
	zamokpb.UnimplementedZamokServer
}

func (busy) Watch(req *zamokpb.WatchRequest,
	stream grpc.ServerStreamingServer[zamokpb.WatchFrame]) error {
	if err := stream.SetHeader(metadata.Pairs("zamok-cluster", "c")); err != nil {
		return err
	}
	frame := &zamokpb.WatchFrame{Index: 8}
	for _, index := range []uint64{5, 5, 7, 8} {
		if index > req.From {
			frame.Events = append(frame.Events, &zamokpb.LockEvent{Index: index, Ticket: index})
		}
	}
	return stream.Send(frame) // then it ends, as when the node stops
}

// Each index is a batch, also if a node sends several at once.
func TestAFrameOfSeveralIndexes(t *testing.T) {
	t.Parallel()
	server := grpc.NewServer()
	zamokpb.RegisterZamokServer(server, busy{})
	c, err := client.New(client.Config{Endpoints: []string{serve(t, server)}, Cluster: "c",
		Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer c.Close()
	var indexes []uint64
	var events []int
	for m, err := range c.Watch(soon(t), "", 4) {
		require.NoError(t, err)
		indexes, events = append(indexes, m.Index), append(events, len(m.Events))
		for _, e := range m.Events {
			require.Equal(t, m.Index, e.Index)
		}
		if m.Index == 8 {
			break
		}
	}
	require.Equal(t, []uint64{5, 7, 8}, indexes)
	require.Equal(t, []int{2, 1, 1}, events)
}
