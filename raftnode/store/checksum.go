package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// An entry has two checksums, both CRC-32C.
//
// The proposer's is computed over the entry's data where the data is made. It is
// in Extensions, so it is sent with the entry to every node and stored in every log, and
// detects a change on the way.
//
// The store's seal is computed over all that raft acts on: index, term, type,
// data and extensions. It is added when the entry is written and taken off when
// it is read, so nothing above the store sees it. AppendedAt is not covered, since it is not
// stored.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ChecksumBytes is the length of either checksum.
const ChecksumBytes = 4

// Checksum returns the proposer's checksum of an entry's data, for
// raft.Log.Extensions.
func Checksum(data []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, castagnoli))
}

// withoutChecksum takes a checksum off the end of a text, and reports whether it fits.
func withoutChecksum(text []byte) (body []byte, fits bool) {
	end := max(0, len(text)-ChecksumBytes)
	return text[:end], bytes.Equal(text[end:], Checksum(text[:end]))
}

// Verify reports, with ErrChecksum, an entry whose proposer's checksum does not
// fit. Every command has one; raft's own entries have none.
func Verify(entry *raft.Log) error {
	fits := len(entry.Extensions) == 0
	if entry.Type == raft.LogCommand {
		fits = len(entry.Extensions) == ChecksumBytes &&
			binary.BigEndian.Uint32(entry.Extensions) == crc32.Checksum(entry.Data, castagnoli)
	}
	if fits {
		return nil
	}
	return fmt.Errorf("store: %w: entry %d of term %d (%v), %d bytes of data with checksum %x",
		ErrChecksum, entry.Index, entry.Term, entry.Type, len(entry.Data), entry.Extensions)
}

// Seal returns entry as it is written.
func Seal(entry *raft.Log) *raft.Log {
	sealed := *entry
	sealed.Extensions = append(make([]byte, 0, len(entry.Extensions)+ChecksumBytes),
		entry.Extensions...)
	sealed.Extensions = binary.BigEndian.AppendUint32(sealed.Extensions,
		sealOf(entry, entry.Extensions))
	return &sealed
}

// unsealed takes the seal off entry, which was read as the one at index.
func unsealed(index uint64, entry *raft.Log) error {
	own := len(entry.Extensions) - ChecksumBytes
	switch {
	case own < 0:
		return fmt.Errorf("%w: entry %d has no checksum", errRecord, index)
	case entry.Index != index:
		return fmt.Errorf("%w: entry %d is stored at entry %d", errRecord, index, entry.Index)
	case binary.BigEndian.Uint32(entry.Extensions[own:]) != sealOf(entry, entry.Extensions[:own]):
		return fmt.Errorf("%w: entry %d does not fit its checksum", errRecord, index)
	}
	if entry.Extensions = entry.Extensions[:own]; own == 0 {
		entry.Extensions = nil
	}
	return nil
}

func sealOf(entry *raft.Log, extensions []byte) uint32 {
	head := binary.BigEndian.AppendUint64(make([]byte, 0, 25), entry.Index)
	head = binary.BigEndian.AppendUint64(head, entry.Term)
	head = append(head, byte(entry.Type))
	head = binary.BigEndian.AppendUint64(head, uint64(len(entry.Data)))
	sum := crc32.Checksum(head, castagnoli)
	return crc32.Update(crc32.Update(sum, castagnoli, entry.Data), castagnoli, extensions)
}
