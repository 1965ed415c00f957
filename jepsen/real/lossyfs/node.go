package main

import (
	"context"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// node is a file or folder in one life of the disk, as the kernel asks for it.
type node struct {
	fs.Inode
	disk *disk
	life int
	*inode
}

// go-fuse finds these by type assertion; listed here so that a changed signature does not compile.
var _ interface {
	fs.NodeLookuper
	fs.NodeGetattrer
	fs.NodeSetattrer
	fs.NodeReaddirer
	fs.NodeCreater
	fs.NodeOpener
	fs.NodeReader
	fs.NodeWriter
	fs.NodeAllocater
	fs.NodeMkdirer
	fs.NodeUnlinker
	fs.NodeRmdirer
	fs.NodeRenamer
	fs.NodeFsyncer
	fs.NodeStatfser
} = (*node)(nil)

// look does what changes nothing. Only a crash keeps it from that.
func (n *node) look(do func() syscall.Errno) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.life != n.disk.life {
		return syscall.EIO
	}
	return do()
}

// change does what changes the disk, when the faults let it and unless there was a crash meanwhile.
// What was left unwritten by a flush that failed stays so (L3).
func (n *node) change(o op, do func() syscall.Errno) syscall.Errno {
	d := n.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.faults.Stall && n.life == d.life {
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
		for !late && n.life == d.life {
			d.changed.Wait()
		}
	}
	if n.life != d.life {
		return syscall.EIO
	}
	fail := &d.faults.FailWrite
	if o == opFsync {
		fail = &d.faults.FailFsync
	}
	if *fail {
		*fail = false
		if o == opFsync {
			n.dropDirty()
		}
		return syscall.EIO
	}
	return do()
}

func (n *node) attributes(out *fuse.Attr) {
	out.Ino, out.Mode, out.Nlink, out.Size = n.number, n.mode, 1, uint64(n.size)
	out.Blocks, out.Blksize = uint64(len(n.pages))*(pageSize/512), pageSize
	out.SetTimes(nil, &n.changed, &n.changed)
}

// child is the node of a name in a folder; the kernel may know it already. The disk is locked.
func (n *node) child(ctx context.Context, name string,
	out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	of := n.names[name]
	if of == nil {
		return nil, syscall.ENOENT
	}
	child := &node{disk: n.disk, life: n.life, inode: of}
	child.attributes(&out.Attr)
	return n.NewInode(ctx, child, fs.StableAttr{Mode: of.mode, Ino: of.number}), 0
}

func (n *node) Lookup(ctx context.Context, name string,
	out *fuse.EntryOut) (child *fs.Inode, errno syscall.Errno) {
	errno = n.look(func() (errno syscall.Errno) {
		child, errno = n.child(ctx, name, out)
		return errno
	})
	return child, errno
}

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	return n.look(func() syscall.Errno {
		n.attributes(&out.Attr)
		return 0
	})
}

// Setattr changes length and mode. Owners and times are ignored.
func (n *node) Setattr(_ context.Context, _ fs.FileHandle, in *fuse.SetAttrIn,
	out *fuse.AttrOut) syscall.Errno {
	return n.change(opWrite, func() syscall.Errno {
		if mode, asked := in.GetMode(); asked {
			n.mode = n.mode&syscall.S_IFMT | mode&^syscall.S_IFMT
		}
		if size, asked := in.GetSize(); asked {
			n.truncate(int64(size))
		}
		n.attributes(&out.Attr)
		return 0
	})
}

func (n *node) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	var list []fuse.DirEntry
	errno := n.look(func() syscall.Errno {
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			list = append(list, fuse.DirEntry{Name: name, Mode: n.names[name].mode,
				Ino: n.names[name].number})
		}
		return 0
	})
	return fs.NewListDirStream(list), errno
}

