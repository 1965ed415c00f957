package store

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"zamok/raftnode/tail"
)

// A medium keeps the data of a node: a directory, or a Memory. It is locked while it is open (S7).
type medium interface {
	// path returns where the file of this name is, for messages; of an empty name, where the medium
	// is.
	path(name string) string

	list(folder string) (names []string, err error)
	read(name string) ([]byte, error)
	create(name string) (draft, error)
	remove(name string) error // if it is there
	free() uint64

	// openVotes and openLog open the two files that are written all the time. fresh: the file is
	// made if there is none, otherwise one that is missing is refused.
	openVotes(fresh bool) (Table, error)
	openLog(id ID, fresh bool) (engine, error)

	// close closes the votes, and gives up the lock.
	close() error
}

// A draft is a file that is being written. It gets its name when it is committed, after all of it
// is flushed, and then replaces an older file of that name; a crash leaves the one or the other,
// whole.
type draft struct {
	io.Writer
	commit, discard func() error
}

// An engine keeps the log's entries. Its caller knows which entries there are: it is never asked
// for another entry, nor to append behind a gap, nor to delete others than the first ones. An
// append of entries that it has takes their place, and that of all behind them.
type engine interface {
	raft.LogStore
	// inspect verifies all entries, and returns the term of the last one.
	inspect() (term uint64, err error)
	// lost is the end of what may have been acknowledged and is not there; zero: nothing is
	// missing.
	lost() tail.End
	// begin comes before the first write, and overwrites what is left of what was lost.
	begin() error
	// latest is the index of the first of the latest entries that take together at most so many
	// bytes.
	latest(bytes int) (from uint64)
	// markDurable records that what was written is durable.
	markDurable() error
	close() error
}

const (
	lockName       = "lock"
	votesName      = "votes.db"
	logName        = "log"
	snapshotFolder = "snapshots"

	// unfinished ends the name of a file that is being written.
	unfinished = ".tmp"

	// votesPages of the votes' file are allocated on the disk in advance (S5). A
	// few short values, written in turn, never use as many.
	votesPages = 16

	// lockWait is how long Open waits for another process that is just ending.
	lockWait = time.Second
)

// A directory is the data directory of a node.
type directory struct {
	dir   string
	lock  *os.File
	votes *bbolt.DB // nil until they are open
}

func openDirectory(dir string) (medium, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = makeDir(filepath.Join(dir, snapshotFolder))
	}
	if err != nil {
		return nil, fmt.Errorf("store: the data directory can't be made: %w; nothing was opened; "+
			"check the path and its permissions", err)
	}
	d := &directory{dir: dir}
	if d.lock, err = os.OpenFile(d.path(lockName), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, d.openError(lockName, err)
	}
	if err := lockFile(d.lock); err != nil {
		return nil, errors.Join(d.openError(lockName, err), d.lock.Close())
	}
	return d, nil
}

func (d *directory) path(name string) string          { return filepath.Join(d.dir, name) }
func (d *directory) read(name string) ([]byte, error) { return os.ReadFile(d.path(name)) }
func (d *directory) free() uint64                     { return freeBytes(d.dir) }

// remove does not try twice, as os.RemoveAll does: no failure of the disk goes unnoticed.
func (d *directory) remove(name string) error {
	err := os.Remove(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d *directory) list(folder string) ([]string, error) {
	entries, err := os.ReadDir(d.path(folder))
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names, err
}

// create makes a file that is left alone once it has its name, whatever fails then: it is whole.
func (d *directory) create(name string) (draft, error) {
	f, err := os.OpenFile(d.path(name)+unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return draft{}, err
	}
	text := bufio.NewWriter(f) // keeps the first error
	discard := func() error { return errors.Join(f.Close(), os.Remove(f.Name())) }
	commit := func() error {
		if err := errors.Join(text.Flush(), f.Sync()); err != nil {
			return errors.Join(err, discard())
		}
		return errors.Join(f.Close(), rename(f.Name(), d.path(name)))
	}
	return draft{text, commit, discard}, nil
}

func (d *directory) openVotes(fresh bool) (Table, error) {
	path := d.path(votesName)
	if !fresh && !isThere(path) {
		return nil, lost(d, "%s is missing", votesName)
	}
	table, err := openBoltTable(path, fresh)
	if err == nil {
		d.votes = table.db
		err = allocateVotes(path)
	}
	return table, d.openError(votesName, err)
}

// allocateVotes makes sure that the votes have room on the disk (S5).
func allocateVotes(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(allocate(f, votesPages*int64(os.Getpagesize())), f.Close())
}

func (d *directory) openLog(id ID, fresh bool) (engine, error) {
	path := d.path(logName)
	if !fresh && !isThere(path) {
		return nil, lost(d, "%s is missing", logName)
	}
	log, err := openSegments(path, id, fresh)
	if err != nil {
		return nil, d.openError(logName, err)
	}
	if log.id != id && !fresh {
		return nil, errors.Join(lost(d, "%s is from another directory", logName), log.close())
	}
	return log, nil
}

func (d *directory) openError(name string, err error) error {
	if err == nil {
		return nil
	}
	if err = asDamage(d.path(name), err); errors.Is(err, ErrDamaged) {
		return err // which names the file
	}
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return fmt.Errorf(
			"store: %w: another process has had %s open for the last %v; nothing was changed; "+
				"end that process first (fuser %s names it), or give this node a directory "+
				"of its own",
			ErrLocked, d.dir, lockWait, d.path(name))
	}
	return fmt.Errorf("store: %s can't be opened: %w; the node was not started and its data is "+
		"as it was; check permissions, free space and disk", d.path(name), err)
}

func (d *directory) close() (err error) {
	if d.votes != nil {
		err = d.votes.Close()
	}
	return errors.Join(err, d.lock.Close())
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// rename gives a file that is complete and flushed its name.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return flush(filepath.Dir(to))
}

// flush makes a file, or the names in a directory, survive a crash.
func flush(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// makeDir makes dir and what is missing above it, so that all of it survives a
// crash: a node whose directory vanished would count as new.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	above := filepath.Dir(dir)
	if above == dir {
		return fs.ErrNotExist // the root of a volume
	}
	if err := makeDir(above); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return flush(above)
}
