package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// SegmentBytes is the size of a file of the WAL, which has its room on the disk
// from the start. The floor must hold some of them: a new one is begun after the
// entries that fill the old one were admitted.
const SegmentBytes = 8 << 20

// ReservedSegments is how many of them the floor must hold.
const ReservedSegments = 2

// What a segment takes beside its entries' bytes, at most, for each of them; and
// the room for more in one that was written once more.
const (
	frameBytes   = 24
	unsealedRoom = 1 << 20
)

// openWAL opens the segments in folder.
//
// The folder has a lock of its own, for which raft-wal would wait forever. It is
// never waited for, because who opens the folder holds the lock of the votes.
func openWAL(cfg Config, folder string, fresh bool) (*diskLog, error) {
	if cfg.ReservedSpace < ReservedSegments*SegmentBytes {
		return nil, fmt.Errorf("store: ReservedSpace (%d bytes) is below %d segments of %d bytes, so there might be no room for the next one; nothing was opened; raise ReservedSpace",
			cfg.ReservedSpace, ReservedSegments, SegmentBytes)
	}
	if err := makeDir(folder); err != nil {
		return nil, err
	}
	table, err := openSegmentTable(folder, fresh)
	if err != nil {
		return nil, err
	}
	var log *wal.WAL
	err = recovered(func() error {
		if err := inspectTail(folder, table); err != nil {
			return err
		}
		if err := unseal(folder, table); err != nil {
			return err
		}
		log, err = wal.Open(folder, wal.WithSegmentSize(SegmentBytes), wal.WithMetaStore(table), wal.WithLogger(cfg.Logger))
		return err
	})
	if err != nil {
		return nil, errors.Join(segmentsError(folder, err), table.Close())
	}
	segments := truncatingLog{log, table}
	err = flushSegments(folder)
	if err == nil {
		err = segments.settle()
	}
	return &diskLog{
		LogStore: segments, name: logFiles[WAL], stamps: table.boltTable,
		reusable:  func() uint64 { return 0 }, // whole segments go, and give their room back to the disk
		segmented: true,
		settle:    segments.settle,
		close:     log.Close,
	}, err
}

// segmentsError calls damaged what raft-wal does not understand, and what is not there.
func segmentsError(folder string, err error) error {
	for _, sign := range []error{types.ErrCorrupt, io.EOF, io.ErrUnexpectedEOF, fs.ErrNotExist} {
		if errors.Is(err, sign) {
			return Damaged(folder, err.Error())
		}
	}
	return err
}

// A segmentTable is raft-wal's table of its segments, with the checksum that the one of its own lacks.
// It also knows two things that a segment can't tell when it has lost something: which segments have been
// written to, and an entry that the log has got to. The latter is as of the last start, or stop, of a
// process: what was lost at the end of the log since may be taken for a torn write.
type segmentTable struct {
	boltTable

	mu            sync.Mutex
	last, written uint64 // 1 + the id of the last segment, and of the last that has been written to; 0 = none
	reached       uint64 // the entry
}

const (
	segmentTableName = "wal-meta.db"
	segmentsKey      = "segments"
	writtenKey       = "written"
	reachedKey       = "reached"
)

func openSegmentTable(folder string, fresh bool) (*segmentTable, error) {
	path := filepath.Join(folder, segmentTableName)
	if fresh {
		if err := makeBolt(path); err != nil {
			return nil, err
		}
	}
	db, err := openBolt(path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Damaged(path, "it is missing")
	}
	if err != nil {
		return nil, asDamage(path, err)
	}
	t := &segmentTable{}
	if t.boltTable, err = newBoltTable(db); err == nil {
		t.written, err = numberOrZero(t, writtenKey)
	}
	if err == nil {
		t.reached, err = numberOrZero(t, reachedKey)
	}
	if err != nil {
		return nil, errors.Join(asDamage(path, err), db.Close())
	}
	return t, nil
}

// seen notes what the last segment is.
func (t *segmentTable) seen(state types.PersistentState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(state.Segments); n > 0 {
		t.last = state.Segments[n-1].ID + 1
	}
}

// unwritten returns the last segment if nothing has been written to it yet, as far as is known.
func (t *segmentTable) unwritten() (last uint64, unwritten bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.last != t.written
}

// reach notes how far the log gets. The caller is the log's one writer.
func (t *segmentTable) reach(index uint64) error {
	if err := t.Put(numberPair(reachedKey, index)); err != nil {
		return err
	}
	t.reached = index
	return nil
}

// wrote notes that a segment has been written to.
func (t *segmentTable) wrote(last uint64) error {
	if err := t.Put(numberPair(writtenKey, last)); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written = last
	return nil
}

// Load implements types.MetaStore. The table is open already, in its folder.
func (t *segmentTable) Load(string) (state types.PersistentState, err error) {
	text, err := t.Get(segmentsKey)
	if errors.Is(err, errNotFound) {
		return state, nil // a new one
	}
	err = errors.Join(err, json.Unmarshal(text, &state))
	t.seen(state)
	return state, err
}

// CommitState implements types.MetaStore.
func (t *segmentTable) CommitState(state types.PersistentState) error {
	text, err := json.Marshal(state)
	if err == nil {
		err = t.Put(Pair{segmentsKey, text})
	}
	t.seen(state)
	return err
}

// GetStable implements types.MetaStore; nothing is kept there.
func (t *segmentTable) GetStable([]byte) ([]byte, error) { return nil, nil }

