package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

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

// newFileSuffix ends the name of a file that is being made.
const newFileSuffix = ".new"

// makeBolt makes a bbolt file with an empty table, and with these buckets, unless there is one of this name.
// It has another name until it is whole and flushed: what has this name was never torn while it was made, so
// whatever is wrong with it is damage. Of two processes that make it at the same time the second one waits, and
// finds it made.
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
	if isThere(path) { // it may have been made meanwhile, and this file be the one
		return f.Close()
	}
	options := boltOptions(0)
	options.OpenFile = func(string, int, os.FileMode) (*os.File, error) { return f, f.Truncate(0) }
	db, err := bbolt.Open(f.Name(), 0o600, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }() // last: it gives up the lock
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range append(buckets, tableBucket) {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return putTable(tx, nil)
	})
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// openBolt opens a bbolt file, whose tree is checked under its lock and before it
// is mapped.
func openBolt(path string, mapBytes int) (db *bbolt.DB, err error) {
	options := boltOptions(mapBytes)
	options.OpenFile = func(path string, _ int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(path, os.O_RDWR, mode)
		if err != nil {
			return nil, err
		}
		if err := checkLocked(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
	err = recovered(func() error {
		if db, err = bbolt.Open(path, 0o600, options); err != nil {
			return err
		}
		// What the process before wrote, and could not flush, is found here: a later flush leaves out
		// the meta page that names it, which the kernel takes for clean. So another one names it.
		return db.Update(func(*bbolt.Tx) error { return nil })
	})
	if err != nil && db != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, err
}

func checkLocked(f *os.File) error {
	if err := lockFile(f); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return checkBolt(f, info.Size())
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

// A boltTable is a Table in a bbolt file: one record with all its values and one
// checksum, so that none of them can be lost, or become an older one, alone.
type boltTable struct{ db *bbolt.DB }

var (
	tableBucket = []byte("table")
	tableKey    = []byte("record")
)

// newBoltTable returns the table of a file, which makeBolt has made.
func newBoltTable(db *bbolt.DB) (boltTable, error) {
	return boltTable{db}, db.View(func(tx *bbolt.Tx) error {
		_, err := tableIn(tx)
		return err
	})
}

func (t boltTable) Get(key string) (value []byte, err error) {
	err = recovered(func() error {
		return t.db.View(func(tx *bbolt.Tx) error {
			values, err := tableIn(tx)
			if err != nil {
				return err
			}
			value, err = values.Get(key)
			return err
		})
	})
	return value, err
}

// Put is called by raft-wal too, on a goroutine of its own.
func (t boltTable) Put(pairs ...Pair) error {
	return recovered(func() error {
		return t.db.Update(func(tx *bbolt.Tx) error { return putPairs(tx, pairs...) })
	})
}

// putPairs changes values of the table, as part of a transaction.
func putPairs(tx *bbolt.Tx, pairs ...Pair) error {
	values, err := tableIn(tx)
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		values[pair.Key] = pair.Value
	}
	return putTable(tx, values)
}

var errNoTable = fmt.Errorf("%w: the record of its values is missing", errRecord)

// tableValues are all values of a table.
type tableValues map[string][]byte

func (v tableValues) Get(key string) ([]byte, error) {
	if value, found := v[key]; found {
		return value, nil
	}
	return nil, errNotFound
}

// tableIn reads the record.
func tableIn(tx *bbolt.Tx) (tableValues, error) {
	bucket := tx.Bucket(tableBucket)
	if bucket == nil {
		return nil, errNoTable
	}
	text := bytes.Clone(bucket.Get(tableKey)) // bbolt's memory ends with the transaction
	if text == nil {
		return nil, errNoTable
	}
	wrong := fmt.Errorf("%w: the record of its values does not fit its checksum", errRecord)
	end := len(text) - ChecksumBytes
	if end < 0 || binary.BigEndian.Uint32(text[end:]) != crc32.Checksum(text[:end], castagnoli) {
		return nil, wrong
	}
	values := tableValues{}
	for text = text[:end]; len(text) > 0; {
		key, rest, ok := cut(text)
		if !ok {
			return nil, wrong
		}
		value, rest, ok := cut(rest)
		if !ok {
			return nil, wrong
		}
		values[string(key)], text = value, rest
	}
	return values, nil
}

func putTable(tx *bbolt.Tx, values tableValues) error {
	var text []byte
	for _, key := range slices.Sorted(maps.Keys(values)) {
		text = binary.AppendUvarint(text, uint64(len(key)))
		text = append(text, key...)
		text = binary.AppendUvarint(text, uint64(len(values[key])))
		text = append(text, values[key]...)
	}
	text = binary.BigEndian.AppendUint32(text, crc32.Checksum(text, castagnoli))
	return tx.Bucket(tableBucket).Put(tableKey, text)
}

// cut takes a piece with its length before it off the front of text.
func cut(text []byte) (piece, rest []byte, ok bool) {
	length, n := binary.Uvarint(text)
	if n <= 0 || length > uint64(len(text)-n) {
		return nil, nil, false
	}
	end := n + int(length)
	return text[n:end:end], text[end:], true
}
