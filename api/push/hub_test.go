package push

import (
	"context"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/metrics"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// stateOf is what the stream knows after its Attach.
func stateOf(id session.ID, a fsm.Applied) *zamokpb.SessionState {
	return &zamokpb.SessionState{Session: uint64(id), Attachment: a.Results[0].Index,
		Ttl: int64(a.Results[0].TTL)}
}

// leading is a hub with a state machine, and what applies an entry there.
func leading(t *testing.T) (*Hub, *fsm.Machine, func(...fsm.Command) fsm.Applied) {
	h, m := NewHub(metrics.New()), fsm.New()
	h.SetLeading(true)
	apply := func(commands ...fsm.Command) fsm.Applied {
		entry := fsm.Entry{Version: m.Version(), Commands: commands}
		a, err := m.Apply(1, entry.Append(nil))
		require.NoError(t, err)
		require.Equal(t, fsm.OK, a.Refused)
		h.Applied(m, a)
		return a
	}
	apply(&fsm.LeaderStart{Node: "n1", Nonce: 1, Cluster: fsm.ClusterID{1}})
	return h, m, apply
}

// A queue with many messages is sent no further position of a ticket, but the first one.
func TestTheFirstPositionIsSentToAFullQueue(t *testing.T) {
	h, m, apply := leading(t)
	id := apply(&fsm.OpenSession{Secret: session.Hash{1},
		Settings: session.Settings{TTL: clock.Minute}}).Results[0].Session
	q, refused := h.Claim(stateOf(id, apply(&fsm.Attach{Session: id, Secret: session.Hash{1}})))
	require.Nil(t, refused)
	for ticket := range uint64(2) {
		apply(&fsm.Acquire{Session: id, Ticket: ticket + 1,
			Items: []fsm.Item{{Name: "a", Mode: fsm.Exclusive}}, Wait: fsm.Forever})
	}
	h.request(q, 2, 1)
	for q.hasRoom() {
		q.add(&zamokpb.ServerMessage{}, true)
	}
	r := &positionRound{Hub: h, machine: m, blockers: make(map[string][]*zamokpb.Blocker)}
	r.ticket(fsm.TicketRef{Session: id, Ticket: 2})
	sent := len(q.messages)
	require.Equal(t, "a", q.messages[sent-1].GetPosition().GetName())
	q.positions[2].ahead = 1
	r.ticket(fsm.TicketRef{Session: id, Ticket: 2})
	require.Len(t, q.messages, sent)
}

// A session may end in the very entry in which it attached. Its stream is sent both, and the hub
// keeps nothing of it.
func TestEndedAsItAttached(t *testing.T) {
	h, _, apply := leading(t)
	secret := session.Hash{1}
	id := apply(&fsm.OpenSession{Secret: secret,
		Settings: session.Settings{TTL: clock.Minute}}).Results[0].Session
	a := apply(&fsm.Attach{Session: id, Secret: secret}, &fsm.ExpireSession{Session: id})
	box, f := h.Claim(stateOf(id, a))
	require.Nil(t, f)
	frame, last := box.Take()
	sent := frame.GetMessages()
	require.Len(t, sent, 2)
	assert.Equal(t, uint64(id), sent[0].GetSession().Session)
	assert.EqualValues(t, clock.Minute, sent[0].GetSession().Ttl)
	assert.NotNil(t, sent[1].GetSessionEnded())
	assert.True(t, last)
	h.Leave(box)
	assert.Empty(t, h.attached)

	// It was applied, and is not served: so the error must leave open what was done.
	id = apply(&fsm.OpenSession{Secret: session.Hash{2},
		Settings: session.Settings{TTL: clock.Minute}}).Results[0].Session
	h.SetLeading(false)
	a = apply(&fsm.Attach{Session: id, Secret: session.Hash{2}})
	_, f = h.Claim(stateOf(id, a))
	assert.Equal(t, zamokpb.Code_CODE_NOT_LEADER, f.Info.Code)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, f.Info.Outcome)
	assert.Empty(t, h.attached)
}

// From the event to the frame: each message is allocated once, beside the frame and its list.
func TestPushingAllocatesLittle(t *testing.T) {
	const grants = 10
	h := NewHub(metrics.New())
	h.SetLeading(true)
	q := boxed(t, h, 1)
	var a fsm.Applied
	for i := range uint64(grants) {
		a.Events = append(a.Events, fsm.Event{
			Kind: fsm.EvGranted, TicketRef: fsm.TicketRef{Session: 1, Ticket: i + 1}, Index: i + 1,
			Token: i + 1,
		})
	}
	var frame *zamokpb.ServerFrame
	push := func() {
		h.Applied(nil, a)
		<-q.Wake()
		frame, _ = q.Take()
		q.Sent()
	}
	push()
	each := testing.AllocsPerRun(100, push)
	require.Len(t, frame.Messages, grants)
	assert.LessOrEqual(t, each, float64(grants+2))
}

// The first frame is measured as well: changes may be queued behind its SessionState.
func TestTheFirstFrameIsMeasured(t *testing.T) {
	counted := metrics.New()
	h := NewHub(counted)
	h.SetLeading(true)
	q := boxed(t, h, 1)
	frame, _ := q.Take()
	require.NotNil(t, frame)
	q.Sent()
	page := httptest.NewRecorder()
	counted.Serve(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil), nil, 0,
		"", nil, nil)
	assert.Contains(t, page.Body.String(), `zamok_commit_stage_seconds_count{stage="push"} 1`)
}