// SetStable implements types.MetaStore.
func (t *segmentTable) SetStable(key, _ []byte) error {
	return fmt.Errorf("the segments' table keeps no other values, and %q is one", key)
}

// Close implements types.MetaStore.
func (t *segmentTable) Close() error { return t.db.Close() }

// truncatingLog has no entry that was deleted: raft-wal itself continues to find those
// in front of its first index until their segment goes, or the process ends. And
// it keeps the table up to date about what has been written.
type truncatingLog struct {
	*wal.WAL
	table *segmentTable
}

func (f truncatingLog) StoreLog(entry *raft.Log) error { return f.StoreLogs([]*raft.Log{entry}) }

// StoreLogs notes the first write to a segment. It is one to the segment that was the last before, or to a
// later one, which the next write then notes.
func (f truncatingLog) StoreLogs(entries []*raft.Log) error {
	last, unwritten := f.table.unwritten()
	if err := f.WAL.StoreLogs(entries); err != nil || !unwritten {
		return err
	}
	return f.table.wrote(last)
}

// DeleteRange first forgets that the log has got further than it will.
func (f truncatingLog) DeleteRange(first, last uint64) error {
	end, err := f.LastIndex()
	if err == nil && last >= end && first <= f.table.reached {
		err = f.table.reach(first - 1)
	}
	if err != nil {
		return err
	}
	return f.WAL.DeleteRange(first, last)
}

// settle refuses a log that does not get as far as it did, and notes how far it gets.
func (f truncatingLog) settle() error {
	last, err := f.LastIndex()
	if err != nil {
		return err
	}
	if last < f.table.reached {
		return fmt.Errorf("%w: it ends with entry %d, and has reached entry %d", errRecord, last, f.table.reached)
	}
	return f.table.reach(last)
}

// GetLog reads once more when it was the last reader of a segment that was just deleted: raft-wal closes it
// under one that has not quite come. The segment is not among those that it finds then.
func (f truncatingLog) GetLog(index uint64, entry *raft.Log) error {
	for {
		first, err := f.FirstIndex()
		if err != nil {
			return err
		}
		if index < first {
			return raft.ErrLogNotFound // raft compares it with ==
		}
		if err := f.WAL.GetLog(index, entry); !errors.Is(err, fs.ErrClosed) {
			return err
		}
	}
}

// unseal makes the last segment one that can be written.
//
// raft-wal fills a segment, seals it inside the write that fills it, and notes
// in its table only afterwards that this was the last write to it. When the
// process ends between the two, raft-wal finds a sealed segment at the next
// start, and refuses every write forever. So whatever such a segment holds is
// written once more, into a new one with room to spare, and the table changes
// from the one to the other in one transaction. The old file is deleted by
// raft-wal, as every file that is not in its table.
func unseal(folder string, table types.MetaStore) (err error) {
	state, err := table.Load(folder)
	if err != nil || len(state.Segments) == 0 {
		return err
	}
	last := &state.Segments[len(state.Segments)-1]
	files := segment.NewFiler(folder, walfs.New())
	whole := *last
	whole.MinIndex = whole.BaseIndex // to be read from its beginning
	old, err := files.RecoverTail(whole)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was about to be made, and raft-wal makes it
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	if sealed, _, err := old.Sealed(); err != nil || !sealed {
		return err
	}
	whole.ID, whole.CreateTime = state.NextSegmentID, time.Now()
	entries, bytes, err := entriesOf(old, whole.BaseIndex)
	if err != nil {
		return err
	}
	whole.SizeLimit = uint32(bytes + len(entries)*frameBytes + unsealedRoom)
	// An attempt before this one may have been cut short.
	if err := files.Delete(whole.BaseIndex, whole.ID); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fresh, err := files.Create(whole)
	if err != nil {
		return err
	}
	if err := errors.Join(fresh.Append(entries), fresh.Close()); err != nil {
		return err
	}
	whole.MinIndex = last.MinIndex
	*last = whole
	state.NextSegmentID++
	return table.CommitState(state)
}

// entriesOf reads what a segment holds.
func entriesOf(r types.SegmentWriter, first uint64) (entries []types.LogEntry, bytes int, err error) {
	for index := first; index <= r.LastIndex(); index++ {
		raw, err := r.GetLog(index)
		if err != nil {
			return nil, 0, err
		}
		entries = append(entries, types.LogEntry{Index: index, Data: append([]byte(nil), raw.Bs...)})
		bytes += len(raw.Bs)
		if err := raw.Close(); err != nil {
			return nil, 0, err
		}
	}
	return entries, bytes, nil
}

// flushSegments makes durable what this process has found, because raft tells
// others of it: the process before may have ended without a flush, or with one
// that failed. A failed flush has left pages that the kernel takes for clean, and
// no later one writes them. So the last segment, and the next should it be there,
// are written over with what they hold, and so is the table, by what is noted in
// it afterwards. The flush of all is for the names too:
// raft-wal flushes the name of a segment with its first write, but not of one
// that it finds at the start.
func flushSegments(folder string) error {
	paths, err := filepath.Glob(filepath.Join(folder, "*.wal")) // in the order of their entries
	for i, path := range paths {
		f, openErr := os.OpenFile(path, os.O_RDWR, 0)
		if openErr != nil {
			return errors.Join(err, openErr)
		}
		if i >= len(paths)-2 {
			err = errors.Join(err, rewrite(f))
		}
		err = errors.Join(err, f.Sync(), f.Close())
	}
	return errors.Join(err, syncDir(folder))
}

// rewrite writes a file over with what it holds.
func rewrite(f *os.File) error {
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	return err
}
