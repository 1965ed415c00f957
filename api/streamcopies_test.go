package api

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/access/rules"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// stall has nothing applied until release is called. The state machine can be read meanwhile.
func stall(t *testing.T, n *Node) (release func()) {
	reached, released := make(chan struct{}), make(chan struct{})
	n.Raft().Submit(t.Context(), &fsm.ExpireSession{Session: 1 << 60}, func(raftnode.Answer, error) {
		close(reached)
		<-released
	})
	<-reached
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release) // before the node stops
	return release
}

// fillQueue fills the queue in front of a log that stands still: two entries are in flight, and more than one waits.
func fillQueue(t *testing.T, n *Node, other session.ID) {
	for ticket := uint64(1); ticket <= 4096; ticket++ {
		c := &fsm.Acquire{Session: other, Ticket: ticket, Items: []fsm.Item{{Name: "other", Mode: fsm.Exclusive}}}
		n.Raft().Submit(t.Context(), c, func(raftnode.Answer, error) {})
	}
}

// refusals are the outcomes of the refused acquisitions among what a stream is about to send, by ticket.
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

// TestARefusedCopyIsInDoubt: a stream answers "not done" to an acquisition only if that is marked as the first of its copies, whatever
// the refusal is for.
func TestARefusedCopyIsInDoubt(t *testing.T) {
	t.Parallel()
	var denied atomic.Bool
	nothing, err := rules.Parse([]byte("rules: []"))
	require.NoError(t, err)
	n := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Rules = func() *rules.Set {
			if denied.Load() {
				return nothing
			}
			return nil
		}
	}).leader()
	other, number := attachDirectly(t, n, 255).queue.Session, byte(0)
	for name, refuse := range map[string]func(*stream) (end func()){
		"for the access rules": func(*stream) func() {
			denied.Store(true)
			return func() { denied.Store(false) }
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
			c := &fsm.Acquire{Session: st.queue.Session, Ticket: 1 << 40, Items: []fsm.Item{{Name: "full", Mode: fsm.Exclusive}}}
			for range 1<<15 + 4096 {
				n.Raft().Submit(t.Context(), c, func(raftnode.Answer, error) {})
			}
			return func() {}
		},
	} {
		number++
		t.Run(name, func(t *testing.T) {
			const done, underWay, first = 1, 2, 3
			st := attachDirectly(t, n, uint64(number))
			send := func(tickets ...uint64) {
				t.Helper()
				frame := &zamokpb.ClientFrame{}
				for _, ticket := range tickets {
					m := exclusive(ticket, fmt.Sprint(number, "/", ticket), -1)
					m.GetAcquire().First = ticket == first
					frame.Messages = append(frame.Messages, m)
				}
				require.NoError(t, st.handle(frame))
			}
			known := func(ticket uint64) (yes bool) {
				ref := fsm.TicketRef{Session: st.queue.Session, Ticket: ticket}
				n.Raft().View(func(m *fsm.Machine) { _, yes = m.Ticket(ref) })
				return yes
			}
			settled := func() bool { return st.pending.Load() == 0 }
			send(done)
			require.Eventually(t, settled, patience, clock.Millisecond.Duration())
			release := stall(t, n)
			send(underWay)
			end := refuse(st)
			st.queue.Take()
			unknown, not := zamokpb.Outcome_OUTCOME_UNKNOWN, zamokpb.Outcome_OUTCOME_NOT_DONE
			send(done, underWay, first)
			assert.Equal(t, map[uint64]zamokpb.Outcome{done: unknown, underWay: unknown, first: not}, refusals(st))
			end()
			release()
			require.Eventually(t, settled, patience, clock.Millisecond.Duration())
			assert.True(t, known(underWay))
			assert.False(t, known(first))
			for began := time.Now(); !known(first) && time.Since(began) < patience; { // again while the queue is full
				send(first)
				require.Eventually(t, settled, patience, clock.Millisecond.Duration())
			}
			assert.True(t, known(first), "what was not done may be sent again")
		})
	}
}
