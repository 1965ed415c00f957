package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// pair is two initial members that know each other's cluster.
func pair(t *testing.T, f *testNetwork) (n1, n2 testNode) {
	list := mustList(t, threeNodes)
	n1 = openNode(t, f, Config{ID: "n1", List: list, Cluster: clusterOf("home")})
	n2 = openNode(t, f, Config{ID: "n2", List: list, Cluster: clusterOf("home")})
	return n1, n2
}

func requireCode(t *testing.T, want RefusalCode, err error) {
	t.Helper()
	refusal, ok := errors.AsType[*RefusedError](err)
	require.True(t, ok, "no refusal: %v", err)
	require.Equal(t, want.String(), refusal.Code.String())
	require.ErrorContains(t, err, want.remedy())
}

func TestTheListenersAddressIsAdvertised(t *testing.T) {
	n, err := New(Config{ID: "n1", Listener: newTestNetwork().listen("h1:5751")})
	require.NoError(t, err)
	assert.Equal(t, "h1:5751", n.Addr().String(), "when no other is")
	assert.Equal(t, "tcp", n.Addr().Network())
	require.NoError(t, n.Close())
}

func TestNodeThatRunsNoRaftIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1, n2 := pair(t, newTestNetwork())
		defer n1.Close()
		defer n2.Close()
		caller := openTransport(t, n1)
		requireCode(t, NotReady, vote(caller, "n2", "h2:5751"))
		openTransport(t, n2)
		require.NoError(t, vote(caller, "n2", "h2:5751"))
	})
}

// A node stops and opens Raft again without leaving its port, as after a transfer of leadership.
func TestTransportCanBeReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1, n2 := pair(t, newTestNetwork())
		defer n1.Close()
		defer n2.Close()
		caller, first := openTransport(t, n1), openTransport(t, n2)
		_, err := n2.Transport(hclog.NewNullLogger())
		require.ErrorContains(t, err, "open already")
		require.NoError(t, vote(caller, "n2", "h2:5751"))
		require.NoError(t, first.Close())
		require.NoError(t, first.Close(), "twice")
		requireCode(t, NotReady, vote(caller, "n2", "h2:5751"))
		second := openTransport(t, n2)
		require.NoError(t, vote(caller, "n2", "h2:5751"))
		require.NoError(t, second.Close())
		third := openTransport(t, n2)
		require.NoError(t, vote(caller, "n2", "h2:5751"), "the idle connection was dead")
		require.NoError(t, third.Close())
		openTransport(t, n2)
		require.NoError(t, caller.TimeoutNow(serverOf("n2").ID(), "h2:5751",
			&raft.TimeoutNowRequest{RPCHeader: caller.header()}, &raft.TimeoutNowResponse{}),
			"likewise")
	})
}

// Raft's transport pools connections by address. A pooled one must not serve a call to
// another node at that address.
func TestPooledConnectionServesTheNodeMeantOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1, n2 := pair(t, newTestNetwork())
		defer n1.Close()
		defer n2.Close()
		caller := openTransport(t, n1)
		openTransport(t, n2)
		require.NoError(t, vote(caller, "n2", "h2:5751"))
		requireCode(t, OtherNode, vote(caller, "n4", "h2:5751"))
		requireCode(t, OtherIncarnation, voteOf(caller, serverAfterWipe("n2"), "h2:5751"))
		require.NoError(t, vote(caller, "n2", "h2:5751"))
	})
}

func TestCallWithoutTheNodeMeantIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1, n2 := pair(t, newTestNetwork())
		defer n1.Close()
		defer n2.Close()
		caller := openTransport(t, n1)
		openTransport(t, n2)
		var resp raft.RequestVoteResponse
		err := caller.NetworkTransport.RequestVote(serverOf("n2").ID(), "h2:5751",
			&raft.RequestVoteRequest{RPCHeader: caller.header()}, &resp)
		require.ErrorContains(t, err, "doesn't name the server that it wants")
		assert.False(t, resp.Granted)
	})
}

