package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// What raft-wal writes into a segment: a header, and frames of a head and a body filled up to a
// multiple of 8 bytes. A commit frame has no body, and the checksum of everything since the one before it.
// A write of entries is their frames and a commit frame.
const (
	segmentHead = 32
	frameHead   = 8
	commitFrame = 3
	sectorBytes = 512
)

// inspectTail refuses a last segment that is damaged, and removes from it a write that was torn when a
// process ended. Raft-wal alone takes whatever is wrong with it for a write that was torn when the power
// failed, and drops it.
//
// Only the last write can be torn: each is flushed before the next. And a disk writes a sector as a
// whole. So it is damage if a whole write follows, or if no sector of the last write is missing, that is,
// zero as before the write. Everything else is ambiguous, and taken for a torn write.
func inspectTail(folder string, last types.SegmentInfo, reached uint64) error {
	path := filepath.Join(folder, segment.FileName(last))
	text, err := os.ReadFile(path)
	unwritten := reached < last.BaseIndex
	if os.IsNotExist(err) && unwritten {
		return nil // it was about to be made, and raft-wal makes it
	}
	if err != nil {
		return err
	}
	whole, damage := tailOf(text)
	switch {
	case damage != nil:
		return Damaged(path, damage.Error())
	case whole == 0 && !unwritten:
		return Damaged(path, "it has been written to, and no write is left in it")
	case whole == 0 && (len(text) != int(last.SizeLimit) || !allZero(text)):
		// The process before ended while it made this file, or in the first write to it: raft-wal would
		// continue with one that is too short.
		return os.Remove(path)
	case len(text) < int(last.SizeLimit):
		return Damaged(path, fmt.Sprintf("it has %d bytes, and was made with %d", len(text), last.SizeLimit))
	case allZero(text[whole:]):
		return nil
	}
	// raft-wal would write the next one over the beginning of the torn write, and the rest behind that
	// looks like damage.
	clear(text[whole:])
	return overwrite(path, text)
}

// tailOf returns the end of the last whole write, 0 if there is none, and an error if what follows it is
// damaged.
func tailOf(text []byte) (whole int, err error) {
	at, commits := segmentHead, false
	for at+frameHead <= len(text) {
		head := text[at : at+frameHead]
		length := int(binary.LittleEndian.Uint32(head[4:]))
		switch kind := head[0]; {
		case kind == commitFrame && crc32.Checksum(text[whole:at], castagnoli) == uint32(length):
			at += frameHead
			whole = at
			continue
		case kind == commitFrame:
			commits = true
		case kind != 0 && kind < commitFrame && length <= len(text)-at-frameHead:
			at += frameHead + (length+frameHead-1)/frameHead*frameHead
			continue
		}
		break
	}
	rest := text[whole:]
	if allZero(rest) {
		return whole, nil
	}
	if next := wholeWrite(text, whole); next > 0 {
		return whole, fmt.Errorf("the write at %d is not whole, and a later one, which ends at %d, is", whole, next)
	}
	// The write goes up to its commit frame, or to where its frames end.
	end := min(at+frameHead, len(text))
	torn := !commits && allZero(text[min(at, end):end])
	for from := whole; from < end && !torn; {
		to := min((from/sectorBytes+1)*sectorBytes, end)
		torn = allZero(text[from:to])
		from = to
	}
	if !torn {
		return whole, fmt.Errorf("the last write, at %d, does not fit its checksum, and no part of it is missing", whole)
	}
	return whole, nil
}

func allZero(text []byte) bool { return len(bytes.TrimLeft(text, "\x00")) == 0 }

// wholeWrite looks for a write that is whole, beyond one that is not, and returns its end, or 0.
func wholeWrite(text []byte, from int) int {
	begin := 0 // behind the commit frame before
	for at := from + -from&(frameHead-1); at+frameHead <= len(text); at += frameHead {
		if binary.LittleEndian.Uint32(text[at:]) != commitFrame {
			continue
		}
		if begin > 0 && at > begin && crc32.Checksum(text[begin:at], castagnoli) == binary.LittleEndian.Uint32(text[at+4:]) {
			return at + frameHead
		}
		begin = at + frameHead
	}
	return 0
}
