package api

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"zamok/api/gate"
	"zamok/api/push"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

const (
	stateWaiting = zamokpb.State_STATE_WAITING
	stateGranted = zamokpb.State_STATE_GRANTED
	stateEnded   = zamokpb.State_STATE_ENDED
)

// TestStream runs the stories of the protocol, on one node.
func TestStream(t *testing.T) {
	node := startCluster(t, 1, nil).leader()
	for _, story := range []struct {
		name string
		run  func(*testing.T, *Node)
	}{
		{"open and resume", storyResume}, {"hand over", storyHandOver},
		{"confirmations", storyConfirmations},
		{"repeated tickets", storyRepeats}, {"refusals", storyRefusals},
		{"downgrade", storyDowngrade},
		{"close", storyClose}, {"expired by operator", storyExpiredByOperator},
		{"expired", storyExpired}, {"slow reader", storySlow},
		{"refused attachments", storyRefusedAttachments}, {"positions", storyPositions},
		{"contended", storyContended},
	} {
		t.Run(story.name, func(t *testing.T) {
			t.Parallel()
			story.run(t, node)
		})
	}
	t.Cleanup(func() { // after the stories
		require.Eventually(t, func() bool {
			return node.server.hub.Counts() == push.Counts{} && broken(node) == 0
		}, patience, clock.Millisecond.Duration(), "the hub keeps nothing of streams that ended")
	})
}

func storyResume(t *testing.T, n *Node) {
	c := call(t, n)
	w := openStream(t, c, settings(clock.Minute))
	assert.EqualValues(t, clock.Minute, w.state.Ttl)
	assert.Equal(t, "n1", w.state.Node)
	assert.Empty(t, w.state.Tickets)
	w.send(exclusive(1, "resume", 0))
	token := w.is(1, stateGranted).State.Token
	w.send(exclusive(2, "resume", -1))
	require.Equal(t, stateWaiting, w.answer().State.State)
	w.send(exclusive(3, "resume", 0))
	w.is(3, stateEnded)

	next := w.again(c)
	require.Len(t, next.state.Tickets, 3)
	assert.Equal(t, token, next.state.Tickets[0].Token)
	for i, state := range []zamokpb.State{stateGranted, stateWaiting, stateEnded} {
		assert.Equal(t, state, next.state.Tickets[i].State)
	}
	info := infoOf(t, w.end())
	assert.Equal(t, zamokpb.Code_CODE_SUPERSEDED, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, info.Outcome)

	next.send(drop(1))
	next.is(1, stateEnded)
	next.is(2, stateGranted)

	// The same secret without the id opens the same session.
	last := dial(t, c)
	last.Secret = w.Secret
	last.send(
		openMessage(&zamokpb.OpenStream{Secret: w.Secret, Settings: settings(2 * clock.Minute)}))
	last.readState()
	assert.Equal(t, w.Session, last.Session)
	assert.EqualValues(t, clock.Minute, last.state.Ttl, "it keeps its ttl")
	last.hangUp()
}

func storyHandOver(t *testing.T, n *Node) {
	c := call(t, n)
	a, b := openStream(t, c, settings(clock.Minute)), openStream(t, c, settings(clock.Minute))
	a.send(exclusive(1, "hand", -1))
	first := a.is(1, stateGranted)
	assert.Equal(t, first.State.Token, first.Index)
	b.send(exclusive(1, "hand", -1))
	answer := b.answer()
	assert.Equal(t, zamokpb.Command_COMMAND_ACQUIRE, answer.Command)
	assert.Equal(t, stateWaiting, answer.State.State)
	a.send(drop(1))
	assert.Equal(t, zamokpb.Reason_REASON_DROPPED, a.is(1, stateEnded).State.Reason)
	assert.Greater(t, b.is(1, stateGranted).State.Token, first.State.Token)
}

