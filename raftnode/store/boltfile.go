package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"

	"go.etcd.io/bbolt"
)

// errRecord is a record that is not what was written. asDamage adds the file.
var errRecord = errors.New("not as it was written")

// recovered turns a panic of the libraries below into an error. bbolt panics on what
// it does not expect, and reads its file as memory, where a page that can't be read
// is a fault of the runtime.
func recovered(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errRecord, cause)
		}
	}()
	return do()
}

// newFileSuffix ends the name of a bbolt file, or of a segment, that is being made.
const newFileSuffix = ".new"

// makeBolt makes a bbolt file with an empty table. The file has another name until it is
// complete and flushed. So a crash never leaves an incomplete file of this name, and whatever is
// wrong with one is damage. The caller has the directory's lock.
func makeBolt(path string) error {
	// of a process that ended while it made the file
	if err := os.RemoveAll(path + newFileSuffix); err != nil {
		return err
	}
	db, err := bbolt.Open(path+newFileSuffix, 0o600, boltOptions)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucket(tableBucket); err != nil {
			return err
		}
		return putValues(tx, Values{})
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	return rename(path+newFileSuffix, path)
}

// boltOptions makes bbolt compute its free pages at each start, which saves writing them at each
// commit.
var boltOptions = &bbolt.Options{Timeout: lockWait, NoFreelistSync: true}

// A boltTable is a Table in a bbolt file: one record with all its values and one
// checksum, so that none of them can be lost, or become an older one, alone.
type boltTable struct{ db *bbolt.DB }

var (
	tableBucket = []byte("table")
	tableKey    = []byte("record")
)

// openBoltTable opens a bbolt file with a table; fresh: it makes the file if there is none. It
// checks the tree before bbolt maps the file.
func openBoltTable(path string, fresh bool) (t boltTable, err error) {
	if fresh && !isThere(path) {
		if err := makeBolt(path); err != nil {
			return t, err
		}
	}
	if err := checkBolt(path); err != nil {
		return t, err
	}
	err = recovered(func() error {
		if t.db, err = bbolt.Open(path, 0o600, boltOptions); err != nil {
			return err
		}
		// The process before may have written a meta page and failed to flush it. The kernel takes
		// that page for clean, and a later flush leaves it out. So a transaction that changes
		// nothing writes the other meta page.
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

// Values implements Table.
func (t boltTable) Values() (values Values, err error) {
	err = t.db.View(func(tx *bbolt.Tx) error {
		values, err = valuesIn(tx)
		return err
	})
	return values, err
}

// Put implements Table.
func (t boltTable) Put(changes Values) error {
	return recovered(func() error {
		return t.db.Update(func(tx *bbolt.Tx) error {
			values, err := valuesIn(tx)
			if err != nil {
				return err
			}
			maps.Copy(values, changes)
			return putValues(tx, values)
		})
	})
}

func valuesIn(tx *bbolt.Tx) (values Values, err error) {
	table := tx.Bucket(tableBucket)
	if table == nil {
		return nil, fmt.Errorf("%w: its table is missing", errRecord)
	}
	text, fits := withoutChecksum(table.Get(tableKey))
	if !fits {
		return nil, fmt.Errorf("%w: the record of its values does not fit its checksum", errRecord)
	}
	return values, json.Unmarshal(text, &values)
}

func putValues(tx *bbolt.Tx, values Values) error {
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	return tx.Bucket(tableBucket).Put(tableKey, append(text, Checksum(text)...))
}
