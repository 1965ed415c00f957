package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// startAlone is a cluster of one node, for what needs no other.
func startAlone(t testing.TB) *Node {
	n, err := StartNode(context.Background(), nodeConfig("n1", ""))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Kill()) })
	require.Eventually(t, func() bool { return n.Raft().Status().Leading }, patience,
		clock.Millisecond.Duration())
	return n
}

// One push in ten is lost. The client detects it, because KeepAliveAck counts more changes than it
// received, and attaches anew: then it misses nothing.
func TestLostPushIsNoticed(t *testing.T) {
	t.Parallel()
	n := startCluster(t, 1, nil).leader()
	c := call(t, n)
	pushes := 0
	w := openStream(t, c, settings(clock.Minute))
	w.lossy = true
	noticed := 0
	for ticket := uint64(1); ticket <= 100; ticket++ {
		for state, message := range map[zamokpb.State]*zamokpb.ClientMessage{
			stateGranted: exclusive(ticket, "unreliable", 0), stateEnded: drop(ticket),
		} {
			// In either order: a drop ends a ticket also before its acquisition arrives.
			w.send(message)
			var again bool
			if w, again = w.until(c, ticket, state, &pushes); again {
				noticed++
			}
		}
		w.AckedThrough = ticket
	}
	assert.Equal(t, pushes/10, noticed, "each loss is noticed")
	assert.NotZero(t, noticed)
}

// until receives until a ticket is known to be in a state, or a later one. It drops each tenth
// push, and attaches anew when it detects that one is missing.
func (w *wireClient) until(c caller, ticket uint64, state zamokpb.State,
	pushes *int) (_ *wireClient, again bool) {
	for {
		missing := false
		switch m := w.next(); {
		case m.GetChange() != nil:
			if *pushes++; *pushes%10 == 0 {
				continue
			}
			w.changes++
			missing = m.GetChange().Number != w.changes
			if s := m.GetChange().State; !missing && s.Ticket == ticket && s.State >= state {
				return w, again
			}
		case m.GetAnswer() != nil && m.GetAnswer().State.GetTicket() == ticket &&
			m.GetAnswer().State.State >= state:
			return w, again
		case m.GetKeepAliveAck() != nil:
			missing = m.GetKeepAliveAck().Changes != w.changes
		}
		if missing {
			w, again = w.again(c), true
			for _, s := range w.state.Tickets {
				if s.Ticket == ticket && s.State >= state {
					return w, true
				}
			}
			require.Fail(w, "the SessionState lacks what was sent before", "%v", w.state)
		}
	}
}

// Ten thousand wait for one lock, over a hundred streams, and acquire it in the order of their
// requests.
func TestManyWaitInOrder(t *testing.T) {
	streams, each := 100, 100
	if testing.Short() {
		streams, each = 20, 100
	}
	n := startCluster(t, 1, nil).leader()
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	holder := openStreamIn(ctx, t, call(t, n), settings(clock.Hour))
	holder.send(exclusive(1, "queue", 0))
	holder.is(1, stateGranted)
	clients := make([]*wireClient, streams)
	for i := range clients {
		clients[i] = openStreamIn(ctx, t, call(t, n), settings(clock.Hour))
	}
	before := memory()
	for i := 1; i <= each; i++ {
		for _, w := range clients {
			w.send(exclusive(uint64(i), "queue", -1))
		}
	}
	for _, w := range clients {
		for range each {
			require.Equal(t, stateWaiting, w.answer().State.State)
		}
	}
	bytes := (memory() - before) / uint64(streams*each)
	t.Logf("%d bytes a waiter, with its entry in the log and this test's own", bytes)
	if !testing.Short() {
		assert.Less(t, bytes, uint64(1152))
	}
	var order []fsm.TicketRef
	n.Raft().View(func(m *fsm.Machine) {
		for ref := range m.Waiters("queue") {
			order = append(order, ref)
		}
	})
	require.Len(t, order, streams*each)

	began := time.Now()
	var mu sync.Mutex
	var got []fsm.TicketRef
	var all sync.WaitGroup
	for _, w := range clients {
		all.Go(func() {
			for left := each; left > 0; {
				c := w.change()
				if c.State.State != stateGranted {
					continue
				}
				left--
				mu.Lock()
				got = append(got, fsm.TicketRef{Session: w.hubID(), Ticket: c.State.Ticket})
				mu.Unlock()
				w.send(drop(c.State.Ticket))
			}
		})
	}
	holder.send(drop(1))
	all.Wait()
	assert.Equal(t, order, got, "first come, first served, without exception")
	t.Logf("%d grants in %v", len(got), time.Since(began))
}

// memory is what is in use when nothing is left to collect.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc + s.StackInuse
}

