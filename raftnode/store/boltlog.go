package store

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"go.etcd.io/bbolt"
)

// A boltLog is a log in one bbolt file. Which entries there are is written with
// every change of them, in the table's record: a damaged tree may have lost its
// last entries and look whole.
type boltLog struct{ boltTable }

const (
	firstKey = "first"
	lastKey  = "last"

	// logMapBytes is mapped from the start, because to grow the map makes writers
	// wait for readers.
	logMapBytes = 64 << 20
)

// openBoltLog opens the log. The write with which its table is opened flushes it: what the process before this
// one wrote and did not flush is read back, and must not count before it would survive a loss of power as well.
func openBoltLog(path string, fresh bool) (engine, error) {
	table, err := openBoltTable(path, fresh, logMapBytes)
	if err != nil {
		return nil, err
	}
	return boltLog{table}, nil
}

func (l boltLog) chunk() uint64 { return DeleteChunk }
func (l boltLog) settle() error { return nil } // each write notes where the log ends
func (l boltLog) close() error  { return l.db.Close() }

// reusable counts the pages of the last deletion as well: the next write frees them.
func (l boltLog) reusable() uint64 { return uint64(l.db.Stats().FreeAlloc) }

func (l boltLog) FirstIndex() (uint64, error) { return numberIn(l, firstKey) }
func (l boltLog) LastIndex() (uint64, error)  { return numberIn(l, lastKey) }

func (l boltLog) GetLog(index uint64, entry *raft.Log) error {
	return l.db.View(func(tx *bbolt.Tx) error {
		text := tx.Bucket(logBucket).Get(numberBytes(index))
		if text == nil {
			return fmt.Errorf("%w: entry %d is missing", errRecord, index)
		}
		if err := (&wal.BinaryCodec{}).Decode(text, entry); err != nil {
			return fmt.Errorf("%w: entry %d: %w", errRecord, index, err)
		}
		return nil
	})
}

func (l boltLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l boltLog) StoreLogs(entries []*raft.Log) error {
	return l.change(func(bucket *bbolt.Bucket, before extent) (extent, error) {
		bucket.FillPercent = 1 // entries come in order
		for _, entry := range entries {
			var text bytes.Buffer
			if err := (&wal.BinaryCodec{}).Encode(entry, &text); err != nil {
				return before, err
			}
			if err := bucket.Put(numberBytes(entry.Index), text.Bytes()); err != nil {
				return before, err
			}
		}
		return before.plus(entries)
	})
}

func (l boltLog) DeleteRange(from, to uint64) error {
	return l.change(func(bucket *bbolt.Bucket, before extent) (extent, error) {
		for index := from; index <= to; index++ {
			if err := bucket.Delete(numberBytes(index)); err != nil {
				return before, err
			}
		}
		return before.minus(from, to)
	})
}

// change changes entries, and with them which there are.
func (l boltLog) change(do func(bucket *bbolt.Bucket, before extent) (extent, error)) error {
	return l.update(func(tx *bbolt.Tx, values Values) error {
		first, firstErr := values.number(firstKey)
		last, lastErr := values.number(lastKey)
		if err := errors.Join(firstErr, lastErr); err != nil {
			return err
		}
		after, err := do(tx.Bucket(logBucket), extent{first, last})
		values[firstKey], values[lastKey] = numberBytes(after.first), numberBytes(after.last)
		return err
	})
}
