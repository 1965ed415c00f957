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
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

const (
	logName   = "log.db"
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

	// stampKey is where log.db and votes.db carry the incarnation (S8).
	stampKey = "incarnation"
)

var tableBucket = []byte("table")

// dirFiles are the open files of a data directory.
type dirFiles struct {
	dir   string
	log   *raftboltdb.BoltStore
	votes *bbolt.DB
}

// openDir opens the files of a data directory. The lock of log.db guards all of
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
	if err := files.open(); err != nil {
		return medium{}, errors.Join(err, files.close())
	}
	m, err := files.medium(cfg)
	if err != nil {
		return medium{}, errors.Join(err, files.close())
	}
	return m, nil
}

func (f *dirFiles) open() error {
	log, err := raftboltdb.New(raftboltdb.Options{
		Path:        filepath.Join(f.dir, logName),
		BoltOptions: boltOptions(logMapBytes),
	})
	if err != nil {
		return f.openError(logName, err)
	}
	f.log = log

	path := filepath.Join(f.dir, votesName)
	db, err := bbolt.Open(path, 0o600, boltOptions(0))
	if err != nil {
		return f.openError(votesName, err)
	}
	f.votes = db
	if err := allocate(path, votesPages*int64(os.Getpagesize())); err != nil {
		return f.openError(votesName, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(tableBucket)
		return err
	})
	if err != nil {
		return f.openError(votesName, err)
	}
	return nil
}

// boltOptions: bbolt finds its free pages at the next start by itself, which
// saves writing them at each commit, and keeps them in a map, because the list
// that is its default gets slow in a log that grows and shrinks all the time.
func boltOptions(mapBytes int) *bbolt.Options {
	return &bbolt.Options{
		Timeout:         lockWait,
		NoFreelistSync:  true,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: mapBytes,
	}
}

func (f *dirFiles) openError(name string, err error) error {
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return fmt.Errorf("store: %w: another process has had %s open for the last %v; nothing was changed; "+
			"end that process first (fuser %s names it), or give this node a directory of its own",
			ErrLocked, f.dir, lockWait, filepath.Join(f.dir, name))
	}
	return fmt.Errorf("store: %s can't be opened: %w; the node was not started and its data is as it was; "+
		"check permissions, free space and disk; if the file is damaged let the node join under a new id",
		filepath.Join(f.dir, name), err)
}

func (f *dirFiles) medium(cfg Config) (medium, error) {
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(f.dir, snapshotsKept, cfg.Logger)
	if err != nil {
		return medium{}, f.openError("snapshots", err)
	}
	m := medium{
		logs:      f.log,
		votes:     boltTable{f.votes},
		snapshots: snapshots,
		folders:   filepath.Join(f.dir, "snapshots"),
		where:     f.dir,
		keep:      func(id Identity) error { return writeIdentity(f.dir, id) },
		free:      func() (uint64, error) { return freeBytes(f.dir) },
		// Pages of the last deletion count as well: the next write frees them.
		reusable: func() uint64 { return uint64(f.log.Stats().FreeAlloc) },
		close:    f.close,
	}
	m.identity, err = readIdentity(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		m.identity, err = f.found(m, cfg.NodeID)
	}
	if err != nil {
		return medium{}, err
	}
	return m, f.checkStamps(m)
}

// found makes a new node of a directory without identity. The identity is
// written last: a crash before that leaves files without data, and the next
// start begins again.
func (f *dirFiles) found(m medium, node string) (Identity, error) {
	used, err := raft.HasExistingState(m.logs, &votes{table: m.votes}, m.snapshots)
	if err != nil {
		return Identity{}, err
	}
	if used {
		return Identity{}, lost(f.dir, identityName+" is missing, but there is a log, a vote or a snapshot")
	}
	id := Identity{Format: formatNow, Node: node, Incarnation: NewID()}
	if err := f.log.Set([]byte(stampKey), id.Incarnation[:]); err != nil {
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
	if stamp, err := f.log.Get([]byte(stampKey)); err != nil || !bytes.Equal(stamp, want) {
		return lost(f.dir, logName+" is missing or from another directory")
	}
	if stamp, err := m.votes.Get(stampKey); err != nil || !bytes.Equal(stamp, want) {
		return lost(f.dir, votesName+" is missing or from another directory")
	}
	return nil
}

// close gives up the lock last.
func (f *dirFiles) close() error {
	var err error
	if f.votes != nil {
		err = f.votes.Close()
	}
	if f.log != nil {
		err = errors.Join(err, f.log.Close())
	}
	return err
}

// boltTable is a Table in one bucket of a bbolt file.
type boltTable struct{ db *bbolt.DB }

func (t boltTable) Get(key string) (value []byte, err error) {
	err = t.db.View(func(tx *bbolt.Tx) error {
		found := tx.Bucket(tableBucket).Get([]byte(key))
		if found == nil {
			return errNotFound
		}
		value = bytes.Clone(found) // bbolt's memory ends with the transaction
		return nil
	})
	return value, err
}

func (t boltTable) Put(pairs ...Pair) error {
	return t.db.Update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(tableBucket)
		for _, pair := range pairs {
			if err := bucket.Put([]byte(pair.Key), pair.Value); err != nil {
				return err
			}
		}
		return nil
	})
}