// Every method of Raft's transport carries the server along.
func TestEveryCallNamesTheNodeItMeans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1, n2 := pair(t, newTestNetwork())
		defer n1.Close()
		defer n2.Close()
		tr, err := n1.Transport(hclog.NewNullLogger())
		require.NoError(t, err)
		openTransport(t, n2)
		n4 := serverOf("n4").ID()
		_, err = tr.AppendEntriesPipeline(n4, "h2:5751")
		require.ErrorIs(t, err, raft.ErrPipelineReplicationNotSupported)
		requireCode(t, OtherNode,
			tr.AppendEntries(n4, "h2:5751", &raft.AppendEntriesRequest{}, nil))
		requireCode(t, OtherNode,
			tr.RequestVote(n4, "h2:5751", &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{}))
		requireCode(t, OtherNode,
			tr.RequestPreVote(n4, "h2:5751", &raft.RequestPreVoteRequest{},
				&raft.RequestPreVoteResponse{}))
		requireCode(t, OtherNode,
			tr.TimeoutNow(n4, "h2:5751", &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{}))
		requireCode(t, OtherNode,
			tr.InstallSnapshot(n4, "h2:5751", &raft.InstallSnapshotRequest{}, nil,
				strings.NewReader("")))
	})
}

// dialRaw makes a bare connection to a node's port.
func dialRaw(t *testing.T, f *testNetwork, address string) net.Conn {
	conn, err := f.dialer("rude")(t.Context(), address)
	require.NoError(t, err)
	return conn
}

// Callers that don't speak the protocol get the reason where they can read it, take no more than
// their time in the handshake limiter, and keep no other caller out.
func TestMalformedCallers(t *testing.T) {
	for name, c := range map[string]struct {
		send string
		want string // in the answer
		log  string
	}{
		"wrong magic": {"GET / HTTP/1.1\r\n\r\n", "not a zamok handshake", "malformed"},
		"oversize": {"zamok\x02\xff\xff" + strings.Repeat("x", 2000), "65535 bytes",
			"malformed"},
		"garbage":     {"zamok\x02\x00\x04\x01\x07\x00\x00", "not a zamok handshake", "malformed"},
		"newer":       {"zamok\x09\x00\x01\x01", "it has 9, this release has 2", "other version"},
		"TLS":         {"\x16\x03\x01\x00\xc8\x01\x00\x00", "without TLS", "TLS wanted"},
		"half a word": {"zam", "", "not complete within 2s"},
		"silence":     {"", "", "not complete within 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newTestNetwork()
				n1, n2 := pair(t, f)
				defer n1.Close()
				defer n2.Close()
				conn := dialRaw(t, f, "h2:5751")
				defer conn.Close()
				go func() { _, _ = io.WriteString(conn, c.send) }()
				require.NoError(t, connect(t, n1, n2), "others connect")
				start := time.Now()
				answer, _ := io.ReadAll(conn) // ends when n2 has closed the connection
				assert.LessOrEqual(t, time.Since(start), n2.config.HandshakeTimeout)
				if c.want != "" {
					require.ErrorContains(t,
						readFrame(strings.NewReader(string(answer)), &Answer{}), c.want)
				}
				synctest.Wait()
				assert.Contains(t, n2.logs.String(), c.log)
			})
		})
	}
}

// What follows the proceed frame of a connection for Raft is Raft's; the frame itself carries
// nothing.
func TestProceedForRaftIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		n1, n2 := pair(t, f)
		defer n1.Close()
		defer n2.Close()
		openTransport(t, n2)
		for body, want := range map[string]string{"": "closed", "x": "1 bytes with proceed"} {
			conn := dialRaw(t, f, "h2:5751")
			require.NoError(t, writeFrame(conn, &hello{purposeRaft, serverOf("n2"), n1.Mine()}))
			require.NoError(t, readFrame(conn, &Answer{}))
			require.NoError(t, writeFrame(conn, &payload{kindProceed, []byte(body)}))
			time.AfterFunc(time.Minute, func() { conn.Close() })
			require.ErrorContains(t, readFrame(conn, &Answer{}), want)
			conn.Close()
		}
	})
}

func TestHealthCheckIsNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		n1, n2 := pair(t, f)
		defer n1.Close()
		defer n2.Close()
		require.NoError(t, dialRaw(t, f, "h2:5751").Close())
		synctest.Wait()
		assert.Empty(t, n2.logs.String())
	})
}

// A caller that sends a byte now and then gains no time by it.
func TestSlowCallerIsCutOffInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		n1, n2 := pair(t, f)
		defer n1.Close()
		defer n2.Close()
		conn := dialRaw(t, f, "h2:5751")
		start := time.Now()
		for range 100 {
			if _, err := conn.Write([]byte("z")[:1]); err != nil {
				break
			}
			time.Sleep(500 * time.Millisecond)
		}
		assert.LessOrEqual(t, time.Since(start), n2.config.HandshakeTimeout+500*time.Millisecond)
	})
}

// However many handshakes are pending, honest callers connect, and at once.
func TestIdleConnectionsBlockNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		n1, n2 := pair(t, f)
		defer n1.Close()
		defer n2.Close()
		for range 1000 {
			dialRaw(t, f, "h2:5751")
		}
		synctest.Wait()
		assert.Equal(t, handshakesMax, n2.handshakes.Len())
		start := time.Now()
		require.NoError(t, connect(t, n1, n2))
		assert.Zero(t, time.Since(start))
		assert.Equal(t, 1, strings.Count(n2.logs.String(), "too many pending handshakes"),
			"not 936 times")

		time.Sleep(n2.config.HandshakeTimeout)
		synctest.Wait()
		assert.Zero(t, n2.handshakes.Len(), "all gone after the time for a handshake")
	})
}

// A called node that accepts and then sends nothing costs the caller just its timeout.
func TestHalfOpenPeerCostsTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		n1 := openNode(t, f, Config{ID: "n1", List: mustList(t, threeNodes)})
		defer n1.Close()
		mute := f.listen("h2:5751")
		go func() {
			conn, err := mute.Accept()
			if err == nil {
				_, _ = io.Copy(io.Discard, conn)
			}
		}()
		caller, err := n1.Transport(hclog.NewNullLogger())
		require.NoError(t, err)
		start := time.Now()
		err = vote(caller, "n2", "h2:5751")
		require.ErrorContains(t, err, "no answer within 2s")
		assert.Equal(t, handshakeTimeoutDefault, time.Since(start))
	})
}

// A listener that fails for a while, as without free descriptors, is tried again.
func TestAcceptIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		list := mustList(t, threeNodes)
		n1 := openNode(t, f, Config{ID: "n1", List: list})
		listener := &failingListener{testListener: f.listen("h2:5751"), failures: 3}
		n2 := openNode(t, f, Config{ID: "n2", List: list, Listener: listener})
		defer n1.Close()
		defer n2.Close()
		require.NoError(t, connect(t, n1, n2))
		assert.Contains(t, n2.logs.String(), "too many open files")
	})
}

type failingListener struct {
	*testListener
	failures int
}

func (m *failingListener) Accept() (net.Conn, error) {
	if m.failures--; m.failures >= 0 {
		return nil, errors.New("too many open files")
	}
	return m.testListener.Accept()
}

