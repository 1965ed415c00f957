package disk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Small is a small disk, which can be full for real: a tmpfs.
type Small struct {
	dir   string
	run   string
	bytes int64
	up    bool
}

// Small mounts a tmpfs of so many bytes. What is written to it takes memory.
func (s *Shelf) Small(name string, bytes int64) (*Small, error) {
	dir, err := s.place(name)
	if err != nil {
		return nil, err
	}
	d := &Small{dir: dir, run: s.run, bytes: bytes}
	if err := d.mount(0, bytes); err != nil {
		return nil, fmt.Errorf("a tmpfs can't be mounted on %s: %w", dir, err)
	}
	d.up = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.small = append(s.small, d)
	return d, nil
}

func (d *Small) mount(flags uintptr, bytes int64) error {
	return unix.Mount(d.run, d.dir, "tmpfs", flags, fmt.Sprintf("size=%d", bytes))
}

// Dir is where it is mounted.
func (d *Small) Dir() string { return d.dir }

// fillTries: whoever writes at the same moment takes what would have been the last block.
const fillTries = 100

// Fill leaves no block free: the disk shrinks to what is on it, so that this takes no memory. What others
// give back later is free again. On an empty disk one block stays free, because a tmpfs can't have none.
func (d *Small) Fill() (err error) {
	for range fillTries {
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
func (d *Small) Empty() error { return d.mount(unix.MS_REMOUNT, d.bytes) }

// Close unmounts it. A second Close does nothing.
func (d *Small) Close() error {
	if !d.up {
		return nil
	}
	d.up = false
	return unix.Unmount(d.dir, unix.MNT_DETACH)
}
