package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// SegmentBytes is the size of a file of the WAL, which has its room on the disk
// from the start. The floor must hold some of them: a new one is begun after the
// entries that fill the old one were admitted.
const SegmentBytes = 8 << 20

// FloorSegments is how many of them the floor must hold.
const FloorSegments = 2

// What a segment takes beside its entries' bytes, at most, for each of them; and
// the room for more in one that was written once more.
const (
	frameBytes   = 24
	unsealedRoom = 1 << 20
)

// openWAL opens the segments in folder.
//
// The folder has a lock of its own, for which raft-wal would wait for ever. It is
// never waited for, because who opens the folder holds the lock of the votes.
func openWAL(cfg Config, folder string) (*diskLog, error) {
	if cfg.Floor < FloorSegments*SegmentBytes {
		return nil, fmt.Errorf("store: Floor (%d bytes) is below %d segments of %d bytes, so there might be no room for the next one; nothing was opened; raise Floor",
			cfg.Floor, FloorSegments, SegmentBytes)
	}
	if err := makeDir(folder); err != nil {
		return nil, err
	}
	if err := unseal(folder); err != nil {
		return nil, err
	}
	log, err := wal.Open(folder, wal.WithSegmentSize(SegmentBytes), wal.WithLogger(cfg.Logger))
	if err != nil {
		return nil, err
	}
	return &diskLog{
		LogStore: forgetful{log}, name: logFiles[WAL],
		stamp:     func() ([]byte, error) { return log.Get([]byte(stampKey)) },
		setStamp:  func(stamp []byte) error { return log.Set([]byte(stampKey), stamp) },
		reusable:  func() uint64 { return 0 }, // whole segments go, and give their room back to the disk
		segmented: true,
		close:     log.Close,
	}, errors.Join(flushSegments(folder), recommit(log))
}

// forgetful has no entry that was deleted. raft-wal itself goes on to find those
// in front of its first index until their segment goes, or the process ends.
type forgetful struct{ *wal.WAL }

func (f forgetful) GetLog(index uint64, entry *raft.Log) error {
	first, err := f.FirstIndex()
	if err != nil {
		return err
	}
	if index < first {
		return raft.ErrLogNotFound // raft compares it with ==
	}
	return f.WAL.GetLog(index, entry)
}

// unseal makes the last segment one that can be written.
//
// raft-wal fills a segment, seals it inside the write that fills it, and notes
// in its table only afterwards that this was the last write to it. When the
// process ends between the two, raft-wal finds a sealed segment at the next
// start, and refuses every write for ever. So whatever such a segment holds is
// written once more, into a new one with room to spare, and the table changes
// from the one to the other in one transaction. The old file is deleted by
// raft-wal, as every file that is not in its table.
func unseal(folder string) (err error) {
	table := &metadb.BoltMetaDB{}
	state, err := table.Load(folder)
	defer func() { err = errors.Join(err, table.Close()) }()
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
// are written over with what they hold. The flush of all is for the names too:
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

// recommit has the table written once more, for the same reason.
func recommit(log *wal.WAL) error {
	stamp, err := log.Get([]byte(stampKey))
	if err != nil || len(stamp) == 0 { // the table has just been made
		return err
	}
	return log.Set([]byte(stampKey), stamp)
}
