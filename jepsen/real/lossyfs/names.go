package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Names are changed at once in the folder behind, and what was removed or replaced is moved into the
// grave, from where a crash brings it back. A folder is known by its inode, because its path may change.

// nameChange is one change of names that no folder's flush has made durable yet.
type nameChange struct {
	dirs []uint64 // a flush of one of them makes it durable
	undo func() error
	// savedPath is where that lies which the change took away; empty: nothing.
	savedPath  string
	savedInode uint64 // the inode of what lies there
}

// nameJournal are the changes that a crash would undo, in their order. Owned by disk.mu.
type nameJournal struct {
	savedDir   string
	savedCount int            // how many names the grave has been given
	dirs       map[uint64]int // folders of pending changes, open
	pending    []nameChange
}

// openDir opens the folder of a change; it stays open until the change is durable or undone.
func (n *nameJournal) openDir(path string) (ino uint64, fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, 0, errors.Join(err, unix.Close(fd))
	}
	if open, known := n.dirs[st.Ino]; known {
		return st.Ino, open, unix.Close(fd)
	}
	n.dirs[st.Ino] = fd
	return st.Ino, fd, nil
}

// newSavedPath is a new place in the grave.
func (n *nameJournal) newSavedPath() string {
	n.savedCount++
	return filepath.Join(n.savedDir, fmt.Sprint(n.savedCount))
}

// recordCreate: name is new in dir.
func (n *nameJournal) recordCreate(dir, name string) error {
	ino, fd, err := n.openDir(dir)
	if err != nil {
		return err
	}
	n.pending = append(n.pending, nameChange{dirs: []uint64{ino}, undo: func() error {
		return unix.Renameat(fd, name, unix.AT_FDCWD, n.newSavedPath())
	}})
	return nil
}

// remove takes name out of dir.
func (n *nameJournal) remove(dir, name string) error {
	ino, fd, err := n.openDir(dir)
	if err != nil {
		return err
	}
	c := nameChange{dirs: []uint64{ino}, savedPath: n.newSavedPath()}
	if c.savedInode, err = inodeOf(filepath.Join(dir, name)); err != nil {
		return err
	}
	if err := unix.Renameat(fd, name, unix.AT_FDCWD, c.savedPath); err != nil {
		return err
	}
	c.undo = func() error { return unix.Renameat(unix.AT_FDCWD, c.savedPath, fd, name) }
	n.pending = append(n.pending, c)
	return nil
}

// move renames; what was at the new name goes to the grave.
func (n *nameJournal) move(dir, name, toDir, toName string) error {
	ino, fd, err := n.openDir(dir)
	if err != nil {
		return err
	}
	toIno, toFD, err := n.openDir(toDir)
	if err != nil {
		return err
	}
	c := nameChange{dirs: []uint64{ino, toIno}}
	back := func() error { return unix.Renameat(toFD, toName, fd, name) }
	err = unix.Renameat2(fd, name, toFD, toName, unix.RENAME_NOREPLACE)
	if errors.Is(err, syscall.EEXIST) {
		c.savedPath = n.newSavedPath()
		if c.savedInode, err = inodeOf(filepath.Join(toDir, toName)); err != nil {
			return err
		}
		// In this order there is no moment in which the new name is missing.
		if err = unix.Renameat2(fd, name, toFD, toName, unix.RENAME_EXCHANGE); err == nil {
			err = unix.Renameat(fd, name, unix.AT_FDCWD, c.savedPath)
		}
	}
	if err != nil {
		return err
	}
	c.undo = back
	if c.savedPath != "" {
		c.undo = func() error { return errors.Join(back(), unix.Renameat(unix.AT_FDCWD, c.savedPath, toFD, toName)) }
	}
	n.pending = append(n.pending, c)
	return nil
}

// commitDir makes the changes in a folder durable, and returns the inodes that are gone for good.
func (n *nameJournal) commitDir(dir uint64) (gone []uint64, err error) {
	todo := []uint64{dir}
	for len(todo) > 0 {
		dir, todo = todo[0], todo[1:]
		var durable []nameChange
		n.pending = slices.DeleteFunc(n.pending, func(c nameChange) bool {
			if slices.Contains(c.dirs, dir) {
				durable = append(durable, c)
				return true
			}
			return false
		})
		for _, c := range durable {
			if c.savedPath == "" {
				continue
			}
			err = errors.Join(err, os.RemoveAll(c.savedPath))
			gone = append(gone, c.savedInode)
			todo = append(todo, c.savedInode) // a folder that is gone can't bring its names back
		}
		if fd, open := n.dirs[dir]; open && !n.hasPending(dir) {
			delete(n.dirs, dir)
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return gone, err
}

func (n *nameJournal) hasPending(dir uint64) bool {
	return slices.ContainsFunc(n.pending, func(c nameChange) bool { return slices.Contains(c.dirs, dir) })
}

// crash undoes what is pending, the latest first, but for a beginning that may be kept.
func (n *nameJournal) crash(dice *rand.Rand, lost *CrashLoss) (err error) {
	kept := 0
	if dice != nil {
		kept = dice.IntN(len(n.pending) + 1)
	}
	lost.KeptNames, lost.Names = kept, len(n.pending)-kept
	for _, c := range slices.Backward(n.pending[kept:]) {
		// A name may be gone because it was moved away durably, to another folder.
		if undone := c.undo(); !errors.Is(undone, syscall.ENOENT) {
			err = errors.Join(err, undone)
		}
	}
	for _, fd := range n.dirs {
		err = errors.Join(err, unix.Close(fd))
	}
	n.pending, n.dirs = nil, map[uint64]int{}
	return errors.Join(err, emptyDir(n.savedDir))
}

// emptyDir makes dir a new, empty folder.
func emptyDir(dir string) error {
	return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700))
}

func inodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return st.Ino, err
}
