package service

import (
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/push"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
)

// A client that sends more than is carried out fills neither this node's memory nor the queue that
// all clients share.
func TestAFloodIsBounded(t *testing.T) {
	const perFrame = 1024
	keepAlive := (&zamokpb.KeepAlive{}).Message()
	closeSession := (&zamokpb.CloseSession{}).Message()
	n := startAlone(t)
	st := attachDirectly(t, n, 1)
	var alive, ends []*zamokpb.ClientMessage
	for range perFrame {
		alive, ends = append(alive, keepAlive), append(ends, closeSession)
	}
	answered := make(chan error, 1)
	n.raft.View(func(*fsm.Machine) { // while it is read, nothing is applied
		for range 2 * pendingMax / perFrame {
			require.NoError(t, st.handle(frameOf(alive...)))
		}
		assert.LessOrEqual(t, st.pending.Load(), int64(pendingMax))
		for range 64 {
			require.NoError(t, st.handle(frameOf(ends...)))
		}
		n.raft.Submit(t.Context(), &fsm.ExpireSession{Session: 1 << 60},
			func(_ raftnode.Answer, err error) { answered <- err })
	})
	assert.NoError(t, <-answered, "there was room for others")
	<-st.queue.Done()
	assert.NoError(t, st.queue.Err().Err(), "the one Close was carried out, and no other refused")
	require.Eventually(t, func() bool { return st.pending.Load() == 0 }, patience,
		clock.Millisecond.Duration())
}

// While more waits than the next entry can take, a stream has few acquisitions of it. Those that
// find no room in time are refused, with one answer for each run of tickets.
func TestAnAcquisitionWithoutRoomIsRefused(t *testing.T) {
	const sent, gap, again = 200, 100, 150
	n := startAlone(t)
	st, other := attachDirectly(t, n, 1), attachDirectly(t, n, 2)
	var frame zamokpb.ClientFrame
	for ticket := uint64(1); ticket <= sent; ticket++ {
		if ticket != gap {
			p := &zamokpb.Acquire{Ticket: ticket, First: ticket != again, Wait: -1,
				Items: []*zamokpb.Item{{Name: fmt.Sprint(ticket),
					Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}
			frame.Messages = append(frame.Messages, p.Message())
		}
	}
	release, queried := stall(t, n), 0
	st.frames = noFrames{queried: &queried}
	fillQueue(t, n, other.queue.Session)
	require.NoError(t, st.handle(&frame))
	assert.Equal(t, crowdedMax, queried, "what has no room meets no limit before that")
	release()
	assert.EqualValues(t, sent-1-crowdedMax, st.overloads.Load())
	answers, _ := st.queue.Take()
	var refused [][2]uint64
	for _, m := range answers.GetMessages() {
		if a := m.GetAnswer(); a.GetError().GetCode() == zamokpb.Code_CODE_OVERLOADED {
			want := zamokpb.Outcome_OUTCOME_NOT_DONE
			if a.State.Ticket == again {
				want = zamokpb.Outcome_OUTCOME_UNKNOWN // there may be an earlier transmission
			}
			assert.Equal(t, want, a.Error.Outcome)
			refused = append(refused, [2]uint64{a.State.Ticket, a.Through})
		}
	}
	assert.Equal(t, [][2]uint64{{crowdedMax + 1, gap - 1}, {gap + 1, again - 1}, {again, 0},
		{again + 1, sent}}, refused)
	require.Eventually(t, func() bool { return st.pending.Load() == 0 }, patience,
		clock.Millisecond.Duration())
	var known []uint64
	n.raft.View(func(m *fsm.Machine) {
		for ticket := uint64(1); ticket <= sent; ticket++ {
			if _, found := m.Ticket(fsm.TicketRef{Session: st.queue.Session,
				Ticket: ticket}); found {
				known = append(known, ticket)
			}
		}
	})
	assert.Len(t, known, crowdedMax)
	assert.EqualValues(t, crowdedMax, known[crowdedMax-1], "no other was done")
}

// refusing is a connection whose every frame has so many acquisitions that are refused.
type refusing struct {
	Frames
	stream *stream
	counts []int64
	read   []time.Time // when each was
}

func (r *refusing) Recv() (*zamokpb.ClientFrame, error) {
	r.read = append(r.read, time.Now())
	if len(r.read) > len(r.counts) {
		return nil, io.EOF
	}
	r.stream.overloads.Add(r.counts[len(r.read)-1])
	return frameOf(), nil
}

// A stream that ended does not wait for room, nor does it look again and again whether there is
// some.
func TestAStreamThatEndedWaitsForNoRoom(t *testing.T) {
	n := startAlone(t)
	st, other := attachDirectly(t, n, 1), attachDirectly(t, n, 2)
	st.ended = make(chan struct{})
	close(st.ended)
	st.acquiring.Add(crowdedMax)
	defer stall(t, n)()
	fillQueue(t, n, other.queue.Session)
	arrived := time.Now()
	assert.False(t, st.hasRoom(arrived.Add(patience)))
	assert.Less(t, time.Since(arrived), patience)
}

// The more of a stream is refused because of overload, the longer it is not read, up to a limit.
func TestRefusalsPauseTheReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &stream{ctx: t.Context(), ended: make(chan struct{}), queue: &push.Queue{}}
		wire := &refusing{stream: st, counts: []int64{0, 1, 0, 20, 1 << 40}}
		st.frames = wire
		require.ErrorIs(t, st.readFrames(), io.EOF)
		var delays []time.Duration
		for i := range wire.counts {
			delays = append(delays, wire.read[i+1].Sub(wire.read[i]))
		}
		assert.Equal(t, []time.Duration{0, refusalDelay, 0, 20 * refusalDelay, refusalDelayMax},
			delays)

		wire.counts, wire.read = []int64{1 << 40}, nil
		close(st.ended)
		require.ErrorIs(t, st.readFrames(), io.EOF)
		assert.Equal(t, wire.read[0], wire.read[1], "it does not wait once the stream has ended")
	})
}

// A silent stream ends with an error that names that; one that sent OpenStream never ends with
// NOT_DONE.
func TestSilence(t *testing.T) {
	st := &stream{}
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, st.openTimedOut().Info.Outcome)
	st.received.Add(1)
	assert.Equal(t, zamokpb.Code_CODE_UNKNOWN, st.openTimedOut().Info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, st.openTimedOut().Info.Outcome)
}

// The largest commands of one stream take a small part of what the node takes from all, and are
// refused beyond that; when some have their answers there is room again.
func TestAStreamsCommandsAreBoundedInBytes(t *testing.T) {
	const some = pendingBytesMax / (64 << 10)
	n := startAlone(t)
	st, taken := attachDirectly(t, n, 1), 0
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
	release := stall(t, n)
	for ; !refused(); taken++ {
		c := widest(st.queue.Session, uint64(taken)+1)
		st.submit(push.Command{Kind: zamokpb.Command_COMMAND_ACQUIRE, Ticket: c.Ticket,
			First: true}, c)
		assert.LessOrEqual(t, st.pendingBytes.Load(), int64(pendingBytesMax))
	}
	release()
	require.Eventually(t, func() bool { return st.pending.Load() == 0 }, patience,
		clock.Millisecond.Duration())
	assert.Zero(t, st.pendingBytes.Load())
	assert.Greater(t, taken, some)
}
