package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Small is a small disk, which can be full for real: a tmpfs.
type Small struct {
	dir     string
	ballast string
}

// Small mounts a tmpfs of so many bytes.
func (s *Shelf) Small(name string, bytes int64) (*Small, error) {
	dir, err := s.place(name)
	if err != nil {
		return nil, err
	}
	if err := unix.Mount(s.run, dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		return nil, fmt.Errorf("a tmpfs can't be mounted on %s: %w", dir, err)
	}
	d := &Small{dir: dir, ballast: filepath.Join(dir, "ballast")}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.small = append(s.small, d)
	return d, nil
}

// Dir is where it is mounted; a node's data is to be in a folder in it.
func (d *Small) Dir() string { return d.dir }

// Fill takes every block that is free. What is given back later by others is free again.
func (d *Small) Fill() error {
	f, err := os.OpenFile(d.ballast, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for block := make([]byte, 1<<20); len(block) >= 1<<12; block = block[:len(block)/2] {
		for err == nil {
			_, err = f.Write(block)
		}
		if !errors.Is(err, unix.ENOSPC) {
			return errors.Join(err, f.Close())
		}
		err = nil
	}
	return f.Close()
}

// Empty gives back what Fill took.
func (d *Small) Empty() error {
	if err := os.Remove(d.ballast); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close unmounts it. A second Close does nothing.
func (d *Small) Close() error {
	if d.ballast == "" {
		return nil
	}
	d.ballast = ""
	return unix.Unmount(d.dir, unix.MNT_DETACH)
}
