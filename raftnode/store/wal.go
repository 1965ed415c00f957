package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// SegmentBytes is the size of a file of the WAL, which is allocated on the disk
// from the start. The reserved space must hold some of them: a new one is begun after the
// entries that fill the old one were admitted.
const SegmentBytes = 8 << 20

// ReservedSegments is how many of them the reserved space must hold.
const ReservedSegments = 2

// A segmentLog is the engine of raft-wal, and raft-wal's table of its segments, with the checksum that the
// one of its own lacks.
//
// The table also has an entry that the log has reached, since a segment that has lost entries does not show
// it. That is as of the last start, or stop, of a process, or the first write to the last segment: what was
// lost at the end of the log since may be taken for a torn write.
type segmentLog struct {
	*wal.WAL
	boltTable

	tail    atomic.Uint64 // where the last segment begins; raft-wal changes it on a goroutine of its own
	reached uint64        // at or beyond tail: the last segment has been written to
}

const (
	segmentTableName = "wal-meta.db"
	segmentsKey      = "segments"
	reachedKey       = "reached"
)

// openWAL opens the segments in folder.
//
// The folder has a lock of its own, for which raft-wal would wait forever. It never has to,
// because the caller has the lock of the directory.
func openWAL(cfg Config, folder string, fresh bool) (engine, error) {
	if cfg.ReservedSpace < ReservedSegments*SegmentBytes {
		return nil, fmt.Errorf("store: ReservedSpace (%d bytes) is below %d segments of %d bytes, so there might be no room for the next one; nothing was opened; raise ReservedSpace",
			cfg.ReservedSpace, ReservedSegments, SegmentBytes)
	}
	if err := makeDir(folder); err != nil {
		return nil, err
	}
	log, err := openSegmentTable(folder, fresh)
	if err != nil {
		return nil, err
	}
	err = recovered(func() error {
		state, err := log.Load(folder)
		if err == nil && len(state.Segments) > 0 {
			if err = inspectTail(folder, state.Segments[len(state.Segments)-1], log.reached); err == nil {
				err = completeRotation(folder, state, log)
			}
		}
		if err != nil {
			return err
		}
		log.WAL, err = wal.Open(folder, wal.WithSegmentSize(SegmentBytes), wal.WithMetaStore(log), wal.WithLogger(cfg.Logger))
		return err
	})
	if err != nil {
		for _, sign := range []error{types.ErrCorrupt, io.EOF, io.ErrUnexpectedEOF, fs.ErrNotExist} {
			if errors.Is(err, sign) { // what raft-wal can't decode, or misses
				err = Damaged(folder, err.Error())
			}
		}
		return nil, errors.Join(err, log.Close())
	}
	if err = flushSegments(folder); err == nil {
		err = log.settle()
	}
	if err != nil {
		return nil, errors.Join(err, log.close())
	}
	return log, nil
}

// openSegmentTable opens the table only.
func openSegmentTable(folder string, fresh bool) (*segmentLog, error) {
	path := filepath.Join(folder, segmentTableName)
	table, err := openBoltTable(path, fresh, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Damaged(path, "it is missing")
	}
	if err != nil {
		return nil, asDamage(path, err)
	}
	l := &segmentLog{boltTable: table}
	if l.reached, err = numberIn(l, reachedKey); err != nil {
		return nil, errors.Join(asDamage(path, err), l.Close())
	}
	return l, nil
}

// Load implements types.MetaStore. The table is open already, in its folder.
func (l *segmentLog) Load(string) (state types.PersistentState, err error) {
	values, err := l.Values()
	if text, ok := values[segmentsKey]; ok { // not a new one
		err = json.Unmarshal(text, &state)
	}
	l.noteTail(state)
	return state, err
}

// CommitState implements types.MetaStore.
func (l *segmentLog) CommitState(state types.PersistentState) error {
	text, err := json.Marshal(state)
	if err == nil {
		err = l.Put(Values{segmentsKey: text})
	}
	l.noteTail(state)
	return err
}

// noteTail notes where the last segment begins.
func (l *segmentLog) noteTail(state types.PersistentState) {
	if n := len(state.Segments); n > 0 {
		l.tail.Store(state.Segments[n-1].BaseIndex)
	}
}

// GetStable implements types.MetaStore; nothing is kept there.
func (l *segmentLog) GetStable([]byte) ([]byte, error) { return nil, nil }

