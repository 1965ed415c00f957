package api

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// TestWatchOnEveryNode watches a lock's whole story on a leader and a follower.
func TestWatchOnEveryNode(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	leader := c.leader()
	ctx := soon(t)
	s := openSession(t, ctx, call(t, leader))
	s.hold("before")
	stamp, err := s.Now(ctx, &zamokpb.NowRequest{})
	require.NoError(t, err)
	var streams, all []grpc.ServerStreamingClient[zamokpb.WatchFrame]
	for _, n := range c.nodes {
		everything, err := call(t, n).Watch(relaying(ctx),
			&zamokpb.WatchRequest{From: stamp.Stamp.Index})
		require.NoError(t, err)
		all = append(all, everything)
		stream, err := call(t, n).Watch(relaying(ctx),
			&zamokpb.WatchRequest{Prefix: "w/", From: stamp.Stamp.Index})
		require.NoError(t, err)
		first, err := stream.Recv()
		require.NoError(t, err)
		assert.Equal(t, stamp.Stamp.Index, first.Index)
		assert.Empty(t, first.Events)
		streams = append(streams, stream)
	}
	held := s.hold("w/a")
	_, err = s.Acquire(ctx, s.next("w/a", 0))
	require.Error(t, err)
	_, err = s.Downgrade(ctx,
		&zamokpb.DowngradeRequest{Session: s.id, Secret: s.secret, Ticket: held.Ticket})
	require.NoError(t, err)
	cancelled := s.acquire(ctx, s.next("w/a", fsm.Forever))
	s.waiters("w/a", 1)
	s.drop(s.ticket)
	require.Error(t, (<-cancelled).err)
	s.drop(held.Ticket)
	s.hold("w/b")
	_, err = s.admin.ExpireSession(ctx,
		&zamokpb.ExpireSessionRequest{Session: s.id, Reason: "enough"})
	require.NoError(t, err)
	for _, stream := range streams {
		var sent []zamokpb.EventKind
		last := stamp.Stamp.Index
		var end *zamokpb.LockEvent
		for len(sent) < 7 {
			frame, err := stream.Recv()
			require.NoError(t, err)
			assert.Greater(t, frame.Index, last)
			last = frame.Index
			for _, e := range frame.Events {
				assert.Equal(t, s.id, e.Session)
				sent, end = append(sent, e.Kind), e
			}
		}
		assert.Equal(t, []zamokpb.EventKind{
			zamokpb.EventKind_EVENT_GRANTED, zamokpb.EventKind_EVENT_REFUSED,
			zamokpb.EventKind_EVENT_DOWNGRADED,
			zamokpb.EventKind_EVENT_CANCELLED, zamokpb.EventKind_EVENT_RELEASED,
			zamokpb.EventKind_EVENT_GRANTED, zamokpb.EventKind_EVENT_LOST,
		}, sent)
		assert.Equal(t, zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR, end.Reason)
		assert.Equal(t, "enough", end.Text)
	}
	for _, stream := range all {
		var last *zamokpb.LockEvent
		for last.GetKind() != zamokpb.EventKind_EVENT_ENDED {
			frame, err := stream.Recv()
			require.NoError(t, err)
			for _, e := range frame.Events {
				last = e
			}
		}
		assert.True(t, proto.Equal(&zamokpb.LockEvent{
			Index: last.Index, Kind: zamokpb.EventKind_EVENT_ENDED, Session: s.id,
			Reason: zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR, Text: "enough", Label: "of a test",
		}, last), last)
	}
}

// A client that watches and does not read is cut when its next event is dropped, and delays no
// other client.
func TestASlowWatcherIsCut(t *testing.T) {
	c := startCluster(t, 1, nil)
	ctx, node := soon(t), c.leader()
	stream, err := call(t, node).Watch(ctx, &zamokpb.WatchRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	ring := node.server.history
	names := make([]string, 64)
	for i := range names {
		names[i] = fmt.Sprintf("%0500d", i)
	}
	node.Raft().View(func(m *fsm.Machine) { // as applied under its lock; the indexes are made up
		for i := range uint64(4096) { // of 30 KB each: much more than it takes
			index := m.Stamp().Index + 1000 + i
			a := fsm.Applied{Index: index, Stamp: clock.Stamp{Term: 1, Index: index}}
			for _, name := range names {
				a.Events = append(a.Events, fsm.Event{
					Index: index, Kind: fsm.EvGranted, Token: index,
					Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
				})
			}
			ring.Applied(a)
		}
	})
	for err == nil {
		_, err = stream.Recv()
	}
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, infoOf(t, err).Code)
	assert.Equal(t, codes.OutOfRange, status.Code(err))
}
