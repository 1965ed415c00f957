package history

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// refuseMany applies so many refused acquisitions of the largest kind, one in each entry, to a
// machine and the ring.
func refuseMany(t *testing.T, r *History, count int) {
	m := fsm.New()
	apply := func(c fsm.Command) fsm.Applied {
		a, err := m.Apply(1, (&fsm.Entry{Version: 1, Commands: []fsm.Command{c}}).Append(nil))
		require.NoError(t, err)
		require.Len(t, a.Results, 1)
		r.Applied(a)
		return a
	}
	apply(&fsm.LeaderStart{Node: "n1", Nonce: 1, Cluster: fsm.ClusterID{1}})
	id := apply(&fsm.OpenSession{Secret: session.Hash{1},
		Settings: session.Settings{TTL: clock.Hour}}).Results[0].Session
	for i := range uint64(count) + 1 {
		c := widest(id, i+1, "held") // all but one of its names are new each time
		c.Wait, c.AckedThrough = 0, i
		if got := apply(c).Results[0].Code; i > 0 {
			require.Equal(t, fsm.NotAcquired, got)
		}
	}
}

// However large the events are, the ring takes no more than bytesMax, and drops the oldest first.
func TestTheHistoryIsBoundedInBytes(t *testing.T) {
	r := New()
	slow, follower := mustWatch(t, r, "", 0), mustWatch(t, r, "other", 0)
	// Nobody reads them before all is applied.
	before := memory()
	const count = 2000 // of 40 KB each: more than twice what the ring takes
	refuseMany(t, r, count)
	grown := int64(memory()) - int64(before)
	t.Logf("%d events of %d are left, %d bytes by count and %d of the heap", r.end-r.first, count,
		r.bytes, grown)
	assert.LessOrEqual(t, r.bytes, bytesMax)
	assert.Greater(t, r.bytes, bytesMax-100<<10, "it is full")
	assert.Less(t, grown, int64(bytesMax+bytesMax/4))
	sum := 0
	for number := r.first; number < r.end; number++ {
		sum += size(r.at(number))
	}
	assert.Equal(t, sum, r.bytes)

	deliverAll(r)
	require.True(t, isCut(slow), "it has not read what was dropped")
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, slow.Err().(*wire.Error).Code())
	require.False(t, isCut(follower), "nothing of that was for it")
	_, f := r.Watch(t.Context(), "", r.compacted-1, "", everything)
	require.Error(t, f)
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, f.(*wire.Error).Code())
	all := mustWatch(t, r, "", r.compacted)
	assert.Len(t, readAll(all), int(r.end-r.first), "what was not dropped is sent")
	runtime.KeepAlive(r)
}

// Small events are as many as there were, and take less.
func TestSmallEventsFitIntoTheRing(t *testing.T) {
	r := New()
	before := memory()
	for i := range uint64(eventsMax + 1000) {
		entry(r, 10+i, fmt.Sprintf("jobs/nightly/%d", i))
	}
	grown := int64(memory()) - int64(before)
	t.Logf("%d bytes by count and %d of the heap", r.bytes, grown)
	assert.EqualValues(t, eventsMax, r.end-r.first)
	assert.Less(t, grown, int64(bytesMax))
	assert.Less(t, r.bytes, bytesMax)
	runtime.KeepAlive(r)
}

// The events of one index are in one frame, or the watch ends: then its client lists again and
// continues behind it.
func TestMoreThanAFrameEndsTheWatch(t *testing.T) {
	r := New()
	w, other := mustWatch(t, r, "", 0), mustWatch(t, r, "other", 0)
	entry(r, 10, "a")
	many := make([]string, indexBytesMax/(eventBytes+itemBytes+fsm.NameBytesMax)+1)
	for i := range many {
		many[i] = long(fmt.Sprint(i), fsm.NameBytesMax)
	}
	entry(r, 11, many...)
	entry(r, 12, "other")
	assert.Equal(t, []string{"10: a"}, readAll(w))
	require.Error(t, w.Err())
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, w.Err().(*wire.Error).Code())
	assert.Equal(t, []string{"12: other"}, readAll(other), "nothing of that is for others")
	assert.Equal(t, []string{"12: other"}, readAll(mustWatch(t, r, "", 11)))
	require.NoError(t, other.Err())
}

// large is a batch whose frame has so many bytes, and a few more.
func large(bytes int) *batch {
	return &batch{bytes: bytes,
		frame: &zamokpb.WatchFrame{
			Events: []*zamokpb.LockEvent{{Text: strings.Repeat("x", bytes)}}}}
}

// What all watches together are sending is bounded, and small frames find room while large ones do
// not.
func TestWhatWatchesSendIsBounded(t *testing.T) {
	r := New()
	w := mustWatch(t, r, "", 0)
	// send sends as many batches of a size at once as there is room for, up to most; then runs the
	// rest.
	send := func(bytes, most int, then func(sent int)) error {
		sent := 0
		var next func(any) error
		next = func(any) error {
			require.LessOrEqual(t, r.sending.Load(), int64(sendingBytesMax))
			if sent++; sent == most || w.send(next, large(bytes)) != nil {
				then(sent)
			}
			return nil
		}
		return w.send(next, large(bytes))
	}
	require.NoError(t, send(indexBytesMax, sendingBytesMax, func(sent int) {
		assert.Greater(t, sent, 32)
		require.NoError(t, send(40<<10, 8, func(small int) { assert.Equal(t, 8, small) }))
	}))
	assert.Zero(t, r.sending.Load())
	require.NoError(t, send(indexBytesMax, 1, func(int) {}))
}

// widest is an acquisition of the largest size.
func widest(id session.ID, ticket uint64, names ...string) *fsm.Acquire {
	c := &fsm.Acquire{
		Session: id, Ticket: ticket, Wait: fsm.Forever,
		Owner: long(fmt.Sprint("owner", ticket), fsm.OwnerBytesMax),
		Meta:  long("", fsm.MetaBytesMax),
	}
	for _, name := range names {
		c.Items = append(c.Items, fsm.Item{Name: long(name, fsm.NameBytesMax), Mode: fsm.Exclusive})
	}
	for i := len(names); i < fsm.ItemsMax; i++ {
		c.Items = append(c.Items,
			fsm.Item{Name: long(fmt.Sprint(id, "/", ticket, "/", i, "/"), fsm.NameBytesMax),
				Mode: fsm.Exclusive})
	}
	return c
}

// long fills a text up to so many bytes.
func long(begin string, bytes int) string { return begin + strings.Repeat("x", bytes-len(begin)) }

// memory is what is in use.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc + s.StackInuse
}
