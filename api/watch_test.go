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

// entry applies events of grants of the named locks, all under one index.
func entry(r *history, index uint64, names ...string) {
	a := fsm.Applied{Index: index, Stamp: clock.Stamp{Term: 1, Index: index}}
	for _, name := range names {
		a.Events = append(a.Events, fsm.Event{
			Index: index, Kind: fsm.EvGranted, Token: index, Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
		}, fsm.Event{Index: index, Kind: fsm.EvQueueChanged, Text: name})
	}
	r.applied(a)
}

func mustWatch(t *testing.T, r *history, prefix string, from uint64) *watch {
	t.Helper()
	w, f := r.watch(prefix, from)
	require.Nil(t, f)
	t.Cleanup(w.end)
	return w
}

// heard reads all that there is, as "index: names".
func heard(w *watch) (sent []string) {
	for found, some := w.read(); some; found, some = w.read() {
		f := w.frame(found)
		line := fmt.Sprint(f.Index, ":")
		for _, e := range f.Events {
			for _, it := range e.Items {
				line += " " + it.Name
			}
		}
		sent = append(sent, line)
	}
	return sent
}

func isCut(w *watch) bool {
	select {
	case <-w.cut:
		return true
	default:
		return false
	}
}

func TestAWatchIsToldWhatIsAfterItsIndex(t *testing.T) {
	r := newHistory()
	entry(r, 5, "a/1")
	entry(r, 6, "a/1", "b/1", "a/2")
	entry(r, 7)
	entry(r, 8, "b/1")
	all, after5 := mustWatch(t, r, "", 1), mustWatch(t, r, "a/", 5)
	now, ahead := mustWatch(t, r, "", 0), mustWatch(t, r, "", 8)
	assert.EqualValues(t, 8, now.index)
	assert.Equal(t, []string{"5: a/1", "6: a/1 b/1 a/2", "8: b/1"}, heard(all))
	assert.Equal(t, []string{"6: a/1 a/2"}, heard(after5), "from is exclusive, one index is one frame")
	assert.Empty(t, heard(now))
	entry(r, 9, "a/3")
	for _, w := range []*watch{all, after5, now, ahead} {
		assert.Len(t, w.wake, 1, "it was woken")
		assert.Equal(t, []string{"9: a/3"}, heard(w))
		assert.Empty(t, heard(w), "told once")
	}
}

// An acquisition of several locks is told with those under the prefix only.
func TestAWatchSeesNoOtherNames(t *testing.T) {
	r := newHistory()
	w := mustWatch(t, r, "a/", 0)
	r.applied(fsm.Applied{Stamp: clock.Stamp{Index: 3}, Events: []fsm.Event{{
		Index: 3, Kind: fsm.EvGranted, Items: []fsm.Item{{Name: "b/secret", Mode: fsm.Shared}, {Name: "a/1", Mode: fsm.Shared}},
	}}})
	assert.Equal(t, []string{"3: a/1"}, heard(w))
}

// A session has no name, so its end is told to those who watch everything.
func TestAWatchOfEverythingSeesSessionsEnd(t *testing.T) {
	r := newHistory()
	all, some := mustWatch(t, r, "", 0), mustWatch(t, r, "a/", 0)
	r.applied(fsm.Applied{Stamp: clock.Stamp{Index: 3}, Events: []fsm.Event{{
		Index: 3, Kind: fsm.EvLost, TicketRef: fsm.TicketRef{Session: 2, Ticket: 1}, Token: 2, Reason: fsm.Evicted, Text: "enough",
		Items: []fsm.Item{{Name: "a/1", Mode: fsm.Exclusive}},
	}, {
		Index: 3, Kind: fsm.EvSessionEnded, TicketRef: fsm.TicketRef{Session: 2}, Reason: fsm.Evicted, Text: "enough", Label: "till",
	}}})
	for _, reason := range []fsm.Reason{fsm.Closed, fsm.Expired, fsm.Disconnected} {
		r.applied(fsm.Applied{Stamp: clock.Stamp{Index: 10 + uint64(reason)}, Events: []fsm.Event{{
			Index: 10 + uint64(reason), Kind: fsm.EvSessionEnded, TicketRef: fsm.TicketRef{Session: 3}, Reason: reason,
		}}})
	}
	next := func() *zamokpb.WatchFrame {
		found, some := all.read()
		require.True(t, some)
		return all.frame(found)
	}
	frame := next()
	require.Len(t, frame.Events, 2)
	assert.Equal(t, zamokpb.EventKind_EVENT_LOST, frame.Events[0].Kind, "its tickets come first")
	assert.True(t, proto.Equal(&zamokpb.LockEvent{
		Kind: zamokpb.EventKind_EVENT_ENDED, Session: 2, Reason: zamokpb.Reason_REASON_EVICTED, Text: "enough", Label: "till",
	}, frame.Events[1]), frame.Events[1])
	for _, reason := range []zamokpb.Reason{zamokpb.Reason_REASON_CLOSED, zamokpb.Reason_REASON_EXPIRED, zamokpb.Reason_REASON_DISCONNECTED} {
		frame = next()
		require.Len(t, frame.GetEvents(), 1)
		assert.Equal(t, reason, frame.Events[0].Reason)
	}
	assert.Equal(t, []string{"3: a/1"}, heard(some))
}

