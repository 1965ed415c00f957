package record

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"zamok/clock"
)

// Coder writes, reads or sizes the fields of a record, one call for each field. Its methods take
// the field's name, for errors, and a pointer to the field.
//
// The first failure of reading stays: after it nothing is left to read and every field becomes
// zero, so End is asked once, not after each field. Texts are copied, so that what was read does
// not keep the record in memory.
type Coder struct {
	direction direction
	bytes     []byte // written so far, or to be read
	offset    int    // bytes read, or measured
	err       error
}

type direction uint8

const (
	writing direction = iota
	reading
	sizing
	describing
)

// NewWriter returns a coder that appends to b.
func NewWriter(b []byte) Coder { return Coder{direction: writing, bytes: b} }

// NewReader returns a coder that reads b.
func NewReader(b []byte) Coder { return Coder{direction: reading, bytes: b} }

// NewSizer returns a coder that measures a record: no less than the bytes that a writer would
// append, and about what the record takes in memory.
func NewSizer() Coder { return Coder{direction: sizing} }

// NewDescriber returns a coder that lists the fields of a record: it appends a line of name, kind
// and bound for each to b. It reads zeros otherwise, and one of whatever is counted.
func NewDescriber(b []byte) Coder { return Coder{direction: describing, bytes: b} }

// The sizes of a number at its longest, and of a string without its bytes.
const (
	numberSize = binary.MaxVarintLen64
	textSize   = 16
)

// Size returns what a sizer measured, in bytes.
func (c *Coder) Size() int { return c.offset }

// Bytes returns what was written, or the description.
func (c *Coder) Bytes() []byte { return c.bytes }

// Reading reports whether the coder reads, if only zeros.
func (c *Coder) Reading() bool { return c.direction == reading || c.direction == describing }

// Err returns the first failure.
func (c *Coder) Err() error { return c.err }

// Remaining is how many bytes are left to read.
func (c *Coder) Remaining() int { return len(c.bytes) - c.offset }

// Fail stops reading because of a field.
func (c *Coder) Fail(field, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(field+": "+format, args...)
	}
	c.bytes, c.offset = nil, 0
}

// Wrap puts the place before the failure.
func (c *Coder) Wrap(format string, args ...any) {
	c.err = fmt.Errorf(format+": %w", append(args, c.err)...)
}

// End returns the failure; bytes that are left over are one.
func (c *Coder) End() error {
	if c.err == nil && c.Remaining() > 0 {
		c.err = fmt.Errorf("%d bytes are left over", c.Remaining())
	}
	return c.err
}

// describe appends a field to a description.
func (c *Coder) describe(field, kind string, bounds ...any) {
	c.bytes = fmt.Appendln(c.bytes, append([]any{strconv.Quote(field), kind}, bounds...)...)
}

// Number codes an unsigned number.
func Number[N ~uint64](c *Coder, field string, v *N) { upTo(c, field, v, math.MaxUint64) }

// Byte codes an unsigned number of 8 bits.
func Byte[N ~uint8](c *Coder, field string, v *N) { upTo(c, field, v, math.MaxUint8) }

// Number32 codes an unsigned number of 32 bits.
func (c *Coder) Number32(field string, v *uint32) { upTo(c, field, v, math.MaxUint32) }

// Time codes a cluster time.
func (c *Coder) Time(field string, v *clock.Time) { upTo(c, field, v, math.MaxInt64) }

// SpanMax bounds the spans that are stored: a year. Longer means none at all.
const SpanMax = 366 * 24 * clock.Hour

// Span codes a span from 0 to SpanMax.
func (c *Coder) Span(field string, v *clock.Span) { upTo(c, field, v, uint64(SpanMax)) }

func upTo[N ~uint64 | ~uint32 | ~uint8 | ~int64](c *Coder, field string, v *N, limit uint64) {
	if n := c.number(field, uint64(*v), limit); c.direction == reading {
		*v = N(n)
	}
}

// Signed codes a span that may be negative.
func (c *Coder) Signed(field string, v *clock.Span) {
	if c.direction == describing {
		c.describe(field, "signed")
	} else if n := c.number(field, uint64(*v)<<1^uint64(*v>>63), math.MaxUint64); c.direction ==
		reading {
		*v = clock.Span(n>>1) ^ -clock.Span(n&1)
	}
}

// number codes v, or returns the number read, which is at most limit. It takes a value because a
// field may be changed only when it is read: others may write the same record meanwhile.
func (c *Coder) number(field string, v, limit uint64) uint64 {
	switch c.direction {
	case writing:
		c.bytes = binary.AppendUvarint(c.bytes, v)
	case sizing:
		c.offset += numberSize
	case describing:
		c.describe(field, "number", limit)
	case reading:
		if v = c.readNumber(field); v > limit {
			c.Fail(field, "%d is above %d", v, limit)
			return 0
		}
	}
	return v
}

// Text codes a string.
func (c *Coder) Text(field string, v *string) {
	switch c.direction {
	case writing:
		c.bytes = append(binary.AppendUvarint(c.bytes, uint64(len(*v))), *v...)
	case sizing:
		c.offset += textSize + len(*v)
	case describing:
		c.describe(field, "text")
	case reading:
		n := c.readNumber(field)
		if *v = ""; n > uint64(c.Remaining()) {
			c.Fail(field, "%d bytes are announced and %d are left", n, c.Remaining())
			return
		}
		*v = string(c.bytes[c.offset : c.offset+int(n)])
		c.offset += int(n)
	}
}

// Raw codes bytes whose count is fixed.
func (c *Coder) Raw(field string, v []byte) {
	switch c.direction {
	case writing:
		c.bytes = append(c.bytes, v...)
	case sizing:
		c.offset += len(v)
	case describing:
		c.describe(field, "raw", len(v))
	case reading:
		if len(v) > c.Remaining() {
			c.Fail(field, "it has %d bytes and %d are left", len(v), c.Remaining())
			return
		}
		c.offset += copy(v, c.bytes[c.offset:])
	}
}

// Count codes how many things follow, up to most, each of which takes bytesMin bytes or more. The
// bytes that are left bound what is read, so memory may be made for that many at once.
func (c *Coder) Count(field string, n, most, bytesMin int) int {
	if c.direction == describing {
		c.describe(field, "count", most, bytesMin)
		return 1
	}
	v := c.number(field, uint64(n), math.MaxUint64)
	switch {
	case c.direction != reading:
		return n
	case v > uint64(c.Remaining()/bytesMin):
		c.Fail(field, "%d are announced and %d bytes are left", v, c.Remaining())
	case v > uint64(most):
		c.Fail(field, "%d are more than the %d that an entry may have", v, most)
	default:
		return int(v)
	}
	return 0
}

func (c *Coder) readNumber(field string) uint64 {
	v, n := binary.Uvarint(c.bytes[c.offset:])
	switch {
	case n == 0:
		c.Fail(field, "the bytes end too early")
	case n < 0:
		c.Fail(field, "the number has more than 64 bits")
	case n > 1 && c.bytes[c.offset+n-1] == 0:
		c.Fail(field, "the number is not in its shortest form")
	default:
		c.offset += n
		return v
	}
	return 0
}
