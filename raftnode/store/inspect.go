package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"
)

// intact does a reading of a file. What keeps it from being done, other than a value that is not
// there, is damage.
func intact(file string, read func() error) error {
	err := guarded(read)
	if err == nil || errors.Is(err, errNotFound) {
		return nil
	}
	return Damaged(file, err.Error())
}

// inspectLog reads the whole log: every entry that there is said to be must be there, and be what
// was written. It returns the term of the last one.
func inspectLog(m *medium) (term uint64, err error) {
	first, last, err := bounds(m.logs)
	if err != nil || last == 0 {
		return 0, err
	}
	err = intact(m.logName, func() error {
		for index := first; index <= last; index++ {
			var entry raft.Log
			if err := readEntry(m.logs, index, &entry); err != nil {
				return fmt.Errorf("entry %d of %d to %d: %w", index, first, last, err)
			}
			if entry.Term < term {
				return fmt.Errorf("entry %d is of term %d, and the one before it of term %d", index, entry.Term, term)
			}
			term = entry.Term
		}
		return nil
	})
	return term, err
}

func bounds(log raft.LogStore) (first, last uint64, err error) {
	first, firstErr := log.FirstIndex()
	last, lastErr := log.LastIndex()
	return first, last, errors.Join(firstErr, lastErr)
}

// inspectSnapshots looks for the newest snapshot that can be read, and refuses one that can't unless
// the log has everything that came after the one before it: raft would go on from the older one, and
// not notice what is missing between that and the log.
func inspectSnapshots(m *medium) error {
	first, last, err := bounds(m.logs)
	if err != nil {
		return err
	}
	names, err := snapshotNames(m.snapshots, m.folders)
	if err != nil {
		return err
	}
	var base uint64
	var unreadable error
	for _, name := range names {
		meta, state, err := openSnapshot(m.snapshots, m.folders, name.id)
		if err == nil {
			base, err = meta.Index, state.Close()
		}
		if err == nil {
			break
		}
		m.unreadable = append(m.unreadable, name.id)
		if unreadable == nil {
			unreadable = Damaged(filepath.Join(m.folders, name.id), err.Error())
		}
	}
	reaches := last > 0 && first <= base+1
	switch {
	case unreadable != nil && (!reaches || last < names[0].index):
		return unreadable
	case last > 0 && !reaches:
		return Damaged(m.logName, fmt.Sprintf("it begins with entry %d, and the newest snapshot ends with entry %d", first, base))
	}
	return nil
}

// dropCovered ends what was begun when the leader sent a snapshot: the whole log goes. A log that ends
// before the snapshot would have a gap with the next entry.
func (s *Store) dropCovered() error {
	covered, err := newestSnapshot(s.snapshots)
	if err != nil {
		return err
	}
	first, last, err := bounds(s.logs)
	if err != nil || last == 0 || last >= covered {
		return err
	}
	return s.logs.DeleteRange(first, last)
}

// newestSnapshot is the index up to which the newest snapshot holds everything; 0 if there is none.
func newestSnapshot(snapshots raft.SnapshotStore) (uint64, error) {
	metas, err := snapshots.List()
	if err != nil || len(metas) == 0 {
		return 0, err
	}
	newest := slices.MaxFunc(metas, func(a, b *raft.SnapshotMeta) int {
		if newer(*a, *b) {
			return 1
		}
		return -1
	})
	return newest.Index, nil
}
