package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	bbolterrors "go.etcd.io/bbolt/errors"
)

const (
	votesName = "votes.db"

	// lockWait is how long Open waits for another process that is just ending.
	lockWait = time.Second

	// logMapBytes is mapped from the start, because to grow the map makes writers
	// wait for readers.
	logMapBytes = 64 << 20

	// votesPages of the votes' file get their room on the disk in advance (S5). A
	// few short values, written in turn, never use as many.
	votesPages = 16

	// snapshotsKept: the newest, and the one before it should the newest turn out
	// to be unreadable.
	snapshotsKept = 2

	// stampKey is where the log and votes.db carry the incarnation (S8).
	stampKey = "incarnation"
)

// dirFiles are the open files of a data directory.
type dirFiles struct {
	dir   string
	log   *diskLog
	votes boltTable
}

// openDir opens the files of a data directory. The lock of votes.db guards all of
// them, so it is opened first.
func openDir(cfg Config) (medium, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return medium{}, err
	}
	if err := makeDir(dir); err != nil {
		return medium{}, fmt.Errorf("store: the data directory can't be made: %w; nothing was opened; check the path and its permissions", err)
	}
	files := &dirFiles{dir: dir}
	m, err := files.open(cfg)
	if err != nil {
		return medium{}, errors.Join(err, files.close())
	}
	return m, nil
}

func (f *dirFiles) open(cfg Config) (medium, error) {
	if err := f.openVotes(); err != nil {
		return medium{}, err
	}
	id, err := readIdentity(f.dir) // once more: another process may have begun the directory meanwhile
	born := errors.Is(err, fs.ErrNotExist)
	if err != nil && !born {
		return medium{}, err
	}
	if err := os.RemoveAll(filepath.Join(f.dir, votesName+newFileSuffix)); err != nil { // of a process that came too late
		return medium{}, err
	}
	kind := id.logKind()
	if born && cfg.Log != "" {
		kind = cfg.Log
	}
	if err := f.checkKind(cfg, kind, born); err != nil {
		return medium{}, err
	}
	if err := f.checkThere(logFiles[kind], born); err != nil {
		return medium{}, err
	}
	if f.log, err = openLog(cfg, f.dir, kind, born); err != nil {
		return medium{}, f.openError(logFiles[kind], err)
	}
	m, err := f.medium(cfg)
	if err != nil {
		return medium{}, err
	}
	if m.identity = id; born {
		if m.identity, err = f.found(m, cfg.NodeID, kind); err != nil {
			return medium{}, err
		}
	}
	return m, f.checkStamps(m)
}

// checkKind refuses a log that is kept in another way than the one asked for: the
// node would begin with an empty one.
func (f *dirFiles) checkKind(cfg Config, kind LogKind, born bool) error {
	if cfg.Log != "" && cfg.Log != kind {
		return fmt.Errorf("store: %w: %s was begun with log store %q, and this start asks for %q; nothing was changed; "+
			"start it with %q, or, to change it to %q, %s",
			ErrOtherLog, f.dir, kind, cfg.Log, kind, cfg.Log, replaceNode)
	}
	for other, name := range logFiles {
		if _, err := os.Stat(filepath.Join(f.dir, name)); born && other != kind && err == nil {
			return lost(f.dir, fmt.Sprintf("%s is missing, and %s is there, the log of a node with log store %q", identityName, name, other))
		}
	}
	return nil
}

// checkThere refuses a directory that has an identity and lacks this file.
func (f *dirFiles) checkThere(name string, born bool) error {
	if !born && !isThere(filepath.Join(f.dir, name)) {
		return lost(f.dir, name+" is missing")
	}
	return nil
}

func (f *dirFiles) openVotes() error {
	_, err := os.Stat(filepath.Join(f.dir, identityName))
	born := errors.Is(err, fs.ErrNotExist)
	if err := f.checkThere(votesName, born); err != nil {
		return err
	}
	path := filepath.Join(f.dir, votesName)
	if born {
		if err := makeBolt(path); err != nil {
			return f.openError(votesName, err)
		}
	}
	db, err := openBolt(path, 0)
	if err != nil {
		return f.openError(votesName, err)
	}
	f.votes.db = db
	if err := allocate(path, votesPages*int64(os.Getpagesize())); err != nil {
		return f.openError(votesName, err)
	}
	if f.votes, err = newBoltTable(db); err != nil {
		return f.openError(votesName, err)
	}
	return nil
}

func (f *dirFiles) openError(name string, err error) error {
	if err = asDamage(filepath.Join(f.dir, name), err); errors.Is(err, ErrDamaged) {
		return err // which names the file
	}
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return fmt.Errorf("store: %w: another process has had %s open for the last %v; nothing was changed; "+
			"end that process first (fuser %s names it), or give this node a directory of its own",
			ErrLocked, f.dir, lockWait, filepath.Join(f.dir, name))
	}
	return fmt.Errorf("store: %s can't be opened: %w; the node was not started and its data is as it was; "+
		"check permissions, free space and disk",
		filepath.Join(f.dir, name), err)
}

func (f *dirFiles) medium(cfg Config) (medium, error) {
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(f.dir, snapshotsKept, cfg.Logger)
	if err != nil {
		return medium{}, f.openError("snapshots", err)
	}
	m := medium{
		logs:      f.log.LogStore,
		logName:   filepath.Join(f.dir, f.log.name),
		votesName: filepath.Join(f.dir, votesName),
		segmented: f.log.segmented,
		votes:     f.votes,
		snapshots: snapshots,
		folders:   filepath.Join(f.dir, "snapshots"),
		where:     f.dir,
		keep:      func(id Identity) error { return writeIdentity(f.dir, id) },
		free:      func() (uint64, error) { return freeBytes(f.dir) },
		reusable:  f.log.reusable,
		settle:    f.log.settle,
		close:     f.close,
	}
	return m, nil
}

// found makes a new node of a directory without identity. The identity is
// written last: a crash before that leaves files without data, and the next
// start begins again.
func (f *dirFiles) found(m medium, node string, kind LogKind) (Identity, error) {
	used, err := raft.HasExistingState(m.logs, &votes{table: m.votes}, m.snapshots)
	if err != nil {
		return Identity{}, err
	}
	if used {
		return Identity{}, lost(f.dir, identityName+" is missing, but there is a log, a vote or a snapshot")
	}
	id := Identity{Format: formatNow, Node: node, Incarnation: NewID()}
	if kind != Bolt {
		id.Log = kind
	}
	if err := f.log.stamps.Put(Pair{stampKey, id.Incarnation[:]}); err != nil {
		return Identity{}, err
	}
	if err := m.votes.Put(Pair{stampKey, id.Incarnation[:]}); err != nil {
		return Identity{}, err
	}
	return id, writeIdentity(f.dir, id)
}

// checkStamps refuses a log or votes that were not born with this identity.
func (f *dirFiles) checkStamps(m medium) error {
	want := m.identity.Incarnation[:]
	if stamp, err := f.log.stamps.Get(stampKey); err != nil || !bytes.Equal(stamp, want) {
		return lost(f.dir, f.log.name+" is from another directory")
	}
	if stamp, err := m.votes.Get(stampKey); err != nil || !bytes.Equal(stamp, want) {
		return lost(f.dir, votesName+" is from another directory")
	}
	return nil
}

// close gives up the lock last.
func (f *dirFiles) close() error {
	var err error
	if f.log != nil {
		err = f.log.close()
	}
	if f.votes.db != nil {
		err = errors.Join(err, f.votes.db.Close())
	}
	return err
}
