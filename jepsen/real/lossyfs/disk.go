package main

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
)

// disk is one life of the disk, from a mount to a crash.
type disk struct {
	backing string // the folder that is passed through
	faults  *faults

	mu      sync.Mutex
	crashed bool
	files   map[uint64]*trackedFile // by inode: those that were ever written in this life
	names   nameJournal
}

// CrashLoss is what a crash took, and what it could have taken.
type CrashLoss struct {
	Pages, KeptPages int // written or cut off, and not flushed
	Files            int // that lost pages or fell back in length
	Names, KeptNames int // changes of names
}

// newDisk begins a life on a backing folder.
func newDisk(backing string) (*disk, error) {
	d := &disk{
		backing: filepath.Join(backing, "tree"),
		faults:  &faults{crashed: make(chan struct{})},
		files:   map[uint64]*trackedFile{},
		names:   nameJournal{savedDir: filepath.Join(backing, "grave"), dirs: map[uint64]int{}},
	}
	return d, errors.Join(os.MkdirAll(d.backing, 0o700), emptyDir(d.names.savedDir))
}

// change does what changes the disk, when the faults let it and unless there was a crash meanwhile.
func (d *disk) change(o op, do func() error) syscall.Errno {
	if errno := d.faults.admit(o); errno != 0 {
		return errno
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashed {
		return syscall.EIO
	}
	return fs.ToErrno(do())
}

// fileFor returns the account of a file. mu is held.
func (d *disk) fileFor(path string) (*trackedFile, error) {
	ino, err := inodeOf(path)
	if err != nil {
		return nil, err
	}
	if f, known := d.files[ino]; known {
		return f, nil
	}
	f, err := trackFile(path)
	if err == nil {
		d.files[ino] = f
	}
	return f, err
}

// forget gives up the accounts of files that no crash can bring back. mu is held. They may still be
// open, and written: then Go's collector closes them, when the last handle is gone.
func (d *disk) forget(inodes []uint64) {
	for _, ino := range inodes {
		delete(d.files, ino)
	}
}

// write writes into f, and remembers what was there.
func (d *disk) write(f *trackedFile, data []byte, off int64) (n int, errno syscall.Errno) {
	errno = d.change(opWrite, func() (err error) {
		end := off + int64(len(data))
		if err := f.saveRange(off, end); err != nil {
			return err
		}
		n, err = f.f.WriteAt(data, off)
		return err
	})
	return n, errno
}

// fsync makes what was written to a file durable, through whichever handle. If it fails, it never will
// be (L3).
func (d *disk) fsync(open *os.File) syscall.Errno {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(open.Fd()), &st); err != nil {
		return fs.ToErrno(err)
	}
	errno := d.change(opFsync, func() error {
		if f, written := d.files[st.Ino]; written {
			return f.markDurable()
		}
		return nil
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if f, written := d.files[st.Ino]; written && errno != 0 {
		f.dropDirty()
	}
	return errno
}

// fsyncDir makes the names in a folder durable.
func (d *disk) fsyncDir(path string) syscall.Errno {
	return d.change(opFsync, func() error {
		ino, err := inodeOf(path)
		if err != nil {
			return err
		}
		gone, err := d.names.commitDir(ino)
		d.forget(gone)
		return err
	})
}

// createName does what makes a name, which takes room, and keeps account of it.
func (d *disk) createName(path string, make func() error) syscall.Errno {
	return d.change(opWrite, func() error {
		if err := make(); err != nil {
			return err
		}
		return d.names.recordCreate(filepath.Dir(path), filepath.Base(path))
	})
}

// crash ends this life (L1, L2, L4). dice decides what is kept; nil = nothing.
func (d *disk) crash(dice *rand.Rand) (lost CrashLoss, err error) {
	close(d.faults.crashed)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashed = true
	// In an order that the seed alone decides: by what the files are called.
	files := slices.Collect(maps.Values(d.files))
	path := func(f *trackedFile) string {
		target, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.f.Fd())) // unreadable: any place will do
		return target
	}
	slices.SortFunc(files, func(a, b *trackedFile) int { return strings.Compare(path(a), path(b)) })
	for _, f := range files {
		err = errors.Join(err, f.crash(dice, &lost), f.f.Close())
	}
	d.files = nil
	return lost, errors.Join(err, d.names.crash(dice, &lost))
}
