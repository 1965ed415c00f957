package fsm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"zamok/clock"
)

// Everything that the machine reads or writes as bytes, entries of the log and records of a
// snapshot, is made of these:
//
//	number    unsigned: 7 bits a byte, the low ones first, the top bit set while more follow
//	signed    the number 2v for v ≥ 0 and −2v−1 for v < 0, so that what is near 0 is short
//	text      its length in bytes, a number, then the bytes, whatever they are
//	raw       bytes whose count the format fixes: hashes and ids
//	checksum  the CRC-32C of what stands before it, 4 bytes, the low one first
//
// Each value has one form only and reading takes no other: a number in more bytes than it needs is
// refused. So bytes that were read are exactly the bytes that writing gives again, and a record
// can't come in two forms of which one node takes one and another node the other.

func appendNumber[N ~uint32 | ~uint64](b []byte, v N) []byte {
	return binary.AppendUvarint(b, uint64(v))
}

func appendSigned(b []byte, s clock.Span) []byte { return binary.AppendVarint(b, int64(s)) }

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

const checksumBytes = 4

// castagnoli is the polynomial that processors have an instruction for.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// appendChecksum ends a record with the checksum of all that was appended after the first from bytes of b.
func appendChecksum(b []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli()))
}

// verifyChecksum returns what stands before the checksum that b ends with.
func verifyChecksum(b []byte) ([]byte, error) {
	if len(b) < checksumBytes {
		return nil, fmt.Errorf("%d bytes are too few for a checksum", len(b))
	}
	body, trailer := b[:len(b)-checksumBytes], b[len(b)-checksumBytes:]
	want, got := binary.LittleEndian.Uint32(trailer), crc32.Checksum(body, castagnoli())
	if got != want {
		return nil, fmt.Errorf("damaged: the checksum is %08x and should be %08x", want, got)
	}
	return body, nil
}

// reader takes a record apart. The first failure stays: after it nothing is left to read and every
// method returns a zero, so that its user asks for err where it names a place, and not after each
// field. Texts are copied, so nothing that was read keeps the record in memory.
type reader struct {
	bytes  []byte
	offset int // how many have been read
	err    error
}

func (r *reader) remaining() int { return len(r.bytes) - r.offset }

// fail stops the reader for what is wrong with a field.
func (r *reader) fail(field, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(field+": "+format, args...)
	}
	r.bytes, r.offset = nil, 0
}

func (r *reader) failTruncated(field string) { r.fail(field, "the bytes end too early") }

// wrapError puts the place before the failure.
func (r *reader) wrapError(context string, args ...any) {
	r.err = fmt.Errorf(context+": %w", append(args, r.err)...)
}

// end returns the failure, and what is left over is one.
func (r *reader) end() error {
	if r.err == nil && r.remaining() > 0 {
		r.err = fmt.Errorf("%d bytes are left over", r.remaining())
	}
	return r.err
}

func (r *reader) byte(field string) byte {
	if at := r.offset; at < len(r.bytes) {
		r.offset = at + 1
		return r.bytes[at]
	}
	r.failTruncated(field)
	return 0
}

func (r *reader) number(field string) uint64 {
	b, at := r.bytes, r.offset
	if at < len(b) {
		if c := b[at]; c < 0x80 {
			r.offset = at + 1
			return uint64(c)
		}
	}
	return r.longNumber(field)
}

func (r *reader) longNumber(field string) uint64 {
	const lastByte = 9 // the tenth, which has room for the 64th bit alone
	var v uint64
	for i, c := range r.bytes[r.offset:] {
		if i == lastByte && c > 1 {
			r.fail(field, "the number has more than 64 bits")
			return 0
		}
		if c < 0x80 {
			if c == 0 && i > 0 {
				r.fail(field, "the number is not in its shortest form")
				return 0
			}
			r.offset += i + 1
			return v | uint64(c)<<(7*i)
		}
		v |= uint64(c&0x7f) << (7 * i)
	}
	r.failTruncated(field)
	return 0
}

// numberUpTo is number for a field that has a narrower type.
func (r *reader) numberUpTo(limit uint64, field string) uint64 {
	v := r.number(field)
	if v > limit {
		r.fail(field, "%d is above %d", v, limit)
		return 0
	}
	return v
}

func (r *reader) number32(field string) uint32 {
	return uint32(r.numberUpTo(math.MaxUint32, field))
}

func (r *reader) signed(field string) clock.Span {
	v := r.number(field)
	return clock.Span(v>>1) ^ -clock.Span(v&1)
}

func (r *reader) text(field string) string {
	n := r.number(field)
	if n == 0 {
		return ""
	}
	if n > uint64(r.remaining()) {
		r.fail(field, "%d bytes are announced and %d are left", n, r.remaining())
		return ""
	}
	r.offset += int(n)
	return string(r.bytes[r.offset-int(n) : r.offset])
}

// raw fills into.
func (r *reader) raw(field string, buf []byte) {
	if len(buf) > r.remaining() {
		r.fail(field, "it has %d bytes and %d are left", len(buf), r.remaining())
		return
	}
	r.offset += copy(buf, r.bytes[r.offset:])
}

// count reads how many things follow, each of which takes bytesMin bytes or more. What is left of
// the record bounds it, so memory may be made for that many at once.
func (r *reader) count(field string, bytesMin int) int {
	n := r.number(field)
	if n > uint64(r.remaining()/bytesMin) {
		r.fail(field, "%d are announced and %d bytes are left", n, r.remaining())
		return 0
	}
	return int(n)
}
