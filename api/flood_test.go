package api

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/access"
	"zamok/api/push"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// soonEnough is what a test may take in which nothing is applied: an acquisition is refused also when the
// first of its session has waited for half a second.
const soonEnough = 400 * time.Millisecond

// A client that sends more than is carried out fills neither this node's memory nor the queue that all clients share.
func TestAFloodIsBounded(t *testing.T) {
	n := startAlone(t)
	st := attachDirectly(t, n, 1)
	var alive, ends []*zamokpb.ClientMessage
	for range access.FrameMessagesMax {
		alive, ends = append(alive, keepAlive()), append(ends, closeSession())
	}
	answered := make(chan error, 1)
	n.Raft().View(func(*fsm.Machine) { // while it is read, nothing is applied
		for range 2 * pendingMax / access.FrameMessagesMax {
			require.NoError(t, st.handle(&zamokpb.ClientFrame{Messages: alive}))
		}
		assert.LessOrEqual(t, st.pending.Load(), int64(pendingMax))
		for range 64 {
			require.NoError(t, st.handle(&zamokpb.ClientFrame{Messages: ends}))
		}
		n.Raft().Submit(t.Context(), &fsm.ExpireSession{Session: 1 << 60}, func(_ raftnode.Answer, err error) { answered <- err })
	})
	assert.NoError(t, <-answered, "there was room for others")
	<-st.queue.Done()
	assert.NoError(t, st.queue.Err().Err(), "the one Close was carried out, and no other refused")
	require.Eventually(t, func() bool { return st.pending.Load() == 0 }, patience, clock.Millisecond.Duration())
}

// A silent stream ends with an error that names that; one that sent OpenStream never ends with NOT_DONE.
func TestSilence(t *testing.T) {
	st := &stream{}
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, st.openTimedOut().Info.Outcome)
	st.frames.Add(1)
	assert.Equal(t, zamokpb.Code_CODE_UNKNOWN, st.openTimedOut().Info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, st.openTimedOut().Info.Outcome)
}

// Sessions with as many tickets as there may be attach again and again, each as soon as it has its SessionState. Another
// session continues all the time.
func TestOthersGoOnBesideSessionsThatAttachInALoop(t *testing.T) {
	const (
		longest  = 3 * time.Second // what it takes is some hundredths of that
		sessions = 4
		loops    = 50
	)
	n := startAlone(t)
	stop, others := make(chan struct{}), make(chan time.Duration)
	go lockRepeatedly(n, attachDirectly(t, n, 255).queue.Session, stop, others)
	var loop []*wireClient
	for s := range sessions {
		w := openStream(t, call(t, n), settings(clock.Hour))
		for ticket := range uint64(fsm.TicketsMax) {
			w.acked = ticket
			n.Raft().Submit(t.Context(), &fsm.Acquire{Session: session.ID(w.id), Ticket: ticket + 1, AckedThrough: ticket, Items: []fsm.Item{
				{Name: fmt.Sprintf("loop/%d/%d", s, ticket), Mode: fsm.Exclusive}}}, func(raftnode.Answer, error) {})
			if ticket%1024 == 1023 {
				until(n, &fsm.Drop{Session: session.ID(w.id), Ticket: 1 << 20}) // no such ticket: what comes before it is done
			}
		}
		loop = append(loop, w)
	}
	<-others
	began := time.Now()
	var busy sync.WaitGroup
	var sent atomic.Int64
	for _, w := range loop {
		busy.Go(func() {
			c := call(t, n)
			for range loops {
				w.hangUp()
				w = w.again(c)
				sent.Add(int64(len(w.state.Tickets)))
			}
		})
	}
	busy.Wait()
	took, most := time.Since(began), <-others
	close(stop)
	t.Logf("%d attachments, with %d tickets sent, in %v; the longest turn of another session took %v", sessions*loops, sent.Load(), took, most)
	require.EqualValues(t, sessions*loops*fsm.TicketsMax, sent.Load())
	assert.Less(t, most, longest)
}

// The largest commands of one stream take a small part of what the node takes from all, and are refused beyond that;
// when some have their answers there is room again.
func TestAStreamsCommandsAreBoundedInBytes(t *testing.T) {
	const some = pendingBytesMax / (64 << 10)
	n := startAlone(t)
	taken, took := fill(t, n, 1)
	for again := byte(2); taken <= some && took > soonEnough && again < 100; again++ {
		taken, took = fill(t, n, again)
	}
	assert.Greater(t, taken, some)
}

// fill sends the largest commands until one is refused, and returns how many were taken before, and how long that took.
func fill(t *testing.T, n *Node, number byte) (taken int, took time.Duration) {
	st := attachDirectly(t, n, number)
	refused := func() bool {
		frame, _ := st.queue.Take()
		for _, m := range frame.GetMessages() {
			if info := m.GetAnswer().GetError(); info != nil {
				assert.Equal(t, zamokpb.Code_CODE_OVERLOADED, info.Code)
				assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
				return true
			}
		}
		return false
	}
	began := time.Now()
	n.Raft().View(func(*fsm.Machine) { // while it is read, nothing is applied
		for ; !refused(); taken++ {
			c := widest(st.queue.Session, uint64(taken)+1)
			st.submit(push.Command{Kind: zamokpb.Command_COMMAND_ACQUIRE, Ticket: c.Ticket}, c)
			require.LessOrEqual(t, st.pendingBytes.Load(), int64(pendingBytesMax))
		}
	})
	took = time.Since(began)
	require.Eventually(t, func() bool { return st.pending.Load() == 0 }, patience, clock.Millisecond.Duration())
	assert.Zero(t, st.pendingBytes.Load())
	return taken, took
}
