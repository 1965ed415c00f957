package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
)

// errRecord is a record that is not what was written. asDamage adds the file.
var errRecord = errors.New("not as it was written")

// recovered turns a panic of the libraries below into an error. Both bbolt and
// raft-wal panic on what they don't expect, and bbolt reads its file as memory,
// where a page that can't be read is a fault of the runtime.
func recovered(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errRecord, cause)
		}
	}()
	return do()
}

// lockWait is how long Open waits for another process that is just ending.
const lockWait = time.Second

// newFileSuffix ends the name of a file that is being made.
const newFileSuffix = ".new"

// makeBolt makes a bbolt file with an empty table, and with these buckets, unless the file exists. The
// file has another name until it is complete and flushed. So a crash never leaves an incomplete file of
// this name, and whatever is wrong with one is damage. If two processes make the file at the same time,
// the second one waits, and uses what the first one made.
func makeBolt(path string, buckets ...[]byte) (err error) {
	if isThere(path) {
		return nil
	}
	f, err := os.OpenFile(path+newFileSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := lockFile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	if isThere(path) { // another process made it meanwhile, perhaps by renaming f
		return f.Close()
	}
	options := boltOptions(0)
	options.OpenFile = func(string, int, os.FileMode) (*os.File, error) { return f, f.Truncate(0) }
	db, err := bbolt.Open(f.Name(), 0o600, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }() // after the rename: it releases the lock
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range append(buckets, tableBucket) {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return putValues(tx, tableValues{})
	})
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// boltOptions makes bbolt compute its free pages at each start, which
// saves writing them at each commit, and keep them in a map, because the list
// that is its default gets slow in a log that grows and shrinks all the time.
func boltOptions(mapBytes int) *bbolt.Options {
	return &bbolt.Options{
		Timeout:         lockWait,
		NoFreelistSync:  true,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: mapBytes,
	}
}

// A boltTable is a Table in a bbolt file: one record with all its values and one
// checksum, so that none of them can be lost, or become an older one, alone.
type boltTable struct{ db *bbolt.DB }

var (
	tableBucket = []byte("table")
	tableKey    = []byte("record")
)

// openBoltTable opens a bbolt file with a table; fresh: it makes the file, with these buckets, if there
// is none. It checks the tree while it holds the file's lock, and before bbolt maps the file.
func openBoltTable(path string, fresh bool, mapBytes int, buckets ...[]byte) (t boltTable, err error) {
	if fresh {
		if err := makeBolt(path, buckets...); err != nil {
			return t, err
		}
	}
	options := boltOptions(mapBytes)
	options.OpenFile = func(path string, _ int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(path, os.O_RDWR, mode)
		if err != nil {
			return nil, err
		}
		if err = lockFile(f); err == nil {
			err = checkBolt(f)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
	err = recovered(func() error {
		if t.db, err = bbolt.Open(path, 0o600, options); err != nil {
			return err
		}
		// The process before may have written a meta page and failed to flush it. The kernel takes that
		// page for clean, and a later flush leaves it out. So a transaction that changes nothing writes
		// the other meta page.
		return t.db.Update(func(tx *bbolt.Tx) error {
			_, err := valuesIn(tx)
			return err
		})
	})
	if err != nil && t.db != nil {
		err = errors.Join(err, t.db.Close())
	}
	return t, err
}

// Get implements Table.
func (t boltTable) Get(key string) (value []byte, err error) {
	err = recovered(func() error {
		return t.db.View(func(tx *bbolt.Tx) error {
			values, err := valuesIn(tx)
			if err != nil {
				return err
			}
			value, err = values.Get(key)
			return err
		})
	})
	return value, err
}

// Put implements Table. Raft-wal calls it too, on a goroutine of its own.
func (t boltTable) Put(pairs ...Pair) error {
	return t.update(func(_ *bbolt.Tx, values tableValues) error {
		values.put(pairs...)
		return nil
	})
}

// update changes the values, and what else do changes, in one transaction.
func (t boltTable) update(do func(tx *bbolt.Tx, values tableValues) error) error {
	return recovered(func() error {
		return t.db.Update(func(tx *bbolt.Tx) error {
			values, err := valuesIn(tx)
			if err != nil {
				return err
			}
			if err := do(tx, values); err != nil {
				return err
			}
			return putValues(tx, values)
		})
	})
}

// tableValues are all values of a table.
type tableValues map[string][]byte

func (v tableValues) Get(key string) ([]byte, error) {
	if value, ok := v[key]; ok {
		return value, nil
	}
	return nil, errNotFound
}

func (v tableValues) put(pairs ...Pair) {
	for _, pair := range pairs {
		v[pair.Key] = bytes.Clone(pair.Value)
	}
}

func valuesIn(tx *bbolt.Tx) (values tableValues, err error) {
	var text []byte
	if bucket := tx.Bucket(tableBucket); bucket != nil {
		text = bucket.Get(tableKey)
	}
	end := len(text) - ChecksumBytes
	switch {
	case text == nil:
		return nil, fmt.Errorf("%w: the record of its values is missing", errRecord)
	case end < 0 || !bytes.Equal(text[end:], Checksum(text[:end])):
		return nil, fmt.Errorf("%w: the record of its values does not fit its checksum", errRecord)
	}
	return values, json.Unmarshal(text[:end], &values)
}

func putValues(tx *bbolt.Tx, values tableValues) error {
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	return tx.Bucket(tableBucket).Put(tableKey, append(text, Checksum(text)...))
}
