package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/hashicorp/raft"

	"zamok/raftnode/tail"
)

// A segment is a file of SegmentBytes, or of more if a single frame needs more:
//
//	0           head: checksum, version, incarnation, number
//	4096, 8192  two records, written in turn
//	16384       frames, one behind the other; what follows the last one means nothing
//
// A frame is a change of the log, and has the number of the one before plus one. A frame that does
// not fit into the rest of a segment begins the next segment. Behind the last frame there may be
// frames of an earlier use of the file, which have lower numbers. Every checksum begins with the
// incarnation, so nothing of another directory fits.
//
//	frame   checksum (4), length (4), number (8), kind (1), from (8), to (8), entries
//	entry   length of the extensions (4), of the data (4), term (8), type (1), extensions, data
//	record  checksum (4), number (8), durable (1), index (8), term (8)
//
// The time of an entry (AppendedAt) is not stored.
const (
	pageBytes    = 4096
	recordsBegin = pageBytes
	framesBegin  = 4 * pageBytes
	headBytes    = 4 + 4 + len(ID{}) + 8
	frameHead    = 33
	entryHead    = 17
	recordBytes  = 29

	segmentVersion = 1
)

// What a frame does to the log.
const (
	// appendFrame appends the entries with the indexes from to to. Those that the log had from
	// there on are gone.
	appendFrame = 1
	// keepFrame leaves of the log only the entries with the indexes from to to; from = 0: none.
	keepFrame = 2
)

// A frame, as it is decoded; length is that of its head and its entries.
type frame struct {
	number   uint64
	kind     byte
	from, to uint64
	length   int
}

// A tailRecord says which frame was written last, and where the log ends with it. It is written and
// flushed with that frame, in another sector. The frame before it was flushed then; durable: the
// frame itself as well.
type tailRecord struct {
	number  uint64
	durable bool
	end     tail.End
}

// sum is the checksum of text in a directory of this incarnation.
func (id ID) sum(text []byte) uint32 {
	return crc32.Update(crc32.Checksum(id[:], castagnoli), castagnoli, text)
}

// seal writes the checksum of a text into its first four bytes.
func (id ID) seal(text []byte) []byte {
	binary.LittleEndian.PutUint32(text, id.sum(text[4:]))
	return text
}

// fits reports whether a text fits the checksum in its first four bytes.
func (id ID) fits(text []byte) bool {
	return binary.LittleEndian.Uint32(text) == id.sum(text[4:])
}

// segmentHead encodes the head of a segment.
func segmentHead(id ID, number uint64) []byte {
	text := binary.LittleEndian.AppendUint32(make([]byte, 4, headBytes), segmentVersion)
	text = append(text, id[:]...)
	return id.seal(binary.LittleEndian.AppendUint64(text, number))
}

// readHead returns the incarnation of the directory that a segment belongs to, and its number.
func readHead(text []byte) (id ID, number uint64, err error) {
	if len(text) < SegmentBytes {
		return id, 0, fmt.Errorf("%w: it has %d bytes, and was made with %d", errRecord, len(text),
			SegmentBytes)
	}
	copy(id[:], text[8:])
	if text = text[:headBytes]; !id.fits(text) ||
		binary.LittleEndian.Uint32(text[4:]) != segmentVersion {
		return id, 0, fmt.Errorf("%w: its head does not fit its checksum", errRecord)
	}
	return id, binary.LittleEndian.Uint64(text[headBytes-8:]), nil
}

// appendFrameTo appends a frame to text.
func appendFrameTo(text []byte, id ID, f frame, entries []*raft.Log) ([]byte, error) {
	begin := len(text)
	text = append(text, make([]byte, 8)...)
	text = binary.LittleEndian.AppendUint64(text, f.number)
	text = append(text, f.kind)
	text = binary.LittleEndian.AppendUint64(text, f.from)
	text = binary.LittleEndian.AppendUint64(text, f.to)
	for _, entry := range entries {
		text = binary.LittleEndian.AppendUint32(text, uint32(len(entry.Extensions)))
		text = binary.LittleEndian.AppendUint32(text, uint32(len(entry.Data)))
		text = binary.LittleEndian.AppendUint64(text, entry.Term)
		text = append(text, byte(entry.Type))
		text = append(append(text, entry.Extensions...), entry.Data...)
	}
	length := len(text) - begin
	if length > math.MaxInt32 {
		return nil, fmt.Errorf("an append of %d bytes is longer than a frame may be", length)
	}
	binary.LittleEndian.PutUint32(text[begin+4:], uint32(length))
	id.seal(text[begin:])
	return text, nil
}

// readFrame returns the frame at the beginning of text; false: there is none, or not one that is
// whole.
func readFrame(text []byte, id ID) (f frame, whole bool) {
	if len(text) < frameHead {
		return f, false
	}
	f.length = int(binary.LittleEndian.Uint32(text[4:]))
	if f.length < frameHead || f.length > len(text) || !id.fits(text[:f.length]) {
		return f, false
	}
	f.number = binary.LittleEndian.Uint64(text[8:])
	f.kind = text[16]
	f.from = binary.LittleEndian.Uint64(text[17:])
	f.to = binary.LittleEndian.Uint64(text[25:])
	return f, true
}

// readEntryFrom decodes the entry at the beginning of text, which has it whole, and returns how
// long it is there.
func readEntryFrom(text []byte, index uint64, entry *raft.Log) (length int, err error) {
	if len(text) < entryHead {
		return 0, fmt.Errorf("%w: entry %d has %d bytes", errRecord, index, len(text))
	}
	extensions, data := int(binary.LittleEndian.Uint32(text)),
		int(binary.LittleEndian.Uint32(text[4:]))
	if length = entryHead + extensions + data; length > len(text) {
		return 0, fmt.Errorf("%w: entry %d is longer than its place", errRecord, index)
	}
	body := text[entryHead:length:length]
	*entry = raft.Log{
		Index: index, Term: binary.LittleEndian.Uint64(text[8:]), Type: raft.LogType(text[16]),
		Extensions: body[:extensions:extensions], Data: body[extensions:],
	}
	return length, nil
}

// recordPlace is where in its segment the record of a frame is. Records take turns, so the one
// before is left if the latest is torn.
func recordPlace(number uint64) int64 { return recordsBegin + int64(number%2)*pageBytes }

func (r tailRecord) text(id ID) []byte {
	text := binary.LittleEndian.AppendUint64(make([]byte, 4, recordBytes), r.number)
	text = append(text, 0)
	if r.durable {
		text[12] = 1
	}
	text = binary.LittleEndian.AppendUint64(text, r.end.Index)
	return id.seal(binary.LittleEndian.AppendUint64(text, r.end.Term))
}

// readRecord returns the later of the two records of a segment, zero if it has none, and whether it
// has one that can't be read.
func readRecord(text []byte, id ID) (latest tailRecord, unreadable bool) {
	for slot := range uint64(2) {
		text := text[recordPlace(slot):][:recordBytes]
		switch {
		case len(bytes.TrimLeft(text, "\x00")) == 0:
		case !id.fits(text) || binary.LittleEndian.Uint64(text[4:])%2 != slot:
			unreadable = true
		default:
			if number := binary.LittleEndian.Uint64(text[4:]); number > latest.number {
				latest = tailRecord{
					number: number, durable: text[12] == 1,
					end: tail.End{Index: binary.LittleEndian.Uint64(text[13:]),
						Term: binary.LittleEndian.Uint64(text[21:])},
				}
			}
		}
	}
	return latest, unreadable
}
