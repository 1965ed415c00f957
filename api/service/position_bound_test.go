package service

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/push"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// Many wait for two locks and want their positions, and then the queue drains as fast as it can.
// Another session, which has nothing to do with them, continues all the time. ZAMOK_CROWD=200000:
// so many.
func TestOthersContinueWhilePositionsAreSent(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for spans of time: left out with -short")
	}
	// what it takes is some hundredths of that, and what it took was more
	const longest = 3 * time.Second
	waiters, _ := strconv.Atoi(os.Getenv("ZAMOK_CROWD"))
	if waiters == 0 {
		waiters = 40_000
	}
	n := startAlone(t)
	stop, others := make(chan struct{}), make(chan time.Duration)
	defer close(stop)
	go lockRepeatedly(n, attachDirectly(t, n, 255).queue.Session, stop, others)
	phase := func(name string, play func()) {
		<-others
		began := time.Now()
		play()
		took, most := time.Since(began), <-others
		t.Logf("%d waiters %s in %v; the longest round of another session took %v", waiters, name,
			took, most)
		assert.Less(t, most, longest, name)
	}
	var queue []fsm.TicketRef
	var sent atomic.Int64
	phase("come", func() { queue = crowd(t, n, waiters, &sent) })
	phase("are sent positions", func() { // what happens at most once a second
		before := sent.Load()
		// all others move up
		until(n, &fsm.Drop{Session: queue[1].Session, Ticket: queue[1].Ticket})
		require.Eventually(t, func() bool { return sent.Load() > before+50 }, patience,
			time.Millisecond)
	})
	phase("drain", func() { drain(t, n, queue) })
}

// crowd has so many tickets wait behind one that holds, and returns them in order, that one first.
// The streams' readers and wires are left out: commands are submitted as streams do, and what is
// sent is made into frames. For what waited too long on a busy machine, and was refused, another
// ticket comes.
func crowd(t *testing.T, n *node, waiters int, sent *atomic.Int64) []fsm.TicketRef {
	const each = 4000 // tickets of a session
	items := []fsm.Item{{Name: "crowd/a", Mode: fsm.Exclusive},
		{Name: "crowd/b", Mode: fsm.Exclusive}}
	var queue []fsm.TicketRef
	refused := make(chan fsm.TicketRef, waiters)
	var st *stream
	submit := func(ticket uint64) {
		c := &fsm.Acquire{Session: st.queue.Session, Ticket: ticket, AckedThrough: ticket - 1,
			Items: items, Wait: fsm.Forever}
		require.Eventually(t, func() bool { return st.pending.Load() < 512 }, patience,
			time.Millisecond/10)
		st.submit(push.Command{Kind: zamokpb.Command_COMMAND_ACQUIRE, Ticket: ticket,
			Positions: len(items)}, c)
		queue = append(queue, fsm.TicketRef{Session: c.Session, Ticket: ticket})
	}
	for i := range waiters + 1 {
		if i%each == 0 {
			st = attachDirectly(t, n, uint64(i/each))
			go writeNowhere(t.Context(), st, sent, refused)
		}
		submit(uint64(i%each) + 1)
	}
	for began := time.Now(); waitingAt(n) < waiters; {
		require.Less(t, time.Since(began), 4*patience)
		select {
		case ref := <-refused:
			queue = slices.DeleteFunc(queue, func(r fsm.TicketRef) bool { return r == ref })
			submit(queue[len(queue)-1].Ticket + 1)
		case <-time.After(time.Millisecond):
		}
	}
	return queue
}

func waitingAt(n *node) (waiting int) {
	n.raft.View(func(m *fsm.Machine) { waiting = m.Counts().Waiting })
	return waiting
}

func writeNowhere(ctx context.Context, st *stream, positions *atomic.Int64,
	refused chan<- fsm.TicketRef) {
	for {
		select {
		case <-st.queue.Wake():
		case <-ctx.Done():
			return
		}
		frame, _ := st.queue.Take()
		for _, m := range frame.GetMessages() {
			if m.GetPosition() != nil {
				positions.Add(1)
			}
			if a := m.GetAnswer(); a.GetError().GetCode() == zamokpb.Code_CODE_OVERLOADED {
				refused <- fsm.TicketRef{Session: st.queue.Session, Ticket: a.State.Ticket}
			}
		}
		st.queue.Sent()
	}
}

// drain drops the tickets in the order in which they are granted.
func drain(t *testing.T, n *node, queue []fsm.TicketRef) {
	free := make(chan struct{}, 512)
	for _, ref := range queue {
		free <- struct{}{}
		go func() {
			until(n, &fsm.Drop{Session: ref.Session, Ticket: ref.Ticket})
			<-free
		}()
	}
	require.Eventually(t, func() bool { return waitingAt(n) == 0 }, patience, time.Millisecond)
}
