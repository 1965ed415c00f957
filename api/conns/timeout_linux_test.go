package conns

import (
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A client that reads nothing, as a process that is paused, is given up by the kernel. Of the
// reader and the writer of its connection one gets that error, and the other finds a connection
// that has ended: neither is the client's doing.
func TestATimeoutOfTheKernelIsNoBreakOfTheClients(t *testing.T) {
	t.Parallel()
	brief := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 300)
		})
	}}
	brief.SetMultipathTCP(false)
	l, err := brief.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	const conns = 256
	bounded := NewBudget(1, func(string, net.Addr) {}).Listen(l, conns, nil)
	var ended sync.WaitGroup
	var all []*Conn
	for range conns {
		near, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer near.Close()
		require.NoError(t, near.(*net.TCPConn).SetReadBuffer(4<<10))
		far, err := bounded.Accept()
		require.NoError(t, err)
		tracked := far.(*Conn)
		require.NoError(t, tracked.Conn.(*net.TCPConn).SetWriteBuffer(4<<10))
		all = append(all, tracked)
		ended.Go(func() {
			for part := make([]byte, 64<<10); ; {
				if _, err := tracked.Write(part); err != nil {
					return
				}
			}
		})
		ended.Go(func() {
			for part := make([]byte, 1); ; {
				if _, err := tracked.Read(part); err != nil {
					return
				}
			}
		})
	}
	ended.Wait()
	for _, conn := range all {
		require.True(t, conn.closed.Load())
		require.False(t, conn.hungUp.Load())
		require.NoError(t, conn.Close())
	}
}
