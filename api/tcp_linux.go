package api

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout sets TCP_USER_TIMEOUT on a socket that listens; the connections that it accepts inherit it.
func setUserTimeout(_, _ string, socket syscall.RawConn) (err error) {
	failed := socket.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(vanishedAfter.Milliseconds()))
	})
	if failed != nil {
		return failed
	}
	return err
}
