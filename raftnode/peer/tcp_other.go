//go:build !linux

package peer

import (
	"syscall"
	"time"
)

// UserTimeout does nothing: this system has no such limit.
func UserTimeout(time.Duration) func(network, address string, socket syscall.RawConn) error {
	return nil
}
