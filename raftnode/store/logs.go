package store

import "github.com/hashicorp/raft"

const (
	// DeleteChunk, in entries, bounds one transaction of a deletion. bbolt has
	// one writer per file, so an append waits for at most this much.
	DeleteChunk = 256

	// LogCacheEntries is how many of the latest entries are kept in memory.
	// Without them every follower's apply and every message of a leader to a
	// follower reads the disk.
	LogCacheEntries = 512
)

// admittedLog is what raft sees: the floor of free space in front of the cache.
// It stands outside the cache because LogCache turns errors into text, and
// ErrDiskFull and ErrBroken must reach those who ask for them with errors.Is.
type admittedLog struct {
	*raft.LogCache
	pen       *pen
	space     *space
	segmented bool
}

// IsMonotonic tells raft that the log can't have gaps: after a snapshot from the
// leader it deletes the whole log, and not only what the snapshot holds.
func (l *admittedLog) IsMonotonic() bool { return l.segmented }

func (l *admittedLog) StoreLog(entry *raft.Log) error {
	return l.StoreLogs([]*raft.Log{entry})
}

func (l *admittedLog) StoreLogs(entries []*raft.Log) error {
	if err := l.space.admit(bytesOf(entries)); err != nil {
		l.pen.record.observe(Write{Op: OpAppend, Entries: len(entries), Bytes: bytesOf(entries), Err: err})
		return err
	}
	if err := l.LogCache.StoreLogs(entries); err != nil {
		return l.pen.record.ended() // the error that LogCache made text of
	}
	return nil
}

// pennedLog is what the cache writes to: the disk's log, one timed write at a
// time.
type pennedLog struct {
	raft.LogStore
	pen       *pen
	segmented bool
}

func (l *pennedLog) StoreLog(entry *raft.Log) error {
	return l.StoreLogs([]*raft.Log{entry})
}

func (l *pennedLog) StoreLogs(entries []*raft.Log) error {
	w := Write{Op: OpAppend, Entries: len(entries), Bytes: bytesOf(entries)}
	return l.pen.write(w, func() error { return l.LogStore.StoreLogs(entries) })
}

// DeleteRange deletes from first to last, both included, in chunks (S6).
//
// A range that reaches the end of the log goes from the back, any other from the
// front, so that a crash between two chunks leaves no hole. Raft asks for the
// first to drop entries that conflict with the leader's: were their front gone
// and their end still there, the end would count as this node's log. It asks for
// the second to drop what a snapshot holds; if that is the whole log, what a
// crash leaves in front is in the snapshot as well. A range with entries on both
// sides is not asked for, and would be a hole however it is done.
func (l *pennedLog) DeleteRange(first, last uint64) error {
	end, err := l.LastIndex()
	if err != nil {
		return err
	}
	first = max(first, 1) // the index of the first entry there can be
	if l.segmented {
		// One small write, however long the range, and a crash leaves all of it or nothing.
		if last = min(last, end); last < first {
			return nil
		}
		return l.deleteChunk(first, last)
	}
	if last >= end {
		return l.deleteFromBack(first, last)
	}
	return l.deleteFromFront(first, last)
}

// Both walks ask the log where its present end is, rather than count: a log may
// have gaps (after an installed snapshot), and an empty chunk still costs two
// flushes of the disk.

func (l *pennedLog) deleteFromFront(first, last uint64) error {
	for first <= last {
		present, err := l.FirstIndex()
		if err != nil {
			return err
		}
		first = max(first, present)
		if present == 0 || first > last {
			return nil
		}
		to := min(last, first+DeleteChunk-1)
		if err := l.deleteChunk(first, to); err != nil {
			return err
		}
		first = to + 1
	}
	return nil
}

func (l *pennedLog) deleteFromBack(first, last uint64) error {
	for first <= last {
		present, err := l.LastIndex()
		if err != nil {
			return err
		}
		last = min(last, present)
		if last < first {
			return nil
		}
		from := first
		if last-first >= DeleteChunk {
			from = last - DeleteChunk + 1
		}
		if err := l.deleteChunk(from, last); err != nil {
			return err
		}
		last = from - 1
	}
	return nil
}

func (l *pennedLog) deleteChunk(from, to uint64) error {
	w := Write{Op: OpDelete, Entries: int(to - from + 1)}
	return l.pen.write(w, func() error { return l.LogStore.DeleteRange(from, to) })
}

func bytesOf(entries []*raft.Log) int {
	bytes := 0
	for _, entry := range entries {
		bytes += len(entry.Data) + len(entry.Extensions)
	}
	return bytes
}
