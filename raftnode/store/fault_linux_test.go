package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// breakFile makes the kernel itself fail what this process does with an open
// file: its descriptor is exchanged for one of a device, so that code which knows
// nothing of the test (bbolt, the snapshots) meets a true error.
//
//	/dev/null: writes seem to succeed and are gone, fsync fails
//	/dev/full: writes fail for want of space
//
// mend puts the file back. The lock on it was never let go.
func breakFile(t *testing.T, path, device string) *brokenFile {
	t.Helper()
	fd := descriptorOf(t, path)
	kept, err := unix.Dup(fd)
	require.NoError(t, err)
	broken, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Dup3(broken, fd, unix.O_CLOEXEC))
	require.NoError(t, unix.Close(broken))
	return &brokenFile{t: t, fd: fd, kept: kept}
}

type brokenFile struct {
	t        *testing.T
	fd, kept int
}

func (f *brokenFile) mend() {
	require.NoError(f.t, unix.Dup3(f.kept, f.fd, unix.O_CLOEXEC))
	f.leave()
}

// leave leaves the file to who has it open.
func (f *brokenFile) leave() {
	require.NoError(f.t, unix.Close(f.kept))
}

// blocks returns how much of the disk the file takes, in units of 512 bytes.
func (f *brokenFile) blocks() int64 { return f.stat().Blocks }

// links returns how many names the file has.
func (f *brokenFile) links() uint64 { return uint64(f.stat().Nlink) }

func (f *brokenFile) stat() (st unix.Stat_t) {
	require.NoError(f.t, unix.Fstat(f.kept, &st))
	return st
}

// descriptorOf returns the first descriptor of this process that is open on path.
func descriptorOf(t *testing.T, path string) int {
	t.Helper()
	fds := descriptors(t, func(target string) bool { return target == path })
	require.NotEmpty(t, fds, "descriptors open on %s", path)
	return slices.Min(fds)
}

// descriptors returns this process's descriptors whose targets are wanted.
func descriptors(t *testing.T, wanted func(target string) bool) (fds []int) {
	t.Helper()
	links, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, link := range links {
		fd, err := strconv.Atoi(link.Name())
		require.NoError(t, err)
		target, err := os.Readlink(filepath.Join("/proc/self/fd", link.Name()))
		if err == nil && wanted(target) {
			fds = append(fds, fd)
		}
	}
	return fds
}

// smallDisk returns a directory on a disk of so many bytes, a tmpfs. The mount is
// taken off its place at once and reached through a descriptor, so that the
// kernel clears it away with this process, however that ends. It needs root, and
// says so when it skips.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		fmt.Printf("SKIPPED %s: a full disk of %d bytes needs root to mount a tmpfs: %v\n",
			t.Name(), bytes, err)
		t.Skipf("mount tmpfs: %v", err)
	}
	disk, err := os.Open(dir)
	require.NoError(t, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)))
	t.Cleanup(func() { require.NoError(t, disk.Close()) })
	return fmt.Sprintf("/proc/self/fd/%d", disk.Fd())
}

// fillWithBallast takes every block of a small disk.
func fillWithBallast(t *testing.T, disk string) {
	t.Helper()
	for block := 1 << 20; block >= 1; block /= 64 {
		path := filepath.Join(disk, fmt.Sprintf("ballast-%d", block))
		f, err := os.Create(path)
		if err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
			return
		}
		for err == nil {
			_, err = f.Write(make([]byte, block))
		}
		require.ErrorIs(t, err, unix.ENOSPC)
		require.NoError(t, f.Close())
	}
}