// make makes a name, or finds it where that is allowed.
func (n *node) make(ctx context.Context, name string, mode uint32, existing bool,
	out *fuse.EntryOut,
) (child *fs.Inode, errno syscall.Errno) {
	errno = n.change(opWrite, func() (errno syscall.Errno) {
		switch {
		case n.names[name] == nil && n.disk.used() >= n.disk.capacity:
			return syscall.ENOSPC
		case n.names[name] == nil:
			n.disk.put(n.inode, name, n.disk.newInode(mode), nil, "")
		case !existing:
			return syscall.EEXIST
		}
		child, errno = n.child(ctx, name, out)
		return errno
	})
	return child, errno
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	child, errno := n.make(ctx, name, syscall.S_IFREG|mode&0o777, flags&syscall.O_EXCL == 0, out)
	return child, nil, 0, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32,
	out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.make(ctx, name, syscall.S_IFDIR|mode&0o777, false, out)
}

// Open: the kernel itself cuts files (O_TRUNC), appends, and flushes after each write (O_SYNC).
func (n *node) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, 0, n.look(func() syscall.Errno { return 0 })
}

func (n *node) Read(_ context.Context, _ fs.FileHandle, dest []byte,
	off int64) (fuse.ReadResult, syscall.Errno) {
	var got int
	errno := n.look(func() syscall.Errno {
		got = n.read(dest, off)
		return 0
	})
	return fuse.ReadResultData(dest[:got]), errno
}

// needs does what takes room for a range of a file, if there is that much.
func (n *node) needs(off, size int64, do func()) syscall.Errno {
	return n.change(opWrite, func() syscall.Errno {
		if more := n.missing(off, off+size); more > 0 && n.disk.used()+more > n.disk.capacity {
			return syscall.ENOSPC
		}
		do()
		return 0
	})
}

func (n *node) Write(_ context.Context, _ fs.FileHandle, data []byte,
	off int64) (uint32, syscall.Errno) {
	return uint32(len(data)), n.needs(off, int64(len(data)), func() { n.write(data, off) })
}

// Allocate takes room in advance; nothing else that fallocate can do is there.
func (n *node) Allocate(_ context.Context, _ fs.FileHandle, off, size uint64,
	mode uint32) syscall.Errno {
	if mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
		return syscall.EOPNOTSUPP
	}
	end := int64(off + size)
	return n.needs(int64(off), int64(size), func() {
		for page := int64(off) / pageSize; page*pageSize < end; page++ {
			if n.pages[page] == nil {
				n.pages[page] = make([]byte, pageSize)
				if _, changed := n.dirty[page]; !changed {
					n.flushed[page] = n.pages[page] // room that was taken stays
				}
			}
		}
		if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
			n.size = max(n.size, end)
		}
	})
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno {
	return n.change(opWrite, func() syscall.Errno {
		if n.names[name] == nil {
			return syscall.ENOENT
		}
		return n.disk.put(n.inode, name, nil, nil, "")
	})
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno { return n.Unlink(ctx, name) }

func (n *node) Rename(_ context.Context, name string, to fs.InodeEmbedder, toName string,
	flags uint32) syscall.Errno {
	if flags&^unix.RENAME_NOREPLACE != 0 {
		return syscall.EINVAL
	}
	return n.change(opWrite, func() syscall.Errno {
		folder, moved := to.(*node).inode, n.names[name]
		was := folder.names[toName]
		switch {
		case flags != 0 && was != nil:
			return syscall.EEXIST
		case moved == nil:
			return syscall.ENOENT
		case moved == was:
			return 0
		}
		return n.disk.put(folder, toName, moved, n.inode, name)
	})
}

// Fsync makes durable what is in a file, or the names in a folder.
func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	return n.change(opFsync, func() syscall.Errno {
		n.flush()
		n.disk.flushNames(n.inode)
		return 0
	})
}

func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	return n.look(func() syscall.Errno {
		free := uint64(max(0, n.disk.capacity-n.disk.used()))
		out.Blocks, out.Bfree, out.Bavail = diskPages, free, free
		out.Bsize, out.Frsize, out.NameLen = pageSize, pageSize, 255
		return 0
	})
}
