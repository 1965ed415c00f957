package store

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/hashicorp/raft"

	"zamok/raftnode/tail"
)

const (
	// SegmentBytes is the size of a segment, which it has on the disk before it is written.
	SegmentBytes = 8 << 20

	// ReservedSegments is how many segments the reserved space must hold: the next one is made when
	// entries have filled half of the one before.
	ReservedSegments = 2

	segmentSuffix = ".log"
)

// A segmentLog is the log on a disk, in segments (frames.go). One goroutine at a time writes it. An
// append, or a deletion, is one frame, and one flush. A segment that has none of the
// log's entries any more is used again.
type segmentLog struct {
	folder string
	id     ID

	mu     sync.RWMutex // guards places and first for those that read beside the writer
	first  uint64       // the index of the first entry; 0: there is none
	places []place      // where the entries from first on are

	segments []*segment // the oldest first; frames are written to the last
	end      int64      // where the frames in that end
	last     frame      // the latest one
	unused   []string   // made by an earlier process, and without a frame; they are made anew
	cut      tail.End   // see lost
	durable  bool       // the record says that the last frame is

	making chan prepared // the next segment; nil: none is made yet
	text   []byte        // of the frame that is being written
}

// A segment is an open file of the log.
type segment struct {
	*os.File
	number uint64
	bytes  int64
}

// A place is where an entry is.
type place struct {
	*segment
	offset int64
	length int
	term   uint64
}

// prepared is the next segment, or why there is none.
type prepared struct {
	*segment
	err error
}

