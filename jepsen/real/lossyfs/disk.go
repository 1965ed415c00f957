package main

import (
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
	// what changes the disk hangs: write, flush, truncate, create, rename, remove
	Stall      bool
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

// disk outlives crashes. Its exported methods are the commands, of which the other side gives one
// at a time.
type disk struct {
	mount string // where it appears
	root  *inode

	mu       sync.Mutex // guards what follows, and all inodes
	changed  *sync.Cond // when a fault or the life is over
	life     int        // a crash ends one and begins the next
	mounted  int        // the life that was mounted last
	faults   Faults
	capacity int64 // pages that fit on it at present
	inodes   uint64
	pending  []nameChange // that a crash would undo, in their order
}

// diskPages is the size of a disk: 1 GiB. The nodes want some hundred MiB of it free.
const diskPages = 1 << 30 / pageSize

func newDisk(mount string) *disk {
	d := &disk{mount: mount, life: 1, capacity: diskPages}
	d.root = d.newInode(syscall.S_IFDIR | 0o700)
	d.changed = sync.NewCond(&d.mu)
	return d
}

func (d *disk) newInode(mode uint32) *inode {
	d.inodes++ // the first is the root's, as FUSE has it
	return &inode{
		number: d.inodes, mode: mode, changed: time.Now(), names: map[string]*inode{},
		pages: map[int64][]byte{}, flushed: map[int64][]byte{}, dirty: map[int64]bool{},
	}
}

// used is how many pages are in use.
func (d *disk) used() (pages int64) {
	d.root.each(func(f *inode) { pages += int64(len(f.pages)) })
	return pages
}

// nameChange is one change of names that no folder's flush has made durable yet. What it undoes may
// have been changed durably since, through another folder: then that stays.
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

// put gives a name to an inode, and takes away what had it; nil only takes that away. An inode that
// is moved loses its former name; from is nil for a new one.
func (d *disk) put(folder *inode, name string, f, from *inode, fromName string) syscall.Errno {
	was := folder.names[name]
	if was != nil && len(was.names) > 0 {
		return syscall.ENOTEMPTY
	}
	change := nameChange{folders: []*inode{folder}, taken: was, undo: func() {
		if f != nil && folder.names[name] == f {
			delete(folder.names, name)
			if from != nil {
				from.names[fromName] = f
			}
		}
		if was != nil && folder.names[name] == nil {
			folder.names[name] = was
		}
	}}
	if from != nil {
		delete(from.names, fromName)
		change.folders = append(change.folders, from)
	}
	delete(folder.names, name)
	if f != nil {
		folder.names[name] = f
	}
	d.pending = append(d.pending, change)
	return 0
}
