package store

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// A LogKind is a way to keep the log on a disk.
type LogKind string

const (
	Bolt LogKind = "bolt" // bbolt: one file, two flushes for each write
	WAL  LogKind = "wal"  // raft-wal: segments, one flush for each write
)

// ParseLogKind returns the kind of this name; of an empty one, none.
func ParseLogKind(name string) (LogKind, error) {
	switch kind := LogKind(name); kind {
	case "", Bolt, WAL:
		return kind, nil
	}
	return "", fmt.Errorf("store: there is no log store %q; nothing was changed; name %s or %s", name, Bolt, WAL)
}

// A diskLog is the log of a directory, of either kind.
type diskLog struct {
	raft.LogStore
	name   string // of its file or folder, in the directory
	stamps Table  // where the incarnation is
	// reusable is how many bytes inside its files deletions have freed.
	reusable func() uint64
	// segmented: it deletes any range by one small write.
	segmented bool
	settle    func() error // notes what is known of an orderly end
	close     func() error
}

// logFiles are where each kind keeps its log.
var logFiles = map[LogKind]string{Bolt: "log.db", WAL: "log"}

// openLog opens the log of a directory, and flushes it: what the process before
// this one wrote and did not flush is read back, and must not count before it
// would survive a loss of power as well. fresh: it is made if there is none.
func openLog(cfg Config, dir string, kind LogKind, fresh bool) (*diskLog, error) {
	if kind == WAL {
		return openWAL(cfg, filepath.Join(dir, logFiles[WAL]), fresh)
	}
	path := filepath.Join(dir, logFiles[Bolt])
	if fresh {
		if err := makeBolt(path, logBucket); err != nil {
			return nil, err
		}
	}
	db, err := openBolt(path, logMapBytes)
	if err != nil {
		return nil, err
	}
	log, err := openBoltLog(db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &diskLog{
		LogStore: log, name: logFiles[Bolt], stamps: log.table,
		// Pages of the last deletion count as well: the next write frees them.
		reusable: func() uint64 { return uint64(db.Stats().FreeAlloc) },
		settle:   func() error { return nil }, // each write notes it
		close:    db.Close,
	}, db.Sync()
}
