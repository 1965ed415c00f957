package api

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestVanishedComputersAreNoticed reads from the kernel how: on connections of clients and of HTTP. Those of nodes are
// package peer's.
func TestVanishedComputersAreNoticed(t *testing.T) {
	t.Parallel()
	for name, listen := range map[string]func(*NodeConfig) net.Listener{
		"clients": func(cfg *NodeConfig) net.Listener { return cfg.Listener },
		"HTTP":    func(cfg *NodeConfig) net.Listener { return cfg.httpListener },
	} {
		cfg := nodeConfig("n1", "")
		cfg.ListenHTTP = "127.0.0.1:0"
		require.NoError(t, cfg.settle())
		require.NoError(t, cfg.listen(t.Context()))
		near, err := net.Dial("tcp", listen(&cfg).Addr().String())
		require.NoError(t, err)
		far, err := listen(&cfg).Accept()
		require.NoError(t, err)
		assert.Equal(t, 1, option(t, far, unix.SOL_SOCKET, unix.SO_KEEPALIVE), name)
		for _, o := range []int{unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL} {
			assert.EqualValues(t, tcpIdle.Seconds(), option(t, far, unix.IPPROTO_TCP, o), name)
		}
		assert.Equal(t, tcpProbes, option(t, far, unix.IPPROTO_TCP, unix.TCP_KEEPCNT), name)
		assert.EqualValues(t, vanishedAfter.Milliseconds(), option(t, far, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT), name)
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
		require.NoError(t, cfg.closeListeners())
	}
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
