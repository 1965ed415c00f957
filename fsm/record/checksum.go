package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// ChecksumBytes is the length of a checksum.
const ChecksumBytes = 4

// WholeChecksum is the checksum of a record together with the checksum that it ends with, whatever
// the record is.
const WholeChecksum = 0x48674BC7

// castagnoli is the polynomial that processors have an instruction for.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// UpdateChecksum is the checksum of what sum was taken of and b together; it begins with 0.
func UpdateChecksum(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli(), b) }

// AppendChecksum ends a record with the checksum of the bytes of b from start on.
func AppendChecksum(b []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(b, UpdateChecksum(0, b[start:]))
}

// VerifyChecksum returns the bytes before the checksum that b ends with.
func VerifyChecksum(b []byte) ([]byte, error) {
	if len(b) < ChecksumBytes {
		return nil, fmt.Errorf("%d bytes are too few for a checksum", len(b))
	}
	body, trailer := b[:len(b)-ChecksumBytes], b[len(b)-ChecksumBytes:]
	return body, CompareChecksum(trailer, UpdateChecksum(0, body))
}

// CompareChecksum compares a checksum as it was read with the one that was computed.
func CompareChecksum(trailer []byte, want uint32) error {
	if got := binary.LittleEndian.Uint32(trailer); got != want {
		return fmt.Errorf("damaged: the checksum is %08x and should be %08x", got, want)
	}
	return nil
}