// A KeepAliveAck carries the clock of the very frame that was applied, never of one that is still
// in flight, or none, and counts the changes that were sent.
func storyConfirmations(t *testing.T, n *Node) {
	w := openStream(t, call(t, n), settings(clock.Minute))
	index, count, last, confirmed := uint64(0), uint64(0), int64(0), 0
	empty := make(map[int]bool) // the frames with nothing in them
	receive := func() {
		switch m := w.next(); {
		case m.GetChange() != nil:
			require.Greater(t, m.GetChange().Index, index)
			index = m.GetChange().Index
			count++
		case m.GetKeepAliveAck() != nil:
			h := m.GetKeepAliveAck()
			require.Equal(t, count, h.Changes, "it counts the changes that were sent before")
			require.GreaterOrEqual(t, h.Time, last)
			last = h.Time
			if len(h.Sent) == 0 { // the answer to a KeepAlive behind something unanswered
				return
			}
			frame := 0
			for i := confirmed + 1; i <= w.frames; i++ {
				if string(w.sent(i)) == string(h.Sent) {
					frame = i
				}
			}
			require.NotZero(t, frame, "%s is of no frame that was sent and not confirmed", h.Sent)
			require.False(t, empty[frame], "a frame with nothing in it is not a renewal")
			confirmed = frame
		}
	}
	for i := range 20 {
		w.send(exclusive(uint64(i+1), "confirm", 0), drop(uint64(i+1)))
		w.send(keepAlive())
		renewal := w.frames
		w.send() // confirms nothing
		empty[w.frames] = true
		for confirmed < renewal {
			receive()
		}
	}
}

func storyRepeats(t *testing.T, n *Node) {
	w := openStream(t, call(t, n), settings(clock.Minute))
	w.send(exclusive(1, "repeat", -1))
	token := w.is(1, stateGranted).State.Token
	w.send(exclusive(1, "repeat", -1), exclusive(1, "another", -1))
	for range 2 {
		answer := w.answer()
		assert.Nil(t, answer.Error)
		assert.Equal(t, token, answer.State.Token)
	}
	w.send(drop(1))
	w.is(1, stateEnded)
	w.send(drop(1))
	assert.Equal(t, stateEnded, w.answer().State.State)
	w.send(exclusive(1, "repeat", -1))
	answer := w.answer()
	assert.Equal(t, zamokpb.Code_CODE_TICKET_ENDED, answer.Error.GetCode())
	assert.Equal(t, zamokpb.Reason_REASON_DROPPED, answer.Error.Reason)
	w.send(exclusive(fsm.TicketWindow+1, "repeat", -1))
	answer = w.answer()
	assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED, answer.Error.GetCode())
	assert.Equal(t, "ticket", answer.Error.Field)
	w.AckedThrough = 1
	w.send(exclusive(fsm.TicketWindow+1, "repeat", -1))
	w.is(fsm.TicketWindow+1, stateGranted)
}

