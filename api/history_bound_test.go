package api

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// refusals applies so many refused acquisitions of the largest kind, one in each entry, to a machine and the ring.
func refusals(t *testing.T, r *history, count int) {
	m := fsm.New()
	apply := func(c fsm.Command) fsm.Applied {
		a, err := m.Apply(1, (&fsm.Entry{Version: 1, Commands: []fsm.Command{c}}).Append(nil))
		require.NoError(t, err)
		require.Len(t, a.Results, 1)
		r.applied(a)
		return a
	}
	apply(&fsm.LeaderStart{Node: "n1", Nonce: 1, Cluster: fsm.ClusterID{1}})
	id := apply(&fsm.OpenSession{Secret: session.Hash{1}, TTL: clock.Hour}).Results[0].Session
	for i := range uint64(count) + 1 {
		c := widest(id, i+1, "held") // all but one of its names are new each time
		c.WaitFor, c.AckedThrough = 0, i
		if got := apply(c).Results[0].Code; i > 0 {
			require.Equal(t, fsm.NotAcquired, got)
		}
	}
}

// However large the events are, the ring takes no more than it says, and forgets the oldest first.
func TestTheRingIsBoundedInBytes(t *testing.T) {
	r := newHistory()
	slow, follower := mustWatch(t, r, "", 0), mustWatch(t, r, "nobody", 0)
	before := memory()
	const count = 2000 // of 40 KB each: more than twice what the ring takes
	refusals(t, r, count)
	grown := int64(memory()) - int64(before)
	t.Logf("%d events of %d are left, %d bytes by count and %d of the heap", r.count, count, r.bytes, grown)
	assert.LessOrEqual(t, r.bytes, historyBytesMax)
	assert.Greater(t, r.bytes, historyBytesMax-100<<10, "it is full")
	assert.Less(t, grown, int64(historyBytesMax+historyBytesMax/4))
	sum := 0
	for number := r.first; number < r.end(); number++ {
		sum += r.at(number).size()
	}
	assert.Equal(t, sum, r.bytes)

	require.True(t, isCut(slow), "it has not read what is forgotten")
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, slow.cutAt().info.Code)
	require.True(t, isCut(follower), "it has not read either")
	_, f := r.watch("", r.compacted-1)
	require.NotNil(t, f)
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, f.info.Code)
	all := mustWatch(t, r, "", r.compacted)
	assert.Len(t, heard(all), r.count, "what is not forgotten is sent")
	runtime.KeepAlive(r)
}

// Small events are as many as there were, and take less.
func TestSmallEventsFitIntoTheRing(t *testing.T) {
	r := newHistory()
	before := memory()
	for i := range uint64(historyEvents + 1000) {
		entry(r, 10+i, fmt.Sprintf("jobs/nightly/%d", i))
	}
	grown := int64(memory()) - int64(before)
	t.Logf("%d bytes by count and %d of the heap", r.bytes, grown)
	assert.Equal(t, historyEvents, r.count)
	assert.Less(t, grown, int64(historyBytesMax))
	assert.Less(t, r.bytes, historyBytesMax)
	runtime.KeepAlive(r)
}

// A watch whose prefix has no events is sent its index before the ring has turned by the bytes of others.
func TestAWatchOfOtherNamesKeepsUp(t *testing.T) {
	r := newHistory()
	w := mustWatch(t, r, "nobody", 0)
	begun := w.index
	name := strings.Repeat("x", fsm.NameBytesMax)
	for i := range uint64(2 * historyBytesMax / (eventBytes + eventItemBytes + fsm.NameBytesMax)) {
		entry(r, 10+i, name)
		_, _ = w.read()
	}
	require.False(t, isCut(w))
	assert.Greater(t, w.index, begun)
	assert.GreaterOrEqual(t, w.index, r.compacted, "it can come back")
}

// The events of one index are in one frame, or the watch ends: then its client lists again and continues behind it.
func TestMoreThanAFrameIsNotTold(t *testing.T) {
	r := newHistory()
	w, other := mustWatch(t, r, "", 0), mustWatch(t, r, "other", 0)
	entry(r, 10, "a")
	many := make([]string, watchFrameBytesMax/(eventBytes+eventItemBytes+fsm.NameBytesMax)+1)
	for i := range many {
		many[i] = long(fmt.Sprint(i), fsm.NameBytesMax)
	}
	entry(r, 11, many...)
	entry(r, 12, "other")
	assert.Equal(t, []string{"10: a"}, heard(w))
	require.NotNil(t, w.failed)
	assert.Equal(t, zamokpb.Code_CODE_COMPACTED, w.failed.info.Code)
	assert.Equal(t, []string{"12: other"}, heard(other), "nothing of that is for others")
	assert.Equal(t, []string{"12: other"}, heard(mustWatch(t, r, "", 11)))
	assert.Nil(t, other.failed)
}

// What all watches together are sending is bounded, and small frames find room while large ones do not.
func TestWhatWatchesTellIsBounded(t *testing.T) {
	r := newHistory()
	large, small := found{bytes: watchFrameBytesMax}, found{bytes: 40 << 10}
	sent := 0
	for ; r.send(large); sent++ {
		require.LessOrEqual(t, r.publishing.Load(), int64(watchesBytesMax))
	}
	assert.Greater(t, sent, 32)
	for range 8 {
		require.True(t, r.send(small))
		defer r.sent(small)
	}
	for range sent {
		r.sent(large)
	}
	assert.True(t, r.send(large))
	r.sent(large)
}
