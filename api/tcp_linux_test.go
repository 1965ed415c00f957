package api

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zamok/api/conns"
	"zamok/clock"
)

// TestVanishedComputersAreNoticed reads from the kernel how: on connections of clients and of HTTP.
// Those of nodes are package peer's. An idle connection of gRPC is probed now and then, the others
// so that it is noticed in time.
func TestVanishedComputersAreNoticed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		listen func(*NodeConfig) net.Listener
		idle   time.Duration
	}{
		"clients": {func(cfg *NodeConfig) net.Listener { return cfg.Listener }, conns.IdleProbes},
		"HTTP": {func(cfg *NodeConfig) net.Listener { return cfg.HTTPListener },
			conns.WaitingProbes},
	} {
		cfg := nodeConfig("n1", "")
		cfg.ListenHTTP = "127.0.0.1:0"
		require.NoError(t, cfg.complete())
		require.NoError(t, cfg.listen(t.Context()))
		near, err := net.Dial("tcp", test.listen(&cfg).Addr().String())
		require.NoError(t, err)
		far, err := conns.NewBudget(1, nil).Listen(test.listen(&cfg), 1, nil).Accept()
		require.NoError(t, err)
		tcp := far.(*conns.Conn).Conn
		probed := func(every time.Duration) {
			assert.Equal(t, 1, option(t, tcp, unix.SOL_SOCKET, unix.SO_KEEPALIVE), name)
			assert.EqualValues(t, every.Seconds(),
				option(t, tcp, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE), name)
			assert.EqualValues(t, min(every, conns.VanishedAfter).Seconds(),
				option(t, tcp, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL), name)
			assert.Equal(t, 3, option(t, tcp, unix.IPPROTO_TCP, unix.TCP_KEEPCNT), name)
			assert.EqualValues(t, conns.VanishedAfter.Milliseconds(),
				option(t, tcp, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT), name)
		}
		probed(test.idle)
		far.(*conns.Conn).Probe(conns.Probes(conns.WaitingProbes))
		probed(conns.WaitingProbes)
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
		require.NoError(t, cfg.closeListeners())
	}
}

// Probed so that it is noticed in time is the computer of a call that waits for a lock, and of a
// stream whose break releases.
func TestWhoIsProbedOften(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepted := make(chan net.Conn, 10)
	n := startCluster(t, 1, func(c *NodeConfig) { c.Listener = caught{l, accepted} }).leader()
	often := func(conn net.Conn) func() bool {
		return func() bool {
			return option(t, conn, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE) ==
				int(conns.WaitingProbes.Seconds())
		}
	}
	openStream(t, call(t, n), settings(clock.Minute))
	assert.False(t, often(<-accepted)(), "a session that ends with its ttl")
	openStream(t, call(t, n), releasedAfter(clock.Minute))
	assert.Eventually(t, often(<-accepted), patience, time.Millisecond,
		"a session that ends with its stream")
	s := openSession(t, soon(t), call(t, n))
	conn := <-accepted
	assert.False(t, often(conn)(), "a session without a stream")
	s.hold("x")
	assert.True(t, often(conn)(), "a call that may wait")
}

func option(t *testing.T, conn net.Conn, level, name int) (value int) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var got error
	require.NoError(t, raw.Control(func(fd uintptr) {
		value, got = unix.GetsockoptInt(int(fd), level, name)
	}))
	require.NoError(t, got)
	return value
}
