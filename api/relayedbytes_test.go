package api

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"

	"zamok/api/gate/limits"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/raftnode/peer"
)

// stalledRelay has a node relay to a leader that reads nothing after it has accepted a connection.
func stalledRelay(t *testing.T, n *Node) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			_ = http2.NewFramer(conn, nil).WriteSettings()
		}
	}()
	n.server.relay.Start(toListener{l})
}

// toListener is a node that reaches another one at a listener.
type toListener struct{ net.Listener }

func (l toListener) DialRelay(ctx context.Context, _ peer.Server) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
}

// floodFrames opens session streams that are to be relayed, and sends one large frame on each. It
// reads nothing but to throw it away.
func floodFrames(t *testing.T, n *Node, streams, size int) {
	conn, err := net.Dial("tcp", n.Client())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	message := protowire.AppendBytes(protowire.AppendTag(nil, 15, protowire.BytesType),
		make([]byte, size))
	message = append([]byte{0, 0, byte(len(message) >> 16), byte(len(message) >> 8),
		byte(len(message))}, message...)
	f := http2.NewFramer(conn, nil)
	require.NoError(t, f.WriteSettings())
	for i := range streams {
		id := uint32(2*i + 1)
		require.NoError(t, openSessionStream(f, id))
		for left := message; len(left) > 0; {
			part := left[:min(len(left), 16<<10)]
			left = left[len(part):]
			require.NoError(t, f.WriteData(id, false, part))
		}
	}
}

// openSessionStream begins a session's stream that is to be relayed.
func openSessionStream(f *http2.Framer, id uint32) error {
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", zamokpb.Zamok_Session_FullMethodName},
		{":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {zamokpb.RelayKey, "1"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(),
		EndHeaders: true})
}

func heapInUse() int {
	runtime.GC()
	runtime.GC() // pools keep what they have over one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestAFloodThroughAStalledLeader: what clients send to a node that relays, while the leader reads
// nothing, is bounded in bytes, for one client before it is for all. Beyond the bound streams end,
// and calls are not done.
func TestAFloodThroughAStalledLeader(t *testing.T) {
	const most = 8 << 20
	set, err := limits.Parse([]string{"relayed-bytes=8388608"})
	require.NoError(t, err)
	c := startCluster(t, 2, func(cfg *NodeConfig) { cfg.Limits = set })
	c.leader()
	n := c.follower()
	stalledRelay(t, n)
	before := heapInUse()
	floodFrames(t, n, 900, 60<<10)
	refused := func() bool {
		return !strings.Contains(n.server.metricsText(t),
			`zamok_limit_refusals_total{limit="relayed-bytes-per-identity"} 0`+"\n")
	}
	require.Eventually(t, refused, patience, 5*time.Millisecond)
	grown := 0
	assert.Eventually(t, func() bool { grown = heapInUse() - before; return grown < 3*most },
		patience, 20*time.Millisecond)
	t.Logf("54 MiB were sent, and the heap grew by %d KiB", grown>>10)

	// A call of the same client is not done.
	ctx, cancel := context.WithTimeout(relaying(t.Context()), patience)
	defer cancel()
	_, err = call(t, n).OpenSession(asFirst(ctx), &zamokpb.OpenSessionRequest{
		Secret:   newSecret(),
		Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute), Meta: make([]byte, 60<<10)},
	})
	info := refusedBy(t, err, "relayed-bytes-per-identity")
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
}

// TestRelayedBytesAreCountedUntilWritten: what a leader takes counts no more, in calls and in
// streams, also in those that break.
func TestRelayedBytesAreCountedUntilWritten(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, nil)
	c.leader()
	n := c.follower()
	w := openStream(t, relayedTo(call(t, n)), settings(clock.Minute))
	for ticket := range uint64(20) {
		w.send(exclusive(ticket+1, strings.Repeat("x", 500)+string(rune('a'+ticket)), 0))
		w.is(ticket+1, stateGranted)
	}
	s := openSession(t, relaying(soon(t)), call(t, n))
	s.hold("y")
	ctx, cancel := context.WithCancel(s.ctx)
	s.acquire(ctx, s.next("y", clock.Span(time.Hour)))
	s.waiters("y", 1)
	assert.False(t, n.server.relaysNothing())
	cancel()
	w.hangUp()
	require.Eventually(t, func() bool {
		runtime.GC() // of what a connection drops without a report
		return n.server.relaysNothing()
	}, patience, 20*time.Millisecond)
}

// TestWhatANodeRelaysIsBoundedAtTheLeader: a node that opens calls and sends no request, or reads
// no answer, is cut off, and not the leader's own clients.
func TestWhatANodeRelaysIsBoundedAtTheLeader(t *testing.T) {
	t.Parallel()
	const most = 256 << 10
	c := startCluster(t, 2, func(cfg *NodeConfig) { cfg.UnreadBytesMax = most })
	leader := c.leader()
	from := c.follower()
	conn, err := from.server.node.DialRelay(soon(t), from.Raft().LeaderServer())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	f := http2.NewFramer(conn, nil)
	require.NoError(t, f.WriteSettings())
	const calls = 2 * relayedBudgets * most / (16 << 10) // what a call without a request counts
	for i := range calls {
		if openSessionStream(f, uint32(2*i+1)) != nil {
			break // it was closed
		}
	}
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	_, err = io.Copy(io.Discard, conn)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = call(t, leader).Now(soon(t), &zamokpb.NowRequest{})
	require.NoError(t, err)
}

// relaysNothing reports whether no relayed byte is counted: all of the limit is free, for two
// callers together.
func (s *server) relaysNothing() bool {
	const all, one = 64 << 20, 48 << 20
	first, err := s.limits.OpenMany(limits.RelayedBytes, "first", one)
	if err != nil {
		return false
	}
	defer first()
	second, err := s.limits.OpenMany(limits.RelayedBytes, "second", all-one)
	if err != nil {
		return false
	}
	second()
	return true
}
