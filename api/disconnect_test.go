package api

import (
	"crypto/tls"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

func releasedAfter(span clock.Span) *zamokpb.SessionSettings {
	s := settings(clock.Minute)
	s.ReleaseOnDisconnect = int64(span)
	return s
}

// TestDisconnect is about sessions with release on disconnect. The node has no others: a break
// counts for as long as one node leads, and with others a machine that stands for a moment would
// end that.
func TestDisconnect(t *testing.T) {
	n := startCluster(t, 1, nil).leader()
	t.Run("reset", func(t *testing.T) { storyBreak(t, n, func(w *wireClient) { w.hangUp() }) })
	t.Run("end of stream", func(t *testing.T) {
		storyBreak(t, n, func(w *wireClient) { require.NoError(w, w.wire.CloseSend()) })
	})
	t.Run("process ended", func(t *testing.T) {
		storyBreak(t, n, func(w *wireClient) { require.NoError(w, w.conn.Close()) })
	})
	t.Run("with commands on their way", func(t *testing.T) {
		storyBreak(t, n, func(w *wireClient) {
			for range 20 {
				w.send(drop(1000)) // no ticket of that number: it is only a renewal
			}
			require.NoError(w, w.wire.CloseSend())
		})
	})
	t.Run("back in time", func(t *testing.T) { storyBack(t, n) })
	t.Run("not broken by the client", func(t *testing.T) { storyNotBroken(t, n) })
	t.Run("racing", func(t *testing.T) { storyRace(t, n) })
}

func storyBreak(t *testing.T, n *Node, end func(*wireClient)) {
	conn := call(t, n)
	w, heir := openStream(t, conn, releasedAfter(10*clock.Millisecond)),
		openStream(t, call(t, n), settings(clock.Minute))
	w.conn = conn.conn
	w.send(exclusive(1, "inherited", 0))
	w.is(1, stateGranted)
	heir.send(exclusive(1, "inherited", -1))
	require.Equal(t, stateWaiting, heir.answer().State.State)
	end(w)
	heir.is(1, stateGranted)
	heir.send(drop(1))
	heir.is(1, stateEnded)
}

// broken is how many sessions have a scheduled release on disconnect.
func broken(n *Node) int { return n.server.hub.Counts().Broken }

func storyBack(t *testing.T, n *Node) {
	c := call(t, n)
	w := openStream(t, c, releasedAfter(clock.Minute))
	w.send(exclusive(1, "back", 0))
	token := w.is(1, stateGranted).State.Token
	w.hangUp()
	require.Eventually(t, func() bool { return broken(n) == 1 }, patience,
		clock.Millisecond.Duration())
	next := w.again(c)
	assert.Zero(t, broken(n), "the release is cancelled")
	require.Len(t, next.state.Tickets, 1)
	assert.Equal(t, token, next.state.Tickets[0].Token)
	next.send(closeSession())
	require.NoError(t, next.end())
}

func storyNotBroken(t *testing.T, n *Node) {
	c := call(t, n)
	old := openStream(t, c, releasedAfter(clock.Millisecond))
	w := old.again(c)
	assert.Equal(t, zamokpb.Code_CODE_SUPERSEDED, infoOf(t, old.end()).Code)
	old.hangUp()
	assert.Zero(t, broken(n), "a stream that the server ended counts for nothing")

	// A client that hangs up after a clean end did not break anything either.
	w.send(closeSession())
	require.NoError(t, w.end())
	assert.Zero(t, broken(n))
}

// A stream that another node relayed is no evidence about the client: the node between may have
// broken it.
func TestARelayedStreamIsNotBrokenByItsClient(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	for {
		between := c.follower()
		w := openStreamIn(relaying(soon(t)), t, call(t, between), releasedAfter(clock.Minute))
		at := slices.IndexFunc(c.nodes, func(n *Node) bool { return n.cfg.ID == w.state.Node })
		leads := c.nodes[at]
		w.hangUp()
		if leads == between {
			continue // the machine stood for a moment, and another was elected
		}
		awaitMetric(t, leads, "zamok_streams 0")
		assert.Zero(t, broken(leads))
		return
	}
}

// storyRace races the release on disconnect against the next stream. Either the session ends before
// it attached, or it continues.
func storyRace(t *testing.T, n *Node) {
	c := call(t, n)
	lived := 0
	for i := range 30 {
		w := openStream(t, c, releasedAfter(1+clock.Span(i)*50*clock.Microsecond))
		w.send(exclusive(1, "raced", 0))
		w.is(1, stateGranted)
		w.hangUp()
		next := dial(t, c)
		next.Secret, next.Session = w.Secret, w.Session
		next.send(openMessage(&zamokpb.OpenStream{Secret: w.Secret, Session: w.Session}))
		err := next.receive()
		if err != nil {
			require.Equal(t, zamokpb.Code_CODE_NO_SESSION, infoOf(t, err).Code)
			continue
		}
		lived++
		// A late ReleaseOnDisconnect of the old attachment, at whatever index, ends nothing.
		_, err = n.Raft().Propose(soon(t), &fsm.ReleaseOnDisconnect{
			Session: session.ID(w.Session), Attachment: w.state.Attachment, Index: 1 << 60,
		})
		require.NoError(t, err)
		next.send(drop(1))
		next.is(1, stateEnded)
	}
	t.Logf("%d of 30 were back in time", lived)
}

// caught is a listener that gives its connections to the test too.
type caught struct {
	net.Listener
	conns chan net.Conn
}

func (l caught) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.conns <- conn
	}
	return conn, err
}

// A connection that this end gives up, though the client did nothing, is no break of the client's.
func TestServersOwnBreak(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	conns := make(chan net.Conn, 10)
	n := startCluster(t, 1, func(c *NodeConfig) { c.Listener = caught{l, conns} }).leader()
	for _, breaks := range []func(net.Conn) error{
		func(c net.Conn) error { return c.Close() },
		func(c net.Conn) error { return c.SetDeadline(time.Unix(1, 0)) },
	} {
		openStream(t, call(t, n), releasedAfter(clock.Minute))
		conn := <-conns
		awaitMetric(t, n, "zamok_streams 1")
		require.NoError(t, breaks(conn))
		awaitMetric(t, n, "zamok_streams 0")
		require.Zero(t, broken(n))
	}
}

// With TLS a client says that it ends before it ends the connection, and its end is read from that.
func TestADisconnectIsNoticedWithTLS(t *testing.T) {
	t.Parallel()
	pool, certificate := selfSigned(t)
	n := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.ClientTLS = func() *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{certificate}}
		}
	}).leader()
	dial := func() caller {
		conn, err := grpc.NewClient("passthrough:///"+n.Client(),
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return caller{zamokpb.NewZamokClient(conn), zamokpb.NewAdminClient(conn), conn}
	}
	for range 4 {
		c := dial()
		w := openStream(t, c, releasedAfter(10*clock.Millisecond))
		w.conn = c.conn
		w.send(exclusive(1, "inherited", 0))
		w.is(1, stateGranted)
		heir := openStream(t, dial(), settings(clock.Minute))
		heir.send(exclusive(1, "inherited", -1))
		require.Equal(t, stateWaiting, heir.answer().State.State)
		require.NoError(t, c.conn.Close())
		heir.is(1, stateGranted)
		heir.send(drop(1))
		heir.is(1, stateEnded)
	}
}
