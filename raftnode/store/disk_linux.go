package store

import (
	"cmp"
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// freeBytes asks the file system how much an ordinary user may still write. Without an answer
// nothing is refused, and a full disk ends the process (S3).
func freeBytes(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return math.MaxUint64
	}
	return st.Bavail * uint64(cmp.Or(st.Frsize, st.Bsize))
}

// allocate makes sure that the first bytes of a file have room on the disk, so
// that writing them can't meet a full disk. The file's length stays. File systems
// that can't do this are left alone.
func allocate(f *os.File, bytes int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, bytes)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// syncData flushes the content of a file, and of what the file system knows of it only what is
// needed to read that.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