// SetStable implements types.MetaStore.
func (l *segmentLog) SetStable(key, _ []byte) error {
	return fmt.Errorf("the segments' table keeps no other values, and %q is one", key)
}

// Close implements types.MetaStore. It closes the table.
func (l *segmentLog) Close() error { return l.db.Close() }

func (l *segmentLog) chunk() uint64    { return math.MaxUint64 } // a deletion of any range is one small write
func (l *segmentLog) reusable() uint64 { return 0 }              // whole segments are deleted, and their blocks given back
func (l *segmentLog) close() error     { return l.WAL.Close() }  // which closes the table

func (l *segmentLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs notes the first write to a segment. It is one to the segment that was the last before, or to a
// later one, which the next write then notes.
func (l *segmentLog) StoreLogs(entries []*raft.Log) error {
	tail := l.tail.Load()
	if err := l.WAL.StoreLogs(entries); err != nil || l.reached >= tail {
		return err
	}
	return l.reach(entries[len(entries)-1].Index)
}

// DeleteRange first notes that the log will not reach as far as it did; one of which all is deleted reaches
// nothing.
func (l *segmentLog) DeleteRange(first, last uint64) error {
	now, err := extentOf(l)
	if err != nil {
		return err
	}
	after, err := now.minus(first, last)
	if err == nil && after.last < l.reached {
		err = l.reach(after.last)
	}
	if err != nil {
		return err
	}
	return l.WAL.DeleteRange(first, last)
}

// reach notes how far the log reaches. The caller is the log's one writer.
func (l *segmentLog) reach(index uint64) error {
	l.reached = index
	return l.Put(Values{reachedKey: numberBytes(index)})
}

// settle refuses a log that does not get as far as it did, and notes how far it gets.
func (l *segmentLog) settle() error {
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if last < l.reached {
		return fmt.Errorf("%w: it ends with entry %d, and has reached entry %d", errRecord, last, l.reached)
	}
	return l.reach(last)
}

// completeRotation makes a last segment of which raft-wal has sealed the file one that is not the last
// any more.
//
// Raft-wal fills a segment, seals it inside the write that fills it, and only afterwards notes in its
// table that it is sealed, and which is the next one. When the process ends between the two, raft-wal
// has a sealed segment at the next start, and refuses every write forever. So the table is changed here
// as raft-wal would have. It makes the next segment's file when it opens the log.
func completeRotation(folder string, state types.PersistentState, table types.MetaStore) error {
	last := &state.Segments[len(state.Segments)-1]
	tail, err := segment.NewFiler(folder, walfs.New()).RecoverTail(*last)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was about to be made, and raft-wal makes it
	}
	if err != nil {
		return err
	}
	sealed, indexStart, err := tail.Sealed()
	end := tail.LastIndex()
	if err := errors.Join(err, tail.Close()); err != nil || !sealed {
		return err
	}
	last.SealTime, last.MaxIndex, last.IndexStart = time.Now(), end, indexStart
	next := types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: end + 1, MinIndex: end + 1,
		SizeLimit: SegmentBytes, Codec: last.Codec, CreateTime: last.SealTime,
	}
	state.Segments = append(state.Segments, next)
	state.NextSegmentID++
	return table.CommitState(state)
}

// flushSegments makes durable what this process has read, because raft will acknowledge
// it to other nodes: the process before may have ended without a flush, or with one
// that failed. A failed flush has left pages that the kernel takes for clean, and
// no later one writes them. So the last segment, and the next should it be there,
// are written over with what they hold, and so is the table, by the settle
// that follows. The names are flushed too:
// raft-wal flushes the name of a segment with its first write, but not of one
// that it opens at the start.
func flushSegments(folder string) error {
	paths, err := filepath.Glob(filepath.Join(folder, "*.wal")) // in the order of their entries
	for i, path := range paths {
		if i < len(paths)-2 {
			err = errors.Join(err, flush(path))
		} else if text, readErr := os.ReadFile(path); readErr == nil {
			err = errors.Join(err, overwrite(path, text))
		} else {
			err = errors.Join(err, readErr)
		}
	}
	return errors.Join(err, flush(folder))
}

// overwrite writes over the content of a file, and flushes it.
func overwrite(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	return errors.Join(err, f.Sync(), f.Close())
}