func storyRefusals(t *testing.T, n *Node) {
	c := call(t, n)
	a, b := openStream(t, c, settings(clock.Minute)), openStream(t, c, settings(clock.Minute))
	a.send(acquire(&zamokpb.Acquire{
		Ticket: 1, Owner: "Ann", Meta: []byte("host 7"),
		Items: []*zamokpb.Item{{Name: "taken", Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
	}))
	token := a.is(1, stateGranted).State.Token
	b.send(exclusive(1, "taken", 0))
	info := b.answer().Error
	assert.Equal(t, zamokpb.Code_CODE_NOT_ACQUIRED, info.GetCode())
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
	require.Len(t, info.Blockers, 1)
	assert.EqualExportedValues(t, &zamokpb.Blocker{
		Name: "taken", By: zamokpb.BlockedBy_BLOCKED_BY_HOLDER, Session: a.Session, Ticket: 1,
		Token: token,
		Owner: "Ann", Label: "client", Meta: []byte("host 7"),
	}, info.Blockers[0])

	b.send(acquire(&zamokpb.Acquire{
		Ticket: 2,
		Items: []*zamokpb.Item{{Name: "taken", Mode: zamokpb.Mode_MODE_PERMITS, Permits: 1,
			Of: 2}},
	}))
	info = b.answer().Error
	assert.Equal(t, zamokpb.Code_CODE_KIND_MISMATCH, info.GetCode())
	assert.Equal(t, "taken", info.Field)

	a.send(acquire(&zamokpb.Acquire{
		Ticket: 2, Owner: "Ann", Wait: -1,
		Items: []*zamokpb.Item{{Name: "taken", Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
	}))
	info = a.answer().Error
	assert.Equal(t, zamokpb.Code_CODE_DEADLOCK, info.GetCode())
	assert.Len(t, info.Cycle, 2)

	b.send(downgrade(1))
	assert.Equal(t, zamokpb.Code_CODE_NOT_HELD, b.answer().Error.GetCode())
}

func storyDowngrade(t *testing.T, n *Node) {
	c := call(t, n)
	a, b := openStream(t, c, settings(clock.Minute)), openStream(t, c, settings(clock.Minute))
	a.send(exclusive(1, "down", 0))
	a.is(1, stateGranted)
	b.send(acquire(&zamokpb.Acquire{
		Ticket: 1, Wait: -1, Items: []*zamokpb.Item{{Name: "down", Mode: zamokpb.Mode_MODE_SHARED}},
	}))
	require.Equal(t, stateWaiting, b.answer().State.State)
	a.send(downgrade(1))
	assert.True(t, a.is(1, stateGranted).Downgraded)
	b.is(1, stateGranted)
}

func storyClose(t *testing.T, n *Node) {
	c := call(t, n)
	w := openStream(t, c, settings(clock.Minute))
	w.send(exclusive(1, "closed", 0))
	w.is(1, stateGranted)
	w.send(closeSession())
	require.NoError(t, w.wire.CloseSend())
	assert.Equal(t, zamokpb.Reason_REASON_CLOSED, w.is(1, stateEnded).State.Reason)
	var end *zamokpb.SessionEnded
	for end == nil {
		end = w.next().GetSessionEnded()
	}
	assert.Equal(t, zamokpb.Reason_REASON_CLOSED, end.Reason)
	assert.NoError(t, w.end())
}

func storyExpiredByOperator(t *testing.T, n *Node) {
	c := call(t, n)
	w := openStream(t, c, settings(clock.Minute))
	w.send(exclusive(1, "expired by operator", 0))
	w.is(1, stateGranted)
	_, err := c.admin.ExpireSession(soon(t),
		&zamokpb.ExpireSessionRequest{Session: w.Session, Reason: "of the test"})
	require.NoError(t, err)
	lost := w.is(1, stateEnded)
	assert.Equal(t, zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR, lost.State.Reason)
	assert.Equal(t, "of the test", lost.Text)
	assert.NoError(t, w.end())
}

func storyExpired(t *testing.T, n *Node) {
	c := call(t, n)
	// the next frame arrives in time also on a slow machine
	w := openStream(t, c, settings(2*fsm.TTLMin))
	w.send(exclusive(1, "expired", 0))
	w.is(1, stateGranted)
	assert.Equal(t, zamokpb.Reason_REASON_EXPIRED, w.is(1, stateEnded).State.Reason)
	assert.NoError(t, w.end())

	late := dial(t, c)
	late.send(openMessage(&zamokpb.OpenStream{Secret: w.Secret, Session: w.Session}))
	assert.Equal(t, zamokpb.Code_CODE_NO_SESSION, infoOf(t, late.end()).Code)
}

// A reader that does not read is cut when its send queue is full, and delays no other stream.
func storySlow(t *testing.T, n *Node) {
	// fixed: gRPC would buffer more and more for a client that does not read
	const window = 64 << 10
	conn, err := grpc.NewClient("passthrough:///"+n.Client(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window))
	require.NoError(t, err)
	defer conn.Close()
	c := caller{ZamokClient: zamokpb.NewZamokClient(conn)}
	w := openStream(t, c, settings(clock.Minute))
	var many []*zamokpb.ClientMessage
	for range gate.FrameMessagesMax {
		many = append(many, drop(1))
	}
	const plenty = 500 // frames; what waits is memory, so it must be cut long before
	var said atomic.Int64
	quit, quiet := make(chan struct{}), make(chan struct{})
	stop := sync.OnceFunc(func() { close(quit) })
	defer stop()
	go func() { // Send blocks when the other end stops reading
		defer close(quiet)
		for {
			select {
			case <-quit:
				return
			default:
				w.send(many...)
				said.Add(1)
			}
		}
	}()
	cut := func() bool {
		return strings.Contains(n.server.metricsText(t),
			`zamok_streams_cut_total{reason="slow_reader"} 1`)
	}
	require.Eventually(t, func() bool { return cut() || said.Load() > plenty }, patience,
		clock.Millisecond.Duration())
	require.True(t, cut())
	stop()
	info := infoOf(t, w.end())
	assert.Equal(t, zamokpb.Code_CODE_SLOW_READER, info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, info.Outcome)
	<-quiet
	next := w.again(c)
	next.send(exclusive(2, "slow", 0))
	next.is(2, stateGranted)
}

// What is applied waits for no client. While the writer of a stream is stuck, because its client
// does not read, the locks of others go from hand to hand, and when it reads, everything is there.
func TestAClientThatDoesNotReadStopsNothing(t *testing.T) {
	t.Parallel()
	// more than the window and gRPC's buffers, and less than is cut
	const window, rounds, frames = 64 << 10, 2, 5
	n := startAlone(t)
	conn, err := grpc.NewClient("passthrough:///"+n.Client(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window))
	require.NoError(t, err)
	defer conn.Close()
	slow := openStream(t, caller{ZamokClient: zamokpb.NewZamokClient(conn)}, settings(clock.Minute))
	var many []*zamokpb.ClientMessage
	for i := range gate.FrameMessagesMax {
		ticket := uint64(rounds + 1) // is ended: the answer is short
		if i%4 == 0 {
			ticket = 0 // is refused, in many words
		}
		many = append(many, drop(ticket))
	}
	other := openStream(t, call(t, n), settings(clock.Minute))
	acquires := 0
	for round := range uint64(rounds) {
		for range frames {
			slow.send(many...)
		}
		name := fmt.Sprint("round ", round) // the slow client has it when all its drops are applied
		polls := 0
		require.Eventually(t, func() bool {
			if polls++; polls%1000 == 1 { // it may be refused, because it waits too long
				slow.send(exclusive(round+1, name, 0))
				acquires++
			}
			held := false
			n.Raft().View(func(m *fsm.Machine) {
				_, held = m.Ticket(fsm.TicketRef{Session: session.ID(slow.Session),
					Ticket: round + 1})
			})
			return held
		}, patience, clock.Millisecond.Duration(), "it is applied")
		for i := range uint64(10) {
			ticket := 10*round + i + 1
			other.send(exclusive(ticket, "other", 0))
			other.is(ticket, stateGranted)
			other.send(drop(ticket))
			other.is(ticket, stateEnded)
			other.AckedThrough = ticket
		}
	}
	bytes := 0
	for range rounds*frames*gate.FrameMessagesMax + acquires {
		m := slow.next()
		for m.GetKeepAliveAck() != nil {
			m = slow.next()
		}
		bytes += proto.Size(m)
	}
	require.Greater(t, bytes, 4*window)
}

func storyRefusedAttachments(t *testing.T, n *Node) {
	c := call(t, n)
	w := openStream(t, c, settings(clock.Minute))
	for name, wrong := range map[string]struct {
		hello *zamokpb.OpenStream
		code  zamokpb.Code
		field string
	}{
		"wrong secret": {&zamokpb.OpenStream{Secret: newSecret(), Session: w.Session},
			zamokpb.Code_CODE_WRONG_SECRET, ""},
		"no session": {&zamokpb.OpenStream{Secret: newSecret(), Session: 1 << 60},
			zamokpb.Code_CODE_NO_SESSION, ""},
		"short": {&zamokpb.OpenStream{Secret: []byte("short")}, zamokpb.Code_CODE_INVALID,
			"secret"},
		"no settings": {&zamokpb.OpenStream{Secret: newSecret()}, zamokpb.Code_CODE_INVALID,
			"settings"},
		"no ttl": {&zamokpb.OpenStream{Secret: newSecret(), Settings: settings(0)},
			zamokpb.Code_CODE_INVALID, "ttl"},
	} {
		other := dial(t, c)
		other.send(openMessage(wrong.hello))
		info := infoOf(t, other.end())
		assert.Equal(t, wrong.code, info.Code, name)
		assert.Equal(t, wrong.field, info.Field, name)
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome, name)
	}
	w.send(exclusive(1, "unharmed", 0))
	w.is(1, stateGranted)
}
