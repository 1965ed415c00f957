package api

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// From the machine's event to the frame: queueing allocates nothing, the frame three times and each message
// once.
func TestPushingAllocatesLittle(t *testing.T) {
	const grants = 10
	require.NoError(t, noneLeft()) // what other goroutines allocate would count
	h := newHub(&Observer{})
	st := &stream{server: &Server{hub: h}, queue: newSendQueue(h, 1, 0, 1)}
	h.attached[1] = st.queue
	var a fsm.Applied
	for i := range uint64(grants) {
		a.Events = append(a.Events, fsm.Event{
			Kind: fsm.EvGranted, TicketRef: fsm.TicketRef{Session: 1, Ticket: i + 1}, Index: i + 1, Token: i + 1,
		})
	}
	var room []message
	push := func() drained {
		h.applied(nil, a)
		<-st.queue.wake
		return st.queue.take(room)
	}
	room = push().messages
	room = push().messages
	assert.Zero(t, testing.AllocsPerRun(100, func() { room = push().messages }), "from the event to the writer")
	var frame *zamokpb.ServerFrame
	queued := testing.AllocsPerRun(100, func() {
		sent := push()
		frame, room = st.frame(&sent), sent.messages
	})
	require.Len(t, frame.Messages, grants)
	assert.LessOrEqual(t, queued, float64(grants+3), "from the event to the frame")
}

// A whole acquire and drop, client's side (a plain gRPC stream), wire, door, node and machine, with the log
// in memory. It is not exact, since streams and timers allocate as they please: the ceiling is a tenth above
// what is measured.
func TestLockingAllocatesNoMore(t *testing.T) {
	if testing.Short() {
		t.Skip("under the race detector, which runs the short tests, pools forget what they hold")
	}
	const ceiling = 222
	n := startAlone(t)
	w := talk(t, call(t, n), settings(clock.Minute))
	ticket := uint64(0)
	pair := func() {
		ticket++
		w.say(exclusive(ticket, "alloc", 0))
		w.change()
		w.say(drop(ticket))
		w.change()
		w.floor = ticket
	}
	for range 100 {
		pair()
	}
	each := testing.AllocsPerRun(200, pair)
	for range 4 { // on a busy machine fewer messages share a frame
		each = min(each, testing.AllocsPerRun(200, pair))
	}
	t.Logf("%.0f allocations", each)
	assert.LessOrEqual(t, each, float64(ceiling))
}
