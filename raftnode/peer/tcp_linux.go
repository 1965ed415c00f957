package peer

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// UserTimeout sets TCP_USER_TIMEOUT on a socket: how long data may stay unacknowledged, when the
// kernel sends no probes. The connections that a socket accepts inherit it.
func UserTimeout(d time.Duration) func(network, address string, socket syscall.RawConn) error {
	return func(_, _ string, socket syscall.RawConn) (err error) {
		failed := socket.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
				int(d.Milliseconds()))
		})
		if failed != nil {
			return failed
		}
		return err
	}
}
