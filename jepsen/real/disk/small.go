package disk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// SmallDisk is a small disk, which can be full for real: a tmpfs.
type SmallDisk struct {
	dir   string
	bytes int64
}

// AddSmall mounts a tmpfs of a size. What is written to it takes memory.
func (s *Pool) AddSmall(name string, bytes int64) (*SmallDisk, error) {
	dir, err := s.mountPoint(name)
	if err != nil {
		return nil, err
	}
	d := &SmallDisk{dir: dir, bytes: bytes}
	if err := d.mount(0, bytes); err != nil {
		return nil, fmt.Errorf("a tmpfs can't be mounted on %s: %w", dir, err)
	}
	s.add(d)
	return d, nil
}

func (d *SmallDisk) mount(flags uintptr, bytes int64) error {
	return unix.Mount("small", d.dir, "tmpfs", flags, fmt.Sprintf("size=%d", bytes))
}

// Dir is where it is mounted.
func (d *SmallDisk) Dir() string { return d.dir }

// fillAttemptsMax bounds the attempts: a write at the same moment takes what would have been the last block.
const fillAttemptsMax = 100

// Fill leaves no block free: the disk shrinks to what is on it, so that this takes no memory. What others
// give back later is free again. On an empty disk one block stays free, because a tmpfs can't have none.
func (d *SmallDisk) Fill() (err error) {
	for range fillAttemptsMax {
		var st unix.Statfs_t
		if err := unix.Statfs(d.dir, &st); err != nil {
			return err
		}
		used := max(1, int64(st.Blocks-st.Bfree)) * st.Bsize
		if err = d.mount(unix.MS_REMOUNT, used); !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return err
}

// Empty gives the disk its size again.
func (d *SmallDisk) Empty() error { return d.mount(unix.MS_REMOUNT, d.bytes) }

// Close unmounts it.
func (d *SmallDisk) Close() error { return unix.Unmount(d.dir, unix.MNT_DETACH) }