// openSegments opens the log in folder, which has the directory's lock, and reads all of it. Before
// begin is called only a fresh log is written, if it is missing or has no entry.
func openSegments(folder string, id ID, fresh bool) (l *segmentLog, err error) {
	if err := makeDir(folder); err != nil {
		return nil, err
	}
	l = &segmentLog{folder: folder, id: id}
	// in the order of their numbers
	paths, err := filepath.Glob(filepath.Join(folder, "*"+segmentSuffix))
	if err == nil && len(paths) > 0 {
		err = recovered(func() error { return l.load(paths) })
	}
	switch {
	case err != nil:
	case fresh && len(l.places) == 0:
		l.close()
		for _, path := range paths {
			err = errors.Join(err, os.Remove(path))
		}
		l = &segmentLog{folder: folder, id: id, end: framesBegin}
		l.segments = []*segment{{nil, 1, SegmentBytes}}
		if err = errors.Join(err, l.makeSegment(l.segments[0])); err == nil {
			err = l.write(frame{kind: keepFrame}, nil)
		}
	case l.last.number == 0:
		err = Damaged(folder, "no segment of the log has anything in it")
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// load reads the segments.
func (l *segmentLog) load(paths []string) error {
	var latest tailRecord
	var unreadable bool
	for i, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		id, number, err := readHead(text)
		if err == nil && i == 0 {
			l.id = id
		}
		switch {
		case err != nil:
			return Damaged(path, err.Error())
		case path != l.segmentPath(number) ||
			i > 0 && path != l.segmentPath(l.segments[0].number+uint64(i)):
			return Damaged(path, fmt.Sprintf("segment %d of the log is in its place", number))
		case id != l.id:
			return Damaged(path, "it is from another directory than the segment before it")
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		s := &segment{f, number, int64(len(text))}
		l.segments = append(l.segments, s)
		used, err := l.replay(s, text)
		switch record, bad := readRecord(text, id); {
		case err != nil:
			return Damaged(path, err.Error())
		case used && len(l.unused) > 0:
			return Damaged(l.unused[0],
				"its first frame is not whole, and a later segment has some")
		case used:
			latest, unreadable = record, bad
		default:
			l.unused = append(l.unused, path)
			unreadable = unreadable || bad
			if record.number > latest.number {
				latest = record
			}
		}
	}
	written := len(l.segments) - len(l.unused)
	for _, s := range l.segments[written:] {
		s.Close()
	}
	l.segments = l.segments[:written]
	switch last := l.last.number; {
	case unreadable && last != latest.number+1 && last+1 >= latest.number:
		l.cut = tail.Unknown(math.MaxUint64)
	case last >= latest.number: // one that is beyond was torn where its record is
	case last+1 == latest.number && !latest.durable:
		l.cut = latest.end
	default:
		return Damaged(l.folder,
			fmt.Sprintf("the log was flushed up to frame %d, and frame %d is not whole",
				latest.number, last+1))
	}
	return nil
}

// replay applies the frames of a segment, and reports whether it has any.
func (l *segmentLog) replay(s *segment, text []byte) (used bool, err error) {
	for at := framesBegin; ; used = true {
		f, whole := readFrame(text[at:], l.id)
		if !whole || l.last.number > 0 && f.number != l.last.number+1 {
			return used, nil
		}
		if err := l.apply(s, f, at, text[at:at+f.length]); err != nil {
			return used, err
		}
		at += f.length
	}
}

// apply applies a frame that is in a segment at an offset, and makes it the last one.
func (l *segmentLog) apply(s *segment, f frame, offset int, text []byte) error {
	at := frameHead
	switch f.kind {
	case keepFrame:
		l.keep(f.from, f.to)
	case appendFrame:
		if f.from <= l.lastIndex() {
			l.keep(l.first, f.from-1)
		}
		if len(l.places) == 0 {
			l.first = f.from
		}
		for index := f.from; index <= f.to; index++ {
			var entry raft.Log
			length, err := readEntryFrom(text[at:], index, &entry)
			if err != nil {
				return err
			}
			l.places = append(l.places, place{s, int64(offset + at), length, entry.Term})
			at += length
		}
	default:
		at = 0 // whatever its length, it is not understood
	}
	if at != len(text) || f.kind == appendFrame && l.lastIndex() != f.to {
		return fmt.Errorf("%w: frame %d, of kind %d, does not fit the log, which ends with "+
			"entry %d", errRecord, f.number, f.kind, l.lastIndex())
	}
	l.last, l.end = f, int64(offset+at)
	return nil
}

// keep leaves only the entries from from to to.
func (l *segmentLog) keep(from, to uint64) {
	if from == 0 || from > min(to, l.lastIndex()) || to < l.first {
		l.first, l.places = 0, nil
		return
	}
	from, to = max(from, l.first), min(to, l.lastIndex())
	kept := l.places[from-l.first : to+1-l.first]
	if from > l.first {
		kept = slices.Clone(kept) // without room for those that are gone
	}
	l.first, l.places = from, kept
}

// writing is the segment that is written.
func (l *segmentLog) writing() *segment { return l.segments[len(l.segments)-1] }

func (l *segmentLog) lastIndex() uint64 {
	if l.first == 0 {
		return 0
	}
	return l.first + uint64(len(l.places)) - 1
}

// begin makes durable what was read, because raft will acknowledge it to other nodes: the process
// before may have ended without a flush, or with one that failed. A failed flush leaves pages that
// the kernel takes for clean, so no later flush writes them. Only the last frame can be in such
// pages, since no frame is begun before the one before it is flushed. It is written again, and what
// follows it is overwritten.
func (l *segmentLog) begin() error {
	// of a process that ended while it made them
	left, err := filepath.Glob(filepath.Join(l.folder, "*"+newFileSuffix))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return err
	}
	s, text := l.writing(), make([]byte, l.last.length)
	if _, err = s.ReadAt(text, l.end-int64(len(text))); err == nil {
		_, err = s.WriteAt(text, l.end-int64(len(text)))
	}
	if err = errors.Join(err, s.Sync(), flush(l.folder)); err != nil {
		return err
	}
	return l.write(frame{kind: keepFrame, from: l.first, to: l.lastIndex()}, nil)
}

// write writes a frame, with its record, and flushes both.
func (l *segmentLog) write(f frame, entries []*raft.Log) (err error) {
	f.number = l.last.number + 1
	if l.text, err = appendFrameTo(l.text[:0], l.id, f, entries); err != nil {
		return err
	}
	f.length = len(l.text)
	if l.end+int64(f.length) > l.writing().bytes && l.end > framesBegin {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	s, at := l.writing(), l.end
	l.mu.Lock() // raft sees nothing of it until it is written
	err = l.apply(s, f, int(at), l.text)
	l.mu.Unlock()
	if err == nil {
		_, err = s.WriteAt(l.text, at)
	}
	if err == nil {
		err = l.writeRecord(false)
	}
	if cap(l.text) > SegmentBytes/8 {
		l.text = nil
	}
	if s.bytes = max(s.bytes, l.end); l.making == nil && l.end > s.bytes/2 {
		l.prepare(nil)
	}
	return err
}

// writeRecord writes the record of the last frame, and flushes it, with the frame if that was just
// written.
func (l *segmentLog) writeRecord(durable bool) error {
	record := tailRecord{number: l.last.number, durable: durable}
	if n := len(l.places); n > 0 {
		record.end = tail.End{Term: l.places[n-1].term, Index: l.lastIndex()}
	}
	_, err := l.writing().WriteAt(record.text(l.id), recordPlace(record.number))
	if err == nil {
		err = syncData(l.writing().File)
	}
	l.durable = durable
	return err
}

// markDurable records that the last frame is durable.
func (l *segmentLog) markDurable() error {
	if l.durable {
		return nil
	}
	return l.writeRecord(true)
}

// inspect returns the term of the last entry. The entries were verified when they were read.
func (l *segmentLog) inspect() (term uint64, err error) {
	for i, p := range l.places {
		if p.term < term {
			return 0, fmt.Errorf("entry %d is of term %d, and the one before it of term %d",
				l.first+uint64(i), p.term, term)
		}
		term = p.term
	}
	return term, nil
}

// latest returns where the latest entries begin that take no more bytes than these.
func (l *segmentLog) latest(bytes int) (from uint64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i := len(l.places)
	for ; i > 0 && l.places[i-1].length <= bytes; i-- {
		bytes -= l.places[i-1].length
	}
	return l.first + uint64(i)
}

// lost is the end of what may have been acknowledged and is not there; zero: nothing is missing. If
// no record says what it was, it is the highest end there can be.
func (l *segmentLog) lost() tail.End { return l.cut }

// rotate continues in the next segment.
func (l *segmentLog) rotate() error {
	if l.making == nil {
		l.prepare(nil)
	}
	next := <-l.making
	if errors.Is(next.err, syscall.ENOSPC) { // perhaps there is room by now
		l.prepare(nil)
		next = <-l.making
	}
	l.making = nil
	if next.err != nil {
		return next.err
	}
	l.segments, l.end = append(l.segments, next.segment), framesBegin
	return nil
}

// prepare makes the next segment, on a goroutine of its own, of a file that has lost its name or of
// a new one.
func (l *segmentLog) prepare(file *os.File) {
	making, s := make(chan prepared, 1), &segment{file, l.writing().number + 1, SegmentBytes}
	l.making = making
	go func() { making <- prepared{s, l.makeSegment(s)} }()
}

func (l *segmentLog) segmentPath(number uint64) string {
	return filepath.Join(l.folder, fmt.Sprintf("%016x%s", number, segmentSuffix))
}

// makeSegment makes the file of a segment. It gets its name when it has its head, no records, and
// its room on the disk. A new file is filled with zeros, one page at a time: the flush of a frame
// takes longer where the file system has not written before, or has written much at once
// (docs/decisions.md).
func (l *segmentLog) makeSegment(s *segment) (err error) {
	path, most := l.segmentPath(s.number), int64(framesBegin)
	if s.File == nil {
		most = SegmentBytes
		if s.File, err = os.OpenFile(path+newFileSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC,
			0o600); err != nil {
			return err
		}
	}
	text := slices.Concat(segmentHead(l.id, s.number), make([]byte, pageBytes))[:pageBytes]
	for at := int64(0); at < most && err == nil; at += pageBytes {
		_, err = s.WriteAt(text, at)
		clear(text)
	}
	if err == nil {
		err = s.Truncate(SegmentBytes)
	}
	if err == nil {
		err = s.Sync()
	}
	if err == nil {
		err = rename(path+newFileSuffix, path)
	}
	return err
}

// FirstIndex and LastIndex are called only when the log is opened.
func (l *segmentLog) FirstIndex() (uint64, error) { return l.first, nil }
func (l *segmentLog) LastIndex() (uint64, error)  { return l.lastIndex(), nil }

func (l *segmentLog) GetLog(index uint64, entry *raft.Log) error {
	l.mu.RLock()
	i := index - l.first // beyond all that there are, if there are none or it is before them
	if i >= uint64(len(l.places)) {
		l.mu.RUnlock()
		return fmt.Errorf("%w: entry %d is missing", errRecord, index)
	}
	p := l.places[i]
	l.mu.RUnlock()
	text := make([]byte, p.length)
	if _, err := p.ReadAt(text, p.offset); err != nil {
		return err
	}
	length, err := readEntryFrom(text, index, entry)
	if err == nil && length != p.length {
		err = fmt.Errorf("%w: entry %d has another length than its place", errRecord, index)
	}
	return err
}

func (l *segmentLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l *segmentLog) StoreLogs(entries []*raft.Log) error {
	return l.write(frame{kind: appendFrame, from: entries[0].Index,
		to: entries[len(entries)-1].Index}, entries)
}

func (l *segmentLog) DeleteRange(_, to uint64) error {
	rest := extent{l.first, l.lastIndex()}.behind(to)
	if err := l.write(frame{kind: keepFrame, from: rest.first, to: rest.last}, nil); err != nil {
		return err
	}
	return l.retire()
}

// retire takes the segments out of the log that have none of its entries any more. The next segment
// is made of the first of them, unless it is being made already. They go in the order of their
// numbers, so those that are left follow each other.
func (l *segmentLog) retire() error {
	for len(l.segments) > 1 && (l.first == 0 || l.places[0].segment != l.segments[0]) {
		s := l.segments[0]
		l.segments = l.segments[1:]
		path := l.segmentPath(s.number)
		if l.making == nil {
			if err := rename(path, l.segmentPath(l.writing().number+1)+newFileSuffix); err != nil {
				return err
			}
			l.prepare(s.File)
		} else if err := errors.Join(s.Close(), os.Remove(path), flush(l.folder)); err != nil {
			return err
		}
	}
	return nil
}

func (l *segmentLog) close() (err error) {
	if l.making != nil {
		l.segments = append(l.segments, (<-l.making).segment)
	}
	for _, s := range l.segments {
		if s.File != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}
