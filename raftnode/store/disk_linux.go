package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// freeBytes asks the file system how much an ordinary user may still write.
func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	unit := st.Frsize
	if unit == 0 {
		unit = st.Bsize
	}
	return st.Bavail * uint64(unit), nil
}

// allocate makes sure that the first bytes of a file have room on the disk, so
// that writing them can't meet a full disk. The file's length stays. File systems
// that can't do this are left alone.
func allocate(path string, bytes int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, bytes)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}
