package history

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// entry applies events of grants of the named locks, all under one index.
func entry(r *History, index uint64, names ...string) {
	a := fsm.Applied{Index: index, Stamp: clock.Stamp{Term: 1, Index: index}}
	for _, name := range names {
		a.Events = append(a.Events, fsm.Event{
			Index: index, Kind: fsm.EvGranted, Token: index,
			Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
		}, fsm.Event{Index: index, Kind: fsm.EvQueueChanged, Lock: name})
	}
	r.Applied(a)
}

// everything is the view of a watch that may be sent all there is.
func everything() (rules any, may func(string) bool) {
	return nil, func(string) bool { return true }
}

func mustWatch(t *testing.T, r *History, prefix string, from uint64) *Watch {
	t.Helper()
	w, f := r.Watch(t.Context(), prefix, from, "", everything)
	require.NoError(t, f)
	t.Cleanup(w.End)
	return w
}

// readAll reads all that there is, as "index: names".
func readAll(w *Watch) (sent []string) {
	for _, f := range takeAll(w) {
		if len(f.Events) == 0 {
			sent = append(sent, fmt.Sprint(f.Index, ":"))
		}
		last := uint64(0)
		for _, e := range f.Events {
			if e.Index != last {
				last, sent = e.Index, append(sent, fmt.Sprint(e.Index, ":"))
			}
			for _, it := range e.Items {
				sent[len(sent)-1] += " " + it.Name
			}
		}
	}
	return sent
}

// takeAll takes all frames that there are for a watch, as Run and Send do.
func takeAll(w *Watch) (frames []*zamokpb.WatchFrame) {
	for {
		deliverAll(w.history)
		if b := w.take(); b != nil {
			frames = append(frames, decoded(b))
		} else if len(w.history.wake) == 0 {
			return frames
		}
	}
}

// decoded is the frame of a batch.
func decoded(b *batch) *zamokpb.WatchFrame {
	message, err := b.encoded()
	if err != nil {
		panic(err)
	}
	frame := new(zamokpb.WatchFrame)
	if err := proto.Unmarshal(message.ProtoReflect().GetUnknown(), frame); err != nil {
		panic(err)
	}
	return frame
}

func isCut(w *Watch) bool { return w.Err() != nil }

func TestAWatchBeginsAfterItsIndex(t *testing.T) {
	r := New()
	entry(r, 5, "a/1")
	entry(r, 6, "a/1", "b/1", "a/2")
	entry(r, 7)
	entry(r, 8, "b/1")
	all, after5 := mustWatch(t, r, "", 1), mustWatch(t, r, "a/", 5)
	now, ahead := mustWatch(t, r, "", 0), mustWatch(t, r, "", 8)
	assert.EqualValues(t, 8, now.index)
	assert.Equal(t, []string{"5: a/1", "6: a/1 b/1 a/2", "8: b/1"}, readAll(all))
	assert.Equal(t, []string{"6: a/1 a/2"}, readAll(after5),
		"from is exclusive, one index is one frame")
	assert.Empty(t, readAll(now))
	entry(r, 9, "a/3")
	for _, w := range []*Watch{all, after5, now, ahead} {
		assert.Equal(t, []string{"9: a/3"}, readAll(w))
		assert.Empty(t, readAll(w), "sent once")
	}
}

// An acquisition of several locks is sent with the locks under the prefix only.
func TestAWatchSeesNoOtherNames(t *testing.T) {
	r := New()
	w := mustWatch(t, r, "a/", 0)
	r.Applied(fsm.Applied{Stamp: clock.Stamp{Index: 3}, Events: []fsm.Event{{
		Index: 3, Kind: fsm.EvGranted,
		Items: []fsm.Item{{Name: "b/secret", Mode: fsm.Shared}, {Name: "a/1", Mode: fsm.Shared}},
	}}})
	assert.Equal(t, []string{"3: a/1"}, readAll(w))
}

// A session has no name, so its end is sent to watches of everything.
func TestAWatchOfEverythingSeesSessionsEnd(t *testing.T) {
	r := New()
	all, some := mustWatch(t, r, "", 0), mustWatch(t, r, "a/", 0)
	r.Applied(fsm.Applied{Stamp: clock.Stamp{Index: 3}, Events: []fsm.Event{{
		Index: 3, Kind: fsm.EvLost, TicketRef: fsm.TicketRef{Session: 2, Ticket: 1}, Token: 2,
		Reason: fsm.ExpiredByOperator, Text: "enough",
		Items: []fsm.Item{{Name: "a/1", Mode: fsm.Exclusive}},
	}, {
		Index: 3, Kind: fsm.EvSessionEnded, TicketRef: fsm.TicketRef{Session: 2},
		Reason: fsm.ExpiredByOperator, Text: "enough", Label: "till",
	}}})
	for _, reason := range []fsm.Reason{fsm.Closed, fsm.Expired, fsm.Disconnected} {
		r.Applied(fsm.Applied{Stamp: clock.Stamp{Index: 10 + uint64(reason)}, Events: []fsm.Event{{
			Index: 10 + uint64(reason), Kind: fsm.EvSessionEnded,
			TicketRef: fsm.TicketRef{Session: 3}, Reason: reason,
		}}})
	}
	frames := takeAll(all)
	require.Len(t, frames, 1)
	events := frames[0].Events
	require.Len(t, events, 5)
	assert.Equal(t, zamokpb.EventKind_EVENT_LOST, events[0].Kind, "its tickets come first")
	assert.True(t, proto.Equal(&zamokpb.LockEvent{
		Index: 3, Kind: zamokpb.EventKind_EVENT_ENDED, Session: 2,
		Reason: zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR, Text: "enough", Label: "till",
	}, events[1]), events[1])
	for i, reason := range []zamokpb.Reason{zamokpb.Reason_REASON_CLOSED,
		zamokpb.Reason_REASON_EXPIRED, zamokpb.Reason_REASON_DISCONNECTED} {
		assert.Equal(t, reason, events[2+i].Reason)
	}
	assert.Equal(t, []string{"3: a/1"}, readAll(some))
}

