package peer

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Both ends probe, at most a sixth of the usual lease of 10 s apart, and give up what is not
// acknowledged, as the kernel sees it.
func TestKeepAlive(t *testing.T) {
	listener, err := ListenTCP(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	near, err := DialTCP(t.Context(), listener.Addr().String())
	require.NoError(t, err)
	defer near.Close()
	far, err := listener.Accept()
	require.NoError(t, err)
	defer far.Close()
	for _, conn := range []net.Conn{near, far} {
		assert.Equal(t, 1, option(t, conn, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE))
		for _, o := range []int{syscall.TCP_KEEPIDLE, syscall.TCP_KEEPINTVL} {
			assert.Equal(t, 1, option(t, conn, syscall.IPPROTO_TCP, o), "seconds")
		}
		assert.Equal(t, 3, option(t, conn, syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT))
		assert.EqualValues(t, unacknowledgedMax.Milliseconds(),
			option(t, conn, syscall.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
	}
}

func option(t *testing.T, conn net.Conn, level, name int) (value int) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var got error
	require.NoError(t, raw.Control(func(fd uintptr) {
		value, got = syscall.GetsockoptInt(int(fd), level, name)
	}))
	require.NoError(t, got)
	return value
}
