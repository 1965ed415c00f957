package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// node is a file or folder, as the kernel asks for it.
type node struct {
	fs.Inode
	disk *disk
}

// go-fuse finds these by type assertion; listed here so that a changed signature does not compile.
var (
	_ fs.NodeLookuper  = (*node)(nil)
	_ fs.NodeGetattrer = (*node)(nil)
	_ fs.NodeSetattrer = (*node)(nil)
	_ fs.NodeReaddirer = (*node)(nil)
	_ fs.NodeCreater   = (*node)(nil)
	_ fs.NodeOpener    = (*node)(nil)
	_ fs.NodeMkdirer   = (*node)(nil)
	_ fs.NodeUnlinker  = (*node)(nil)
	_ fs.NodeRmdirer   = (*node)(nil)
	_ fs.NodeRenamer   = (*node)(nil)
	_ fs.NodeFsyncer   = (*node)(nil)
	_ fs.NodeStatfser  = (*node)(nil)
)

func (n *node) path(name string) string {
	return filepath.Join(n.disk.backing, n.Path(n.Root()), name)
}

// child is the node of an inode; the kernel may know it already. The number of a file that is gone can
// come again, so its birth is part of what it is.
func (n *node) child(ctx context.Context, path string, st *syscall.Stat_t) (*fs.Inode, error) {
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &x); err != nil {
		return nil, err
	}
	born := uint64(x.Btime.Sec)*1e9 + uint64(x.Btime.Nsec)
	return n.NewInode(ctx, &node{disk: n.disk}, fs.StableAttr{Mode: st.Mode, Ino: st.Ino, Gen: born}), nil
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.disk.faults.checkCrashed(); errno != 0 {
		return nil, errno
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(n.path(name), &st); err != nil {
		return nil, fs.ToErrno(err)
	}
	out.Attr.FromStat(&st)
	child, err := n.child(ctx, n.path(name), &st)
	return child, fs.ToErrno(err)
}

func (n *node) Getattr(_ context.Context, h fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if errno := n.disk.faults.checkCrashed(); errno != 0 {
		return errno
	}
	var st syscall.Stat_t
	err := error(nil)
	if h, open := h.(*handle); open {
		err = syscall.Fstat(int(h.file.Fd()), &st)
	} else {
		err = syscall.Lstat(n.path(""), &st)
	}
	if err == nil {
		out.FromStat(&st)
	}
	return fs.ToErrno(err)
}

// Setattr changes length and mode. Owners and times are ignored.
func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if mode, asked := in.GetMode(); asked {
		errno := n.disk.change(opWrite, func() error { return os.Chmod(n.path(""), os.FileMode(mode).Perm()) })
		if errno != 0 {
			return errno
		}
	}
	if size, asked := in.GetSize(); asked {
		errno := n.disk.change(opWrite, func() error {
			f, err := n.trackedFile(h)
			if err != nil {
				return err
			}
			return f.truncate(int64(size))
		})
		if errno != 0 {
			return errno
		}
	}
	return n.Getattr(ctx, h, out)
}

// trackedFile is what the disk knows of this file. mu is held.
func (n *node) trackedFile(h fs.FileHandle) (*trackedFile, error) {
	if h, open := h.(*handle); open && h.tracked != nil {
		return h.tracked, nil
	}
	return n.disk.fileFor(n.path(""))
}

func (n *node) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	if errno := n.disk.faults.checkCrashed(); errno != 0 {
		return nil, errno
	}
	entries, err := os.ReadDir(n.path(""))
	if err != nil {
		return nil, fs.ToErrno(err)
	}
	list := make([]fuse.DirEntry, 0, len(entries))
	for _, entry := range entries {
		mode := uint32(syscall.S_IFREG)
		if entry.IsDir() {
			mode = syscall.S_IFDIR
		}
		list = append(list, fuse.DirEntry{Name: entry.Name(), Mode: mode})
	}
	return fs.NewListDirStream(list), 0
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	path := n.path(name)
	errno := n.disk.createName(path, func() error {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, os.FileMode(mode).Perm())
		if err != nil {
			return err
		}
		return f.Close()
	})
	if errno != 0 && (errno != syscall.EEXIST || flags&syscall.O_EXCL != 0) {
		return nil, nil, 0, errno
	}
	inode, errno := n.Lookup(ctx, name, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	h, errno := n.disk.open(path, flags)
	return inode, h, 0, errno
}

func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, errno := n.disk.open(n.path(""), flags)
	return h, 0, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	path := n.path(name)
	errno := n.disk.createName(path, func() error { return os.Mkdir(path, os.FileMode(mode).Perm()) })
	if errno != 0 {
		return nil, errno
	}
	return n.Lookup(ctx, name, out)
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno {
	return n.disk.change(opWrite, func() error { return n.disk.names.remove(n.path(""), name) })
}

func (n *node) Rmdir(_ context.Context, name string) syscall.Errno {
	return n.disk.change(opWrite, func() error {
		entries, err := os.ReadDir(n.path(name))
		switch {
		case err != nil:
			return err
		case len(entries) > 0:
			return syscall.ENOTEMPTY
		}
		return n.disk.names.remove(n.path(""), name)
	})
}

func (n *node) Rename(_ context.Context, name string, to fs.InodeEmbedder, toName string,
	flags uint32) syscall.Errno {
	target, ours := to.(*node)
	if !ours || flags&^unix.RENAME_NOREPLACE != 0 {
		return syscall.EINVAL
	}
	return n.disk.change(opWrite, func() error {
		there, err := os.ReadDir(target.path(toName))
		switch {
		case err == nil && len(there) > 0:
			return syscall.ENOTEMPTY
		case !errors.Is(err, os.ErrNotExist) && flags != 0:
			return syscall.EEXIST
		}
		return n.disk.names.move(n.path(""), name, target.path(""), toName)
	})
}

// Fsync is asked of files and of folders.
func (n *node) Fsync(_ context.Context, h fs.FileHandle, _ uint32) syscall.Errno {
	if h, open := h.(*handle); open {
		return n.disk.fsync(h.file)
	}
	return n.disk.fsyncDir(n.path(""))
}

func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	if errno := n.disk.faults.checkCrashed(); errno != 0 {
		return errno
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(n.disk.backing, &st); err != nil {
		return fs.ToErrno(err)
	}
	out.FromStatfsT(&st)
	return 0
}
