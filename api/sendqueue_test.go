package api

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// boxed is an adopted send queue of a hub without a node.
func boxed(t *testing.T, h *hub, id session.ID) *sendQueue {
	h.expect(id)
	h.attach(fsm.New(), &fsm.Event{Index: 1, TicketRef: fsm.TicketRef{Session: id}})
	o, f := h.adopt(id, nil, raftnode.Answer{Result: fsm.Result{Index: 1}})
	require.Nil(t, f)
	return o
}

// wideRefusal is the largest answer that there is: it names as many holders as an answer may, all with names, owners, labels
// and metadata of the greatest length.
func wideRefusal(number int) message {
	d := &fsm.Detail{}
	for i := range fsm.BlockersMax {
		d.Blockers = append(d.Blockers, fsm.Blocker{
			Name: long(fmt.Sprint(number, "/", i, "/"), fsm.NameBytesMax), By: fsm.ByHolder,
			TicketRef: fsm.TicketRef{Session: 1 << 60, Ticket: 1 << 60}, Token: 1 << 60, Owner: long(fmt.Sprint(number), fsm.OwnerBytesMax),
		})
	}
	for range 2 * fsm.BlockersMax {
		d.Cycle = append(d.Cycle, fsm.Link{Name: d.Blockers[0].Name, Owner: d.Blockers[0].Owner, State: fsm.Waiting})
	}
	f := refused(&fsm.Result{Code: fsm.NotAcquired, Detail: d})
	for _, b := range f.info.Blockers { // as describe does
		b.Label, b.Metadata = long(fmt.Sprint(number), fsm.LabelBytesMax), []byte(long(fmt.Sprint(number), blockerMetadataMax))
	}
	return message{kind: messageAnswer, failure: f}
}

// Streams that are not read take so much together and not more, whatever is queued for them; and a stream that is
// read continues.
func TestOutboxesAreBoundedInBytes(t *testing.T) {
	h := newHub(&Observer{})
	h.setLeading(true)
	read := boxed(t, h, 1)
	read.take(nil)
	before := memory()
	const streams = 80
	var unread []*sendQueue
	for i := range streams {
		unread = append(unread, boxed(t, h, session.ID(i+2)))
	}
	number, cut := 0, 0
	for full := 0; full < streams; {
		full = 0
		for _, o := range unread {
			if o.ended || o.bytes+64<<10 > min(queueBytesMax, queuesBytesMax-h.bytes) {
				full++
				continue
			}
			number++
			require.True(t, o.add(wideRefusal(number)))
			require.LessOrEqual(t, h.bytes, queuesBytesMax)
			// The stream that is read is sent something all the time.
			require.True(t, read.add(message{kind: messageChange, text: "an operator's reason"}))
			read.take(nil)
		}
	}
	grown := int64(memory()) - int64(before)
	t.Logf("%d of the largest answers to %d streams: %d bytes by count, %d of the heap", number, streams, h.bytes, grown)
	assert.Greater(t, h.bytes, queuesBytesMax*9/10)
	assert.Less(t, grown, int64(2*queuesBytesMax))
	more := wideRefusal(number)
	for cut < streams { // and more, until each is cut; what one had is left to the others then
		for _, o := range unread {
			if !o.ended && !o.add(more) {
				require.Equal(t, zamokpb.Code_CODE_SLOW_READER, o.reason.info.Code)
				cut++
			}
			require.LessOrEqual(t, h.bytes, queuesBytesMax)
		}
	}
	for _, o := range unread {
		h.leave(o)
	}
	h.leave(read)
	assert.Zero(t, h.bytes)
	runtime.KeepAlive(unread)
}

// A large frame counts until it is sent.
func TestALargeFrameCountsUntilItIsSent(t *testing.T) {
	h := newHub(&Observer{})
	h.setLeading(true)
	o := boxed(t, h, 1)
	for range 10 {
		require.True(t, o.add(wideRefusal(1)))
	}
	size := h.bytes
	taken := o.take(nil)
	require.True(t, taken.large)
	assert.Equal(t, size, h.bytes)
	require.True(t, o.add(message{kind: messageChange}))
	h.leave(o)
	assert.Equal(t, size, h.bytes, "its writer is still at it")
	o.sent()
	assert.Zero(t, h.bytes)
}

// Hints are not queued for a stream that is behind.
func TestHintsAreLeftOut(t *testing.T) {
	h := newHub(&Observer{})
	h.setLeading(true)
	o := boxed(t, h, 1)
	place := message{kind: messagePosition, blockers: wideRefusal(1).failure.info.Blockers[:positionBlockersMax]}
	sent := 0
	for ; o.hint(); sent++ {
		require.True(t, o.add(place))
	}
	assert.Greater(t, sent, 10)
	assert.Less(t, h.bytes, queueBytesMax/2)
	assert.False(t, o.ended)
}
