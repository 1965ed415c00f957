package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"go.etcd.io/bbolt"
)

// A boltLog is a log in one bbolt file. Which entries there are is written with
// every change of them, in the table's record: a damaged tree may have lost its
// last entries and look whole.
type boltLog struct {
	table boltTable

	mu          sync.Mutex
	first, last uint64 // zero: it is empty. As they are on the disk
}

const (
	firstKey = "first"
	lastKey  = "last"
)

var logBucket = []byte("log")

func openBoltLog(db *bbolt.DB) (*boltLog, error) {
	table, err := newBoltTable(db)
	if err != nil {
		return nil, err
	}
	l := &boltLog{table: table}
	var firstErr, lastErr error
	l.first, firstErr = numberOrZero(table, firstKey)
	l.last, lastErr = numberOrZero(table, lastKey)
	return l, errors.Join(firstErr, lastErr, db.View(func(tx *bbolt.Tx) error {
		if tx.Bucket(logBucket) == nil {
			return fmt.Errorf("%w: it has no log", errRecord)
		}
		return nil
	}))
}

func (l *boltLog) bounds() (first, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.last
}

// FirstIndex implements raft.LogStore.
func (l *boltLog) FirstIndex() (uint64, error) {
	first, _ := l.bounds()
	return first, nil
}

// LastIndex implements raft.LogStore.
func (l *boltLog) LastIndex() (uint64, error) {
	_, last := l.bounds()
	return last, nil
}

// GetLog implements raft.LogStore. What is missing has been deleted, or is not there yet, unless the same
// transaction says that there is such an entry.
func (l *boltLog) GetLog(index uint64, entry *raft.Log) error {
	return l.table.db.View(func(tx *bbolt.Tx) error {
		text := tx.Bucket(logBucket).Get(indexKey(index))
		if text == nil {
			return missing(tx, index)
		}
		if err := (&wal.BinaryCodec{}).Decode(text, entry); err != nil {
			return fmt.Errorf("%w: entry %d: %w", errRecord, index, err)
		}
		return nil
	})
}

func missing(tx *bbolt.Tx, index uint64) error {
	values, err := tableIn(tx)
	if err != nil {
		return err
	}
	first, firstErr := numberOrZero(values, firstKey)
	last, lastErr := numberOrZero(values, lastKey)
	if err := errors.Join(firstErr, lastErr); err != nil {
		return err
	}
	if first > 0 && first <= index && index <= last {
		return fmt.Errorf("%w: entry %d is missing, and the log has entries %d to %d", errRecord, index, first, last)
	}
	return raft.ErrLogNotFound // raft compares it with ==
}

// StoreLog implements raft.LogStore.
func (l *boltLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore. A log has no gaps.
func (l *boltLog) StoreLogs(entries []*raft.Log) error {
	first, last := l.bounds()
	if first == 0 && len(entries) > 0 {
		first, last = entries[0].Index, entries[0].Index-1
	}
	return l.change(first, last+uint64(len(entries)), func(bucket *bbolt.Bucket) error {
		bucket.FillPercent = 1 // entries come in order
		for i, entry := range entries {
			if entry.Index != last+1+uint64(i) {
				return fmt.Errorf("entry %d can't follow entry %d: the log would have a gap", entry.Index, last+uint64(i))
			}
			var text bytes.Buffer
			if err := (&wal.BinaryCodec{}).Encode(entry, &text); err != nil {
				return err
			}
			if err := bucket.Put(indexKey(entry.Index), text.Bytes()); err != nil {
				return err
			}
		}
		return nil
	})
}

// DeleteRange implements raft.LogStore. A range in the middle is refused: it would be a gap.
func (l *boltLog) DeleteRange(from, to uint64) error {
	first, last := l.bounds()
	from, to = max(from, first), min(to, last)
	left, right := first, last
	switch {
	case from > to:
		return nil
	case from == first && to == last:
		left, right = 0, 0
	case from == first:
		left = to + 1
	case to == last:
		right = from - 1
	default:
		return fmt.Errorf("entries %d to %d lie in the middle of %d to %d: the log would have a gap", from, to, first, last)
	}
	return l.change(left, right, func(bucket *bbolt.Bucket) error {
		for index := from; index <= to; index++ {
			if err := bucket.Delete(indexKey(index)); err != nil {
				return err
			}
		}
		return nil
	})
}

// change changes entries, and with them which there are.
func (l *boltLog) change(first, last uint64, do func(*bbolt.Bucket) error) error {
	err := l.table.db.Update(func(tx *bbolt.Tx) error {
		if err := do(tx.Bucket(logBucket)); err != nil {
			return err
		}
		return putPairs(tx, numberPair(firstKey, first), numberPair(lastKey, last))
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first, l.last = first, last
	return nil
}

func indexKey(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }
