package peer

import "fmt"

// requestValuesMax bounds the values in a request, and in a configuration: one byte on the wire may
// be an entry, which takes more than 100 bytes of memory. A leader sends up to 64 entries of 13
// values, and a configuration of 32 servers has 227.
const requestValuesMax = 4096

// valueReader follows one value of MessagePack, with those in it, as its bytes arrive, and fails
// before the bytes are decoded if they have or announce too much. It rejects the kinds of values
// that Raft's encoder does not write: Raft's decoder may find another end of them.
type valueReader struct {
	values uint64 // that have begun or are announced
	begun  uint64 // of them
	length uint64 // of a text or bytes, or of what it holds, as far as it was read
	// unread is how many bytes of length follow.
	unread int
	holds  holding
	skip   uint64 // bytes of the latest value that follow
}

// holding is what a length counts.
type holding uint64

const (
	holdsBytes  holding = 0
	holdsValues holding = 1
	holdsPairs  holding = 2
)

func newValueReader() valueReader { return valueReader{values: 1} }

func (v *valueReader) ended() bool { return v.begun == v.values && v.unread == 0 && v.skip == 0 }

// read follows the value through b, and returns what is behind its end.
func (v *valueReader) read(b []byte) (behind []byte, err error) {
	for len(b) > 0 && err == nil && !v.ended() {
		switch {
		case v.skip > 0:
			n := min(v.skip, uint64(len(b)))
			v.skip -= n
			b = b[n:]
			continue
		case v.unread > 0:
			v.length = v.length<<8 | uint64(b[0])
			if v.unread--; v.unread == 0 {
				err = v.hold(v.length)
			}
		default:
			err = v.begin(b[0])
		}
		b = b[1:]
	}
	return b, err
}

// begin reads the first byte of a value.
func (v *valueReader) begin(first byte) error {
	v.begun++
	v.length = 0
	switch {
	case first <= 0x7f, first == 0xc0, first == 0xc2, first == 0xc3:
		// a small number, nil, false, true
		return nil
	case first <= 0x8f:
		v.holds = holdsPairs
		return v.hold(uint64(first & 0x0f))
	case first <= 0x9f:
		v.holds = holdsValues
		return v.hold(uint64(first & 0x0f))
	case first <= 0xbf:
		v.holds = holdsBytes
		return v.hold(uint64(first & 0x1f))
	case first >= 0xc4 && first <= 0xc6: // bytes
		v.holds, v.unread = holdsBytes, 1<<(first-0xc4)
	case first >= 0xcc && first <= 0xd3: // a number
		v.skip = 1 << (first & 0x03)
	case first >= 0xd9 && first <= 0xdb: // a text
		v.holds, v.unread = holdsBytes, 1<<(first-0xd9)
	case first == 0xdc, first == 0xdd:
		v.holds, v.unread = holdsValues, 2<<(first-0xdc)
	case first == 0xde, first == 0xdf:
		v.holds, v.unread = holdsPairs, 2<<(first-0xde)
	default:
		return fmt.Errorf("it has a value of the kind %#x, which Raft does not send", first)
	}
	return nil
}

// hold records what the latest value holds.
func (v *valueReader) hold(length uint64) error {
	if v.holds == holdsBytes {
		v.skip = length
	} else {
		v.values += uint64(v.holds) * length
	}
	switch {
	case v.values > requestValuesMax:
		return fmt.Errorf("it has more than %d values", requestValuesMax)
	case v.skip > uint64(requestBytesMax):
		return fmt.Errorf("it has a value of %d bytes, where %d is the most", v.skip,
			requestBytesMax)
	}
	return nil
}