// Close ends what is open in every stage, and comes back: the bubble ends only when no goroutine
// is left, and a read on the far side of every connection has failed.
func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNetwork()
		n1, n2 := pair(t, f)
		mute := f.listen("h3:5751") // accepts nothing: calls to it hang
		caller := openTransport(t, n1)
		called, err := n2.Transport(hclog.NewNullLogger())
		require.NoError(t, err)
		results := make(chan error, 3)
		// never answered: nothing reads the requests
		go func() { results <- vote(caller, "n2", "h2:5751") }()
		go func() { results <- vote(caller, "n3", "h3:5751") }()
		go func() {
			_, err := n1.Ask(context.Background(), Node{"n3", "h3:5751"})
			results <- err
		}()
		idle := dialRaw(t, f, "h2:5751")
		synctest.Wait()

		start := time.Now()
		require.NoError(t, n2.Close())
		_, err = io.ReadAll(idle)
		require.NoError(t, err, "closed by n2")
		require.NoError(t, idle.Close())
		require.NoError(t, n1.Close())
		for range 3 {
			require.Error(t, <-results)
		}
		assert.Zero(t, time.Since(start))
		require.NoError(t, mute.Close())
		require.ErrorIs(t, vote(caller, "n2", "h2:5751"), ErrClosed)
		_, err = n1.Transport(hclog.NewNullLogger())
		require.ErrorIs(t, err, ErrClosed)
		_, err = streamLayer{called}.Accept()
		require.ErrorIs(t, err, ErrClosed)
		_, err = n1.Ask(t.Context(), Node{"n3", "h3:5751"})
		require.Error(t, err)
		f.mu.Lock()
		defer f.mu.Unlock()
		assert.Empty(t, f.conns, "connections left open")
	})
}

// Raft's own Close forgets the handlers of accepted connections; ours waits for them.
func TestCloseWaitsForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1, n2 := pair(t, newTestNetwork())
		defer n1.Close()
		caller, called := openTransport(t, n1), openTransport(t, n2)
		release, closed := make(chan struct{}), make(chan error, 1)
		called.SetHeartbeatHandler(func(raft.RPC) { <-release })
		go func() {
			heartbeat := raft.AppendEntriesRequest{RPCHeader: caller.header(), Term: 1}
			_ = caller.AppendEntries(serverOf("n2").ID(), "h2:5751", &heartbeat,
				&raft.AppendEntriesResponse{})
		}()
		synctest.Wait()
		go func() { closed <- n2.Close() }()
		synctest.Wait()
		assert.Empty(t, closed, "the handler still runs")
		close(release)
		require.NoError(t, <-closed)
	})
}

// The same over real sockets.
func TestRealSockets(t *testing.T) {
	others := goleak.IgnoreCurrent()
	n1, n2 := openTCP(t, Config{ID: "n1"}), openTCP(t, Config{ID: "n2"})
	caller := openTransport(t, n1)
	openTransport(t, n2)
	require.NoError(t, vote(caller, "n2", n2.Addr().String()))
	requireCode(t, OtherNode, vote(caller, "n3", n2.Addr().String()))
	answer, err := n1.Ask(t.Context(), Node{"n2", n2.Addr().String()})
	require.NoError(t, err)
	assert.Equal(t, serverOf("n2"), answer.Server)
	require.NoError(t, n1.Close())
	require.NoError(t, n2.Close())
	_, err = ListenTCP(t.Context(), "127.0.0.1:none")
	require.ErrorContains(t, err, "can't listen for peers on 127.0.0.1:none")
	for began := time.Now(); ; { // the last ones may be about to end
		left := goleak.Find(others)
		if left == nil {
			return
		}
		require.Less(t, time.Since(began), testTimeout, "%v", left)
	}
}

// One message is logged at once, then at most once in logEvery.
func TestMessagesAreNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &logBuffer{}
		q := NewRateLimitedLog(d.logger())
		for range 10 {
			q.warn("a", "first kind")
		}
		q.warn("b", "second kind")
		time.Sleep(logEvery + 1)
		synctest.Wait()
		q.warn("a", "first kind")
		text := d.String()
		assert.Equal(t, 2, strings.Count(text, "first kind"))
		assert.Contains(t, text, "left_out=9")
		assert.Equal(t, 1, strings.Count(text, "second kind"))

		for i := range 10 * logLinesMax {
			q.warn(strings.Repeat("x", i), "an invented id")
		}
		count := func() int {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.lines)
		}
		assert.LessOrEqual(t, count(), logLinesMax+1)
		time.Sleep(logEvery + 1)
		q.warn("c", "third kind")
		assert.LessOrEqual(t, count(), 2, "the others are forgotten, as there was no room")
	})
}