// The time of a request is removed when it is granted, ends or is refused.
func TestRequestTimesAreRemoved(t *testing.T) {
	h := NewHub(metrics.New())
	h.SetLeading(true)
	q := boxed(t, h, 1)
	for ticket := range uint64(4) {
		q.Requested(ticket)
	}
	require.Len(t, q.requested, 4)
	for ticket, kind := range []fsm.EventKind{fsm.EvGranted, fsm.EvRefused} {
		h.Applied(nil,
			fsm.Applied{
				Events: []fsm.Event{{Kind: kind,
					TicketRef: fsm.TicketRef{Session: 1, Ticket: uint64(ticket)}}}})
	}
	acquire := Command{Kind: zamokpb.Command_COMMAND_ACQUIRE, Ticket: 2}
	q.Answer(acquire, &raftnode.Answer{Result: fsm.Result{State: fsm.Waiting}}, nil)
	require.Len(t, q.requested, 2, "it waits")
	q.Answer(acquire, &raftnode.Answer{Result: fsm.Result{State: fsm.Granted, Token: 1, Index: 2}},
		nil)
	acquire.Ticket = 3
	q.Answer(acquire, &raftnode.Answer{}, superseded(1))
	assert.Empty(t, q.requested)
}

// A call knows whether another one has requested its ticket, also if the ticket was granted in
// between: its drop would end what the other one is answered with.
func TestALaterCallOwnsAGrantedTicket(t *testing.T) {
	h, ref := NewHub(metrics.New()), fsm.TicketRef{Session: 1, Ticket: 1}
	h.SetLeading(true)
	earlier := h.Await(ref, false)
	assert.True(t, earlier.IsOnly())
	h.Applied(nil,
		fsm.Applied{Events: []fsm.Event{{Kind: fsm.EvGranted, TicketRef: ref, Token: 7}}})
	later := h.Await(ref, false)
	h.Applied(nil,
		fsm.Applied{Events: []fsm.Event{{Kind: fsm.EvReleased, TicketRef: ref, Token: 7}}})
	assert.Equal(t, fsm.Granted, (<-earlier.Done()).State.State)
	assert.Equal(t, fsm.Ended, (<-later.Done()).State.State)
	assert.False(t, earlier.IsOnly())
	assert.False(t, later.IsOnly(), "a call that was sent later may arrive earlier")
	later.Cancel()
	assert.True(t, earlier.IsOnly(), "the other one broke as well")
	later = h.Await(ref, false)
	later.Answered()
	assert.False(t, earlier.IsOnly())
	earlier.Cancel()
	after := h.Await(ref, true)
	assert.False(t, after.IsOnly(), "granted by the answer of another call")
	after.Cancel()
	h.SetLeading(false)
	unknown := h.Await(ref, false)
	assert.False(t, unknown.IsOnly(), "a node that does not lead may not know that it is granted")
	unknown.Cancel()
	assert.Empty(t, h.waiting)
}

// refusing is a node that refuses so many commands as not leading, and passes on the next one.
type refusing struct {
	machine *fsm.Machine
	left    atomic.Int32
	taken   chan fsm.Command
}

func (r *refusing) View(f func(*fsm.Machine)) { f(r.machine) }

func (r *refusing) Submit(_ context.Context, c fsm.Command, done raftnode.Done) {
	if r.left.Add(-1) >= 0 {
		done(raftnode.Answer{}, &raftnode.NotLeaderError{})
		return
	}
	done(raftnode.Answer{}, nil)
	r.taken <- c
}

// While a leadership transfer is tried, a node takes no command. If it leads on, the session of a
// broken stream is released all the same.
func TestAReleaseOnDisconnectIsProposedUntilItIsTaken(t *testing.T) {
	h, m := NewHub(metrics.New()), fsm.New()
	h.SetLeading(true)
	node := &refusing{machine: m, taken: make(chan fsm.Command, 1)}
	node.left.Store(2)
	h.Start(node)
	secret := session.Hash{1}
	entry := fsm.Entry{Version: m.Version(), Commands: []fsm.Command{
		&fsm.LeaderStart{Node: "n1", Nonce: 1, Cluster: fsm.ClusterID{1}},
		&fsm.OpenSession{Secret: secret,
			Settings: session.Settings{TTL: clock.Minute, ReleaseOnDisconnect: 1}},
	}}
	a, err := m.Apply(1, entry.Append(nil))
	require.NoError(t, err)
	id := a.Results[1].Session
	entry.Commands = []fsm.Command{&fsm.Attach{Session: id, Secret: secret}}
	a, err = m.Apply(1, entry.Append(nil))
	require.NoError(t, err)
	h.Applied(m, a)
	h.Broken(h.attached[id])
	assert.Equal(t, &fsm.ReleaseOnDisconnect{Session: id, Attachment: a.Results[0].Index,
		Index: m.Stamp().Index}, <-node.taken)
	assert.Zero(t, h.Counts().Broken)
}
