package push

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/metrics"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/session"
)

// boxed is a claimed send queue of a hub without a node.
func boxed(t *testing.T, h *Hub, id session.ID) *Queue {
	h.attach(fsm.New(), &fsm.Event{Index: 1, TicketRef: fsm.TicketRef{Session: id}})
	o, f := h.Claim(&zamokpb.SessionState{Session: uint64(id), Attachment: 1})
	require.Nil(t, f)
	return o
}

// wideRefusal is the largest answer that there is: it names as many holders as an answer may, all
// with names, owners, labels and metadata of the greatest length.
func wideRefusal(number int) *zamokpb.ServerMessage {
	d := &fsm.Detail{}
	for i := range fsm.BlockersMax {
		d.Blockers = append(d.Blockers, fsm.Blocker{
			Name: long(fmt.Sprint(number, "/", i, "/"), fsm.NameBytesMax), By: fsm.ByHolder,
			TicketRef: fsm.TicketRef{Session: 1 << 60, Ticket: 1 << 60}, Token: 1 << 60,
			Owner: long(fmt.Sprint(number), fsm.OwnerBytesMax),
		})
	}
	for range 2 * fsm.BlockersMax {
		d.Cycle = append(d.Cycle,
			fsm.Link{Name: d.Blockers[0].Name, Owner: d.Blockers[0].Owner, State: fsm.Waiting})
	}
	f := wire.FromResult(&fsm.Result{Code: fsm.NotAcquired, Detail: d})
	for _, b := range f.Info.Blockers { // as describe does
		b.Label, b.Meta = long(fmt.Sprint(number), fsm.LabelBytesMax),
			[]byte(long(fmt.Sprint(number), wire.BlockerBytesMax-fsm.LabelBytesMax))
	}
	return wire.Answer(zamokpb.Command_COMMAND_ACQUIRE, fsm.TicketState{}, f)
}

// Streams that are not read take so much together and not more, whatever is queued for them; and a
// stream that is read continues.
func TestQueuesAreBoundedInBytes(t *testing.T) {
	h := NewHub(metrics.New())
	h.SetLeading(true)
	read := boxed(t, h, 1)
	read.Take()
	before := memory()
	const streams = 80
	var unread []*Queue
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
			require.True(t, o.add(wideRefusal(number), true))
			require.LessOrEqual(t, h.bytes, queuesBytesMax)
			// The stream that is read is sent something all the time.
			require.True(t,
				read.add(wire.Change(&fsm.Event{Text: "an operator's reason"}, fsm.TicketState{},
					1), true))
			read.Take()
		}
	}
	grown := int64(memory()) - int64(before)
	t.Logf("%d of the largest answers to %d streams: %d bytes by count, %d of the heap", number,
		streams, h.bytes, grown)
	assert.Greater(t, h.bytes, queuesBytesMax*9/10)
	assert.Less(t, grown, int64(2*queuesBytesMax))
	more := wideRefusal(number)
	for cut < streams { // and more, until each is cut; what one had is left to the others then
		for _, o := range unread {
			if !o.ended && !o.add(more, true) {
				require.Equal(t, zamokpb.Code_CODE_SLOW_READER, o.reason.Code())
				cut++
			}
			require.LessOrEqual(t, h.bytes, queuesBytesMax)
		}
	}
	for _, o := range unread {
		h.Leave(o)
	}
	h.Leave(read)
	assert.Zero(t, h.bytes)
	runtime.KeepAlive(unread)
}

// A large frame counts until it is sent.
func TestALargeFrameCountsUntilItIsSent(t *testing.T) {
	h := NewHub(metrics.New())
	h.SetLeading(true)
	o := boxed(t, h, 1)
	for range 10 {
		require.True(t, o.add(wideRefusal(1), true))
	}
	size := h.bytes
	o.Take()
	require.Positive(t, o.sending)
	assert.Equal(t, size, h.bytes)
	require.True(t, o.add(wire.Change(&fsm.Event{}, fsm.TicketState{}, 1), true))
	h.Leave(o)
	assert.Equal(t, size, h.bytes, "its writer is still at it")
	o.Sent()
	assert.Zero(t, h.bytes)
}

// Hints are not queued for a stream that is behind.
func TestHintsAreLeftOut(t *testing.T) {
	h := NewHub(metrics.New())
	h.SetLeading(true)
	o := boxed(t, h, 1)
	position := &zamokpb.ServerMessage{
		Message: &zamokpb.ServerMessage_Position{Position: &zamokpb.QueuePosition{
			Blockers: wideRefusal(1).GetAnswer().Error.Blockers[:positionBlockersMax],
		}}}
	sent := 0
	for ; o.hasRoom(); sent++ {
		require.True(t, o.add(position, true))
	}
	assert.Greater(t, sent, 10)
	assert.Less(t, h.bytes, queueBytesMax/2)
	assert.False(t, o.ended)
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