func TestTheHistoryDropsTheOldest(t *testing.T) {
	r := New()
	slow, quiet := mustWatch(t, r, "", 0), mustWatch(t, r, "other/", 0)
	for i := range uint64(eventsMax) {
		entry(r, 10+i, "x")
	}
	deliverAll(r)
	require.False(t, isCut(slow), "everything is still there")
	early := mustWatch(t, r, "", 1)
	assert.Equal(t, "10: x", readAll(early)[0], "the oldest")
	entry(r, 10+eventsMax, "x")
	deliverAll(r)
	require.True(t, isCut(slow))
	assert.Empty(t, readAll(slow), "nothing is sent after a lost event")
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, slow.Err().(*wire.Error).Code())
	_, f := r.Watch(t.Context(), "", 9, "", everything)
	require.Error(t, f, "index 10 is dropped")
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, f.(*wire.Error).Code())
	assert.Equal(t, "11: x", readAll(mustWatch(t, r, "", 10))[0])
	assert.Empty(t, readAll(quiet))
	r.beat()
	assert.Equal(t, []string{fmt.Sprint(10+eventsMax, ":")}, readAll(quiet),
		"its index, though nothing was for it")
	assert.Len(t, readAll(early), 2, "a watch that keeps up is not cut")
}

// deliverAll gives the feeds all that they need, as Run does.
func deliverAll(r *History) {
	for len(r.wake) > 0 {
		<-r.wake
		r.deliver()
	}
}

// machineAt is a state machine of which nothing is of interest but its index.
func machineAt(t *testing.T, index uint64) *fsm.Machine {
	m := fsm.New()
	for m.Stamp().Index < index {
		_, err := m.Apply(1, (&fsm.Entry{Version: 1}).Append(nil))
		require.NoError(t, err)
	}
	return m
}

// A snapshot of a leader replaces entries that this node has not seen: a watch ends rather than
// leave them out.
func TestALaterStateEndsWatches(t *testing.T) {
	r := New()
	entry(r, 5, "x")
	w := mustWatch(t, r, "", 0)
	r.Restored(machineAt(t, 40))
	require.True(t, isCut(w))
	assert.Empty(t, readAll(w))
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, w.Err().(*wire.Error).Code())
	again := mustWatch(t, r, "", 0)
	entry(r, 50, "y")
	assert.Equal(t, []string{"50: y"}, readAll(again))
	_, err := r.Watch(t.Context(), "", 5, "", everything)
	assert.Error(t, err, "what is between 5 and 40 was never seen")
}

// A node that opens Raft again begins with its own snapshot, and applies the entries after it once
// more: a watch misses nothing, sees nothing twice, and a later one still reads from before.
func TestAnEarlierStateEndsNoWatch(t *testing.T) {
	r := New()
	for index := range uint64(30) {
		entry(r, 1+index, fmt.Sprint("x", 1+index))
	}
	w := mustWatch(t, r, "", 28)
	assert.Equal(t, []string{"29: x29", "30: x30"}, readAll(w))
	r.Restored(machineAt(t, 10))
	entry(r, 11, "x11")
	fromNow := mustWatch(t, r, "", 0)
	for index := uint64(12); index <= 32; index++ {
		entry(r, index, fmt.Sprint("x", index))
	}
	require.False(t, isCut(w))
	assert.Equal(t, []string{"31: x31", "32: x32"}, readAll(w))
	assert.Equal(t, []string{"31: x31", "32: x32"}, readAll(fromNow))
	assert.Len(t, readAll(mustWatch(t, r, "", 4)), 28)
}

// A node that lags a little is waited for; one that does not come that far is waited for until a
// deadline.
func TestAnIndexIsAwaited(t *testing.T) {
	r := New()
	entry(r, 5, "x")
	ctx, cancel := context.WithCancel(t.Context())
	assert.True(t, r.Await(ctx, 5))
	reached := make(chan bool)
	go func() { reached <- r.Await(ctx, 7) }()
	entry(r, 6, "x")
	entry(r, 7, "x")
	assert.True(t, <-reached)
	go func() { reached <- r.Await(ctx, 20) }()
	r.Restored(machineAt(t, 20))
	assert.True(t, <-reached)
	go func() { reached <- r.Await(ctx, 21) }()
	cancel()
	assert.False(t, <-reached)
}
