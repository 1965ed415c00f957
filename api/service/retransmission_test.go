package service

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// fillQueue fills the queue in front of a log that stands still: two entries are in flight, and
// more than one waits.
func fillQueue(t *testing.T, n *node, other session.ID) {
	for ticket := uint64(1); ticket <= 4096; ticket++ {
		c := &fsm.Acquire{Session: other, Ticket: ticket,
			Items: []fsm.Item{{Name: "other", Mode: fsm.Exclusive}}}
		n.raft.Submit(t.Context(), c, func(raftnode.Answer, error) {})
	}
}

// refusals are the outcomes of the refused acquisitions among what a stream is about to send, by
// ticket.
func refusals(st *stream) map[uint64]zamokpb.Outcome {
	outcomes := make(map[uint64]zamokpb.Outcome)
	frame, _ := st.queue.Take()
	for _, m := range frame.GetMessages() {
		if a := m.GetAnswer(); a.GetError() != nil {
			for ticket := a.State.Ticket; ticket <= max(a.State.Ticket, a.Through); ticket++ {
				outcomes[ticket] = a.Error.Outcome
			}
		}
	}
	return outcomes
}

// TestARefusedRetransmissionIsInDoubt: a stream answers "not done" to an acquisition only if that
// is marked as the first transmission, whatever the refusal is for.
func TestARefusedRetransmissionIsInDoubt(t *testing.T) {
	t.Parallel()
	denied := false
	n := startAlone(t)
	other, number := attachDirectly(t, n, 255).queue.Session, byte(0)
	for name, refuse := range map[string]func(*stream) (end func()){
		"before the service": func(*stream) func() {
			denied = true
			return func() { denied = false }
		},
		"without room in the queue": func(st *stream) func() {
			fillQueue(t, n, other)
			st.acquiring.Add(crowdedMax)
			return func() { st.acquiring.Add(-crowdedMax) }
		},
		"with too many commands of the stream": func(st *stream) func() {
			st.pending.Add(pendingMax)
			return func() { st.pending.Add(-pendingMax) }
		},
		"with too many bytes of the stream": func(st *stream) func() {
			st.pendingBytes.Add(pendingBytesMax)
			return func() { st.pendingBytes.Add(-pendingBytesMax) }
		},
		"by the full queue": func(st *stream) func() {
			c := &fsm.Acquire{Session: st.queue.Session, Ticket: 1 << 40,
				Items: []fsm.Item{{Name: "full", Mode: fsm.Exclusive}}}
			for range 1<<15 + 4096 {
				n.raft.Submit(t.Context(), c, func(raftnode.Answer, error) {})
			}
			return func() {}
		},
	} {
		number++
		t.Run(name, func(t *testing.T) {
			const done, inFlight, first = 1, 2, 3
			st := attachDirectly(t, n, uint64(number))
			send := func(tickets ...uint64) {
				t.Helper()
				frame := frameOf()
				st.frames = noFrames{denied: &denied}
				for _, ticket := range tickets {
					m := exclusive(ticket, fmt.Sprint(number, "/", ticket), -1)
					m.First = ticket == first
					frame.Messages = append(frame.Messages, acquire(m))
				}
				require.NoError(t, st.handle(frame))
			}
			known := func(ticket uint64) (yes bool) {
				ref := fsm.TicketRef{Session: st.queue.Session, Ticket: ticket}
				n.raft.View(func(m *fsm.Machine) { _, yes = m.Ticket(ref) })
				return yes
			}
			drained := func() bool { return st.pending.Load() == 0 }
			send(done)
			require.Eventually(t, drained, patience, clock.Millisecond.Duration())
			release := stall(t, n)
			send(inFlight)
			end := refuse(st)
			st.queue.Take()
			unknown, not := zamokpb.Outcome_OUTCOME_UNKNOWN, zamokpb.Outcome_OUTCOME_NOT_DONE
			send(done, inFlight, first)
			assert.Equal(t, map[uint64]zamokpb.Outcome{done: unknown, inFlight: unknown,
				first: not}, refusals(st))
			end()
			release()
			require.Eventually(t, drained, patience, clock.Millisecond.Duration())
			assert.True(t, known(inFlight))
			assert.False(t, known(first))
			// again while the queue is full
			for began := time.Now(); !known(first) && time.Since(began) < patience; {
				send(first)
				require.Eventually(t, drained, patience, clock.Millisecond.Duration())
			}
			assert.True(t, known(first), "what was not done may be sent again")
		})
	}
}

// TestAnAcquisitionOutlivesTheNodeThatRelaysIt: a node that was removed, and ends, breaks a call
// while its acquisition is on its way through the log. That is not its caller's doing, who requests
// the same ticket from another node.
func TestAnAcquisitionOutlivesTheNodeThatRelaysIt(t *testing.T) {
	t.Parallel()
	n := startAlone(t)
	ctx, cancel := context.WithCancel(
		soon(t, testCaller{removed: "n2, which relays it, was removed"}))
	secret := make([]byte, 16)
	opened, err := n.OpenSession(ctx,
		&zamokpb.OpenSessionRequest{Secret: secret,
			Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute)}})
	require.NoError(t, err)
	ref := fsm.TicketRef{Session: session.ID(opened.Session), Ticket: 1}
	release, done := stall(t, n), make(chan error)
	go func() {
		_, err := n.Acquire(ctx,
			&zamokpb.AcquireRequest{Session: opened.Session, Secret: secret,
				Acquire: exclusive(1, "x", -1)})
		done <- err
	}()
	require.Eventually(t, func() bool { return n.Hub.Counts().Calls == 1 }, patience,
		clock.Millisecond.Duration())
	cancel()
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, wire.Explain(<-done).Info.Outcome)
	release()
	_, _, err = n.raft.ReadBarrier(soon(t, testCaller{})) // behind a drop, if there was one
	require.NoError(t, err)
	n.raft.View(func(m *fsm.Machine) {
		ticket, _ := m.Ticket(ref)
		assert.Equal(t, fsm.Granted, ticket.State)
	})
}

// A drop that was refused while the node was overloaded is submitted again, but not after a later
// call.
func TestALateDropOfABrokenCallIsLeftOut(t *testing.T) {
	n, secret := startAlone(t), make([]byte, 16)
	ctx := soon(t, testCaller{})
	opened, err := n.OpenSession(ctx,
		&zamokpb.OpenSessionRequest{Secret: secret,
			Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute)}})
	require.NoError(t, err)
	ref := fsm.TicketRef{Session: session.ID(opened.Session), Ticket: 1}
	earlier := n.Hub.Await(ref, false)
	_, err = n.Acquire(ctx, &zamokpb.AcquireRequest{Session: opened.Session, Secret: secret,
		Acquire: exclusive(1, "x", 0)})
	require.NoError(t, err)
	n.dropFor(ctx, earlier, &fsm.Drop{Session: ref.Session, Ticket: ref.Ticket}, dropTries)
	_, _, err = n.raft.ReadBarrier(ctx)
	require.NoError(t, err)
	n.raft.View(func(m *fsm.Machine) {
		ticket, _ := m.Ticket(ref)
		assert.Equal(t, fsm.Granted, ticket.State)
	})
	assert.Zero(t, n.Hub.Counts().Calls)
}