func TestTheRingForgets(t *testing.T) {
	r := newHistory()
	slow, quiet := mustWatch(t, r, "", 0), mustWatch(t, r, "other/", 0)
	for i := range uint64(historyEvents) {
		entry(r, 10+i, "x")
		if i == historyEvents/2 {
			assert.Equal(t, []string{fmt.Sprint(10+i, ":")}, heard(quiet), "how far it is, though nothing was for it")
		}
	}
	require.False(t, isCut(slow), "everything is still there")
	early := mustWatch(t, r, "", 1)
	assert.Equal(t, "10: x", heard(early)[0], "the oldest")
	entry(r, 10+historyEvents, "x")
	require.True(t, isCut(slow))
	assert.Empty(t, heard(slow), "after what it lost it is told nothing")
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, slow.cutAt().info.Code)
	_, f := r.watch("", 9)
	require.NotNil(t, f, "index 10 is forgotten")
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, f.info.Code)
	assert.Equal(t, "11: x", heard(mustWatch(t, r, "", 10))[0])
	assert.Equal(t, []string{fmt.Sprint(10+historyEvents, ":")}, heard(quiet))
	assert.Len(t, heard(early), 1, "who keeps up is not cut")
}

func TestARestoredStateEndsWatches(t *testing.T) {
	r := newHistory()
	entry(r, 5, "x")
	w := mustWatch(t, r, "", 0)
	r.restored(fsm.New())
	require.True(t, isCut(w))
	assert.Empty(t, heard(w))
	assert.Equal(t, zamokpb.Code_CODE_STOPPING, w.cutAt().info.Code, "index 6 comes again here")
	again := mustWatch(t, r, "", 0)
	entry(r, 50, "y")
	assert.Equal(t, []string{"50: y"}, heard(again))
}

func TestWatchesAreLimited(t *testing.T) {
	r := newHistory()
	for range watchesMax {
		mustWatch(t, r, "", 0)
	}
	_, f := r.watch("", 0)
	require.NotNil(t, f)
	assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED, f.info.Code)
}

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
		everything, err := call(t, n).Watch(relaying(ctx), &zamokpb.WatchRequest{From: stamp.Stamp.Index})
		require.NoError(t, err)
		all = append(all, everything)
		stream, err := call(t, n).Watch(relaying(ctx), &zamokpb.WatchRequest{Prefix: "w/", From: stamp.Stamp.Index})
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
	_, err = s.Downgrade(ctx, &zamokpb.DowngradeRequest{Session: s.id, Secret: s.secret, Ticket: held.Ticket})
	require.NoError(t, err)
	cancelled := s.acquire(ctx, s.next("w/a", fsm.Forever))
	s.waiters("w/a", 1)
	s.drop(s.ticket)
	require.Error(t, (<-cancelled).err)
	s.drop(held.Ticket)
	s.hold("w/b")
	_, err = s.admin.ExpireSession(ctx, &zamokpb.ExpireSessionRequest{Session: s.id, Reason: "enough"})
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
			zamokpb.EventKind_EVENT_GRANTED, zamokpb.EventKind_EVENT_REFUSED, zamokpb.EventKind_EVENT_DOWNGRADED,
			zamokpb.EventKind_EVENT_CANCELLED, zamokpb.EventKind_EVENT_RELEASED, zamokpb.EventKind_EVENT_GRANTED, zamokpb.EventKind_EVENT_LOST,
		}, sent)
		assert.Equal(t, zamokpb.Reason_REASON_EVICTED, end.Reason)
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
			Kind: zamokpb.EventKind_EVENT_ENDED, Session: s.id, Reason: zamokpb.Reason_REASON_EVICTED, Text: "enough", Label: "of a test",
		}, last), last)
	}
}

// A client that watches and does not read is cut when the ring has turned, and holds up nobody.
func TestASlowWatcherIsCut(t *testing.T) {
	c := startCluster(t, 1, nil)
	ctx, node := soon(t), c.leader()
	stream, err := call(t, node).Watch(ctx, &zamokpb.WatchRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	ring := node.Server().history
	names := make([]string, 64)
	for i := range names {
		names[i] = fmt.Sprintf("%0500d", i)
	}
	node.Raft().View(func(m *fsm.Machine) { // as applied under its lock; the indexes are made up
		for i := range uint64(2 * historyEvents / 64) {
			entry(ring, m.Stamp().Index+1000+i, names...)
		}
	})
	require.Eventually(t, func() bool {
		ring.mu.Lock()
		defer ring.mu.Unlock()
		return len(ring.watches) == 0
	}, patience, 1e6)
	for err == nil {
		_, err = stream.Recv()
	}
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, infoOf(t, err).Code)
	assert.Equal(t, codes.OutOfRange, status.Code(err))
	require.Eventually(t, func() bool { return ring.publishing.Load() == 0 }, patience, 1e6, "nothing is being sent any more")
}
