//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package store

import (
	"errors"
	"os"
	"syscall"
	"time"

	bbolterrors "go.etcd.io/bbolt/errors"
)

// lockRetry is how often a lock that another process has is asked for.
const lockRetry = 20 * time.Millisecond

// lockFile takes the lock of the directory, until f is closed.
func lockFile(f *os.File) error {
	for range lockWait / lockRetry {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		<-time.NewTimer(lockRetry).C
	}
	return bbolterrors.ErrTimeout
}