// A stream ends with its leader's epoch. What it knew continues at the next leader: queue
// positions, and the tokens of what is held.
func TestLeaderChange(t *testing.T) {
	t.Parallel()
	handOver := func(n *Node) error {
		_ = n.Raft().Transfer(soon(t), "") // its epoch ends, whatever the result
		return nil
	}
	for name, leave := range map[string]func(*Node) error{"transferred": handOver,
		"closed": (*Node).Close, "killed": (*Node).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, 3, nil)
			first, follower := c.leader(), c.follower()

			client := dial(t, call(t, follower))
			client.send(openMessage(&zamokpb.OpenStream{Secret: newSecret(),
				Settings: settings(clock.Minute)}))
			info := infoOf(t, client.end())
			assert.Equal(t, zamokpb.Code_CODE_NOT_LEADER, info.Code)
			assert.Equal(t, first.Client(), info.LeaderAddress)

			conn := call(t, first)
			holder, waiter := openStream(t, conn, settings(clock.Minute)),
				openStream(t, conn, settings(clock.Minute))
			holder.send(exclusive(1, "kept", 0))
			token := holder.is(1, stateGranted).State.Token
			waiter.send(exclusive(1, "kept", -1))
			require.Equal(t, stateWaiting, waiter.answer().State.State)

			require.NoError(t, leave(first))
			err := holder.end()
			require.Error(t, err)
			switch name {
			case "transferred":
				assert.Equal(t, zamokpb.Code_CODE_NOT_LEADER, infoOf(t, err).Code)
				assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, infoOf(t, err).Outcome)
				assert.Contains(t, err.Error(), "leadership ended",
					"not only when its state begins anew")
			case "closed": // a late look sees both reasons
				assert.Contains(t, []zamokpb.Code{zamokpb.Code_CODE_NOT_LEADER,
					zamokpb.Code_CODE_STOPPING}, infoOf(t, err).Code)
				assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, infoOf(t, err).Outcome)
				c.nodes = without(c.nodes, first)
			case "killed":
				c.nodes = without(c.nodes, first)
			}
			conn = call(t, c.leader())
			holder, waiter = holder.again(conn), waiter.again(conn)
			require.Len(t, holder.state.Tickets, 1)
			assert.Equal(t, token, holder.state.Tickets[0].Token)
			holder.send(drop(1))
			assert.Greater(t, waiter.is(1, stateGranted).State.Token, token)
		})
	}
}

// Streams of one session that attach at the same moment: one of them serves it in the end, and the
// others receive an error.
func TestAttachRace(t *testing.T) {
	n := startCluster(t, 1, nil).leader()
	c := call(t, n)
	w := openStream(t, c, settings(clock.Minute))
	const rivals = 8
	for range 10 {
		var all sync.WaitGroup
		ends := make(chan error, rivals)
		streams := make([]*wireClient, rivals)
		for i := range streams {
			streams[i] = dial(t, c)
			all.Go(func() {
				streams[i].send(openMessage(
					&zamokpb.OpenStream{Secret: w.Secret, Session: w.Session}))
				ends <- streams[i].end()
			})
		}
		for range rivals - 1 {
			info := infoOf(t, <-ends)
			// Never LIMIT: to a client that would be final.
			assert.Contains(t, []zamokpb.Code{zamokpb.Code_CODE_SUPERSEDED,
				zamokpb.Code_CODE_OVERLOADED}, info.Code, fmt.Sprint(info))
		}
		for _, s := range streams {
			s.hangUp()
		}
		require.Error(t, <-ends, "one had the session until it hung up")
		all.Wait()
	}
}

// What happens on a stream is counted: how long granted tickets took, and why the stream ended.
func TestStreamIsObserved(t *testing.T) {
	n := startCluster(t, 1, nil).leader()
	c := call(t, n)
	w := openStream(t, c, settings(clock.Minute))
	awaitMetric(t, n, "zamok_streams 1")
	w.send(exclusive(1, "observed", 0))
	w.is(1, stateGranted)
	w.send(exclusive(2, "observed", 0), exclusive(3, "observed", -1), exclusive(0, "", 0))
	awaitMetric(t, n, `zamok_lock_wait_seconds_count{mode="exclusive"} 1`)
	w.is(2, stateEnded)
	w.send(exclusive(3, "observed", -1), drop(1))
	w.is(1, stateEnded)
	w.is(3, stateGranted)
	w.send(exclusive(3, "observed", -1))
	for w.answer().State.State != stateGranted { // those that came while it waited
	}
	next := w.again(c)
	awaitMetric(t, n, `zamok_streams_cut_total{reason="superseded"} 1`)
	next.hangUp()
	awaitMetric(t, n, "zamok_streams 0")
	assert.Contains(t, n.server.metricsText(t), `zamok_streams_cut_total{reason="unknown"} 0`+"\n")
	awaitMetric(t, n, `zamok_lock_wait_seconds_count{mode="exclusive"} 2`)
}

// A client that does not read its answer delays only its own scrape.
func TestAnUnreadScrapeDelaysNoOther(t *testing.T) {
	n := startCluster(t, 1, nil).leader()
	page, client := net.Pipe()
	defer client.Close()
	go n.server.metrics.Serve(unread{httptest.NewRecorder(), page},
		httptest.NewRequest("GET", "/metrics", nil), n.server.node, 0, "", nil, nil)
	_, err := client.Read(make([]byte, 1)) // it is being written
	require.NoError(t, err)
	served := make(chan string, 1)
	go func() { served <- n.server.metricsText(t) }()
	select {
	case <-served:
	case <-time.After(patience):
		require.Fail(t, "the second scrape waits for the first")
	}
}

// unread is a response that is written as its client reads.
type unread struct {
	http.ResponseWriter
	to io.Writer
}

func (u unread) Write(b []byte) (int, error) { return u.to.Write(b) }

func (s *server) metricsText(t testing.TB) string {
	page := httptest.NewRecorder()
	var files map[string]bool
	if s.cfg.Files != nil { // of a node that was started
		files = s.cfg.Files()
	}
	s.metrics.Serve(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil),
		s.node, s.hub.Counts().Streams, "", nil, files)
	return page.Body.String()
}

// awaitMetric waits for a line of the metrics.
func awaitMetric(t testing.TB, n *Node, line string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return strings.Contains("\n"+n.server.metricsText(t), "\n"+line+"\n")
	}, patience, clock.Millisecond.Duration(), line)
}
