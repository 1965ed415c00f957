package main

import (
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"
)

// op is a kind of operation that changes the disk.
type op int

const (
	opWrite op = iota // also truncate, allocate, and every change of names
	opFsync
)

// Faults is what a disk does wrong. The fields are those of the type in package disk.
type Faults struct {
	Stall      bool          // what changes the disk hangs: write, flush, truncate, create, rename, remove
	FsyncDelay time.Duration // each flush takes so much longer
	FailWrite  bool          // EIO for the next one; changes of names count as writes
	FailFsync  bool
	Full       bool // nothing is free but what is given back
}

// CrashLoss is what a crash took, and what it could have taken.
type CrashLoss struct {
	Pages, KeptPages int // written or cut off, and not flushed
	Files            int // that lost pages or fell back in length
	Names, KeptNames int // changes of names
}

// disk is one life of the disk, from a mount to a crash.
type disk struct {
	root *inode

	mu       sync.Mutex // guards what follows, and all inodes
	changed  *sync.Cond // when a fault or the life is over
	crashed  bool
	faults   Faults
	hanging  int   // operations
	capacity int64 // pages that fit on it at present
	inodes   uint64
	pending  []nameChange // that a crash would undo, in their order
}

// diskPages is the size of a disk: 1 GiB. The nodes want some hundred MiB of it free.
const diskPages = 1 << 30 / pageSize

// newDisk begins a life, with what the one before has left.
func newDisk(before *disk) *disk {
	d := &disk{capacity: diskPages}
	if before != nil {
		d.root, d.inodes = before.root, before.inodes
	} else {
		d.root = d.newInode(syscall.S_IFDIR | 0o700)
	}
	d.changed = sync.NewCond(&d.mu)
	return d
}

func (d *disk) newInode(mode uint32) *inode {
	d.inodes++ // the first is the root's, as FUSE has it
	return &inode{
		number: d.inodes, mode: mode, changed: time.Now(), names: map[string]*inode{}, pages: map[int64][]byte{}, flushed: map[int64]flushedPage{},
	}
}

// read does what changes nothing. Only a crash keeps it from that.
func (d *disk) read(do func() syscall.Errno) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashed {
		return syscall.EIO
	}
	return do()
}

// change does what changes the disk, when the faults let it and unless there was a crash meanwhile.
func (d *disk) change(o op, do func() syscall.Errno) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hanging++
	for d.faults.Stall && !d.crashed {
		d.changed.Wait()
	}
	if o == opFsync && d.faults.FsyncDelay > 0 {
		late := false
		time.AfterFunc(d.faults.FsyncDelay, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			late = true
			d.changed.Broadcast()
		})
		for !late && !d.crashed {
			d.changed.Wait()
		}
	}
	d.hanging--
	fail := &d.faults.FailWrite
	if o == opFsync {
		fail = &d.faults.FailFsync
	}
	if *fail || d.crashed {
		*fail = false
		return syscall.EIO
	}
	return do()
}

// setFaults replaces all faults. What hangs is done when the disk does not stall any more.
func (d *disk) setFaults(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults, d.capacity = f, diskPages
	if f.Full {
		d.capacity = d.used()
	}
	d.changed.Broadcast()
}

// used is how many pages are in use.
func (d *disk) used() (pages int64) {
	d.root.files(func(f *inode) bool {
		pages += int64(len(f.pages))
		return true
	})
	return pages
}

// flush makes an inode durable: what is in a file, the names in a folder. If that of a file fails, what it did not
// write is never written (L3).
func (d *disk) flush(f *inode) syscall.Errno {
	errno := d.change(opFsync, func() syscall.Errno {
		if f.isFile() {
			f.flush()
		} else {
			d.flushNames(f)
		}
		return 0
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if errno != 0 && !d.crashed {
		f.dropDirty()
	}
	return errno
}

// nameChange is one change of names that no folder's flush has made durable yet. What it undoes may have been changed
// durably since, through another folder: then that stays.
type nameChange struct {
	folders []*inode // a flush of one of them makes it durable
	undo    func()
	taken   *inode // what it took away; nil: nothing
}

// flushNames makes the changes in a folder durable.
func (d *disk) flushNames(folder *inode) {
	var durable []nameChange
	d.pending = slices.DeleteFunc(d.pending, func(c nameChange) bool {
		here := slices.Contains(c.folders, folder)
		if here {
			durable = append(durable, c)
		}
		return here
	})
	for _, c := range durable {
		if c.taken != nil {
			d.flushNames(c.taken) // a folder that is gone can't bring its names back
		}
	}
}

// create makes a name.
func (d *disk) create(folder *inode, name string, mode uint32) {
	made := d.newInode(mode)
	folder.names[name] = made
	d.pending = append(d.pending, nameChange{folders: []*inode{folder}, undo: func() {
		if folder.names[name] == made {
			delete(folder.names, name)
		}
	}})
}

// remove takes a name away: of a file, or of an empty folder.
func (d *disk) remove(folder *inode, name string) syscall.Errno {
	was := folder.names[name]
	switch {
	case was == nil:
		return syscall.ENOENT
	case len(was.names) > 0:
		return syscall.ENOTEMPTY
	}
	delete(folder.names, name)
	d.pending = append(d.pending, nameChange{folders: []*inode{folder}, taken: was, undo: func() {
		if folder.names[name] == nil {
			folder.names[name] = was
		}
	}})
	return 0
}

// move renames; what was at the new name is gone.
func (d *disk) move(folder *inode, name string, to *inode, toName string) syscall.Errno {
	moved, was := folder.names[name], to.names[toName]
	switch {
	case moved == nil:
		return syscall.ENOENT
	case moved == was:
		return 0
	case was != nil && len(was.names) > 0:
		return syscall.ENOTEMPTY
	}
	delete(folder.names, name)
	to.names[toName] = moved
	d.pending = append(d.pending, nameChange{folders: []*inode{folder, to}, taken: was, undo: func() {
		if to.names[toName] == moved {
			delete(to.names, toName)
			folder.names[name] = moved
		}
		if was != nil && to.names[toName] == nil {
			to.names[toName] = was
		}
	}})
	return 0
}

// end ends this life. What hangs ends with EIO.
func (d *disk) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashed = true
	d.changed.Broadcast()
}

// crash ends this life (L1, L2, L4). dice decides what is kept; nil = nothing.
func (d *disk) crash(dice *rand.Rand) (lost CrashLoss) {
	d.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	if dice != nil {
		lost.KeptNames = dice.IntN(len(d.pending) + 1)
	}
	lost.Names = len(d.pending) - lost.KeptNames
	for _, c := range slices.Backward(d.pending[lost.KeptNames:]) {
		c.undo()
	}
	d.root.files(func(f *inode) bool {
		f.crash(dice, &lost)
		return true
	})
	return lost
}
