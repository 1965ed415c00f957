package main

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// handle is an open file.
type handle struct {
	disk       *disk
	file       *os.File
	tracked    *trackedFile // nil: open for reading only
	syncWrites bool         // each write is flushed (O_DSYNC, O_SYNC)
}

var (
	_ fs.FileReader    = (*handle)(nil)
	_ fs.FileWriter    = (*handle)(nil)
	_ fs.FileFlusher   = (*handle)(nil)
	_ fs.FileReleaser  = (*handle)(nil)
	_ fs.FileAllocater = (*handle)(nil)
	_ fs.FileLseeker   = (*handle)(nil)
)

// open opens a file as the kernel asked. Where to append is the kernel's business.
func (d *disk) open(path string, flags uint32) (*handle, syscall.Errno) {
	if errno := d.faults.checkCrashed(); errno != 0 {
		return nil, errno
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashed {
		return nil, syscall.EIO
	}
	h := &handle{disk: d, syncWrites: flags&syscall.O_DSYNC != 0}
	var err error
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		if h.tracked, err = d.fileFor(path); err != nil {
			return nil, fs.ToErrno(err)
		}
	}
	h.file, err = os.Open(path)
	if err == nil && flags&syscall.O_TRUNC != 0 && h.tracked != nil {
		err = h.tracked.truncate(0)
	}
	return h, fs.ToErrno(err)
}

func (h *handle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := h.disk.faults.checkCrashed(); errno != 0 {
		return nil, errno
	}
	n, err := h.file.ReadAt(dest, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(dest[:n]), 0
}

func (h *handle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if h.tracked == nil {
		return 0, syscall.EBADF
	}
	n, errno := h.disk.write(h.tracked, data, off)
	if errno == 0 && h.syncWrites {
		errno = h.disk.fsync(h.file)
	}
	return uint32(n), errno
}

// Allocate takes room in advance; nothing else that fallocate can do is there.
func (h *handle) Allocate(_ context.Context, off, size uint64, mode uint32) syscall.Errno {
	if mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
		return syscall.EOPNOTSUPP
	}
	if h.tracked == nil {
		return syscall.EBADF
	}
	return h.disk.change(opWrite, func() error {
		return syscall.Fallocate(int(h.tracked.f.Fd()), mode, int64(off), int64(size))
	})
}

func (h *handle) Lseek(_ context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	if errno := h.disk.faults.checkCrashed(); errno != 0 {
		return 0, errno
	}
	at, err := unix.Seek(int(h.file.Fd()), int64(off), int(whence))
	return uint64(at), fs.ToErrno(err)
}

// Flush comes with each close, and flushes nothing.
func (h *handle) Flush(context.Context) syscall.Errno { return h.disk.faults.checkCrashed() }

func (h *handle) Release(context.Context) syscall.Errno { return fs.ToErrno(h.file.Close()) }
