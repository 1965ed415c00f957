package fsm

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/clock"
)

// unhex reads bytes as tests write them: in hex, with blanks where they help the eye.
func unhex(tb testing.TB, text string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	require.NoError(tb, err)
	return b
}

func TestNumberEncodingIsCanonical(t *testing.T) {
	for _, c := range []struct {
		bytes string
		value uint64
		fault string
	}{
		{bytes: "00", value: 0},
		{bytes: "7f", value: 127},
		{bytes: "8001", value: 128},
		{bytes: "ff7f", value: 1<<14 - 1},
		{bytes: "80808001", value: 1 << 21},
		{bytes: "ffffffffffffff7f", value: 1<<56 - 1},
		{bytes: "ffffffffffffffff7f", value: math.MaxInt64},
		{bytes: "80808080808080808001", value: 1 << 63},
		{bytes: "ffffffffffffffffff01", value: math.MaxUint64},

		{bytes: "", fault: "n: the bytes end too early"},
		{bytes: "80", fault: "n: the bytes end too early"},
		{bytes: "ffffffffffffffffff", fault: "n: the bytes end too early"},
		{bytes: "8000", fault: "n: the number is not in its shortest form"},
		{bytes: "ff00", fault: "n: the number is not in its shortest form"},
		{bytes: "80808080808080808000", fault: "n: the number is not in its shortest form"},
		{bytes: "ffffffffffffffffff02", fault: "n: the number has more than 64 bits"},
		{bytes: "8080808080808080808001", fault: "n: the number has more than 64 bits"},
	} {
		r := reader{bytes: unhex(t, c.bytes)}
		value := r.number("n")
		assert.Equal(t, c.value, value, c.bytes)
		if c.fault != "" {
			assert.EqualError(t, r.end(), c.fault, c.bytes)
			continue
		}
		assert.NoError(t, r.end(), c.bytes)
		assert.Equal(t, unhex(t, c.bytes), appendNumber(nil, value), c.bytes)
	}
}

// The standard library reads the same numbers from the same bytes, but is content with long forms.
func TestNumbersMatchBinaryUvarint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 0x7f, 0x80, 0x81, 0xff}), 0, 12).Draw(t, "bytes")
		want, n := binary.Uvarint(b)
		shortest := n > 0 && (n == 1 || b[n-1] != 0)
		r := reader{bytes: b}
		got := r.number("n")
		require.Equal(t, shortest, r.err == nil, "%v", r.err)
		if shortest {
			require.Equal(t, want, got)
			require.Equal(t, n, r.offset)
			require.Equal(t, b[:n], appendNumber(nil, got))
		}
	})
}

func TestSignedNumberEncoding(t *testing.T) {
	for _, c := range []struct {
		span  clock.Span
		bytes string
	}{
		{0, "00"},
		{Forever, "01"},
		{1, "02"},
		{-64, "7f"},
		{64, "8001"},
		{math.MaxInt64, "feffffffffffffffff01"},
		{math.MinInt64, "ffffffffffffffffff01"},
	} {
		b := appendSigned(nil, c.span)
		assert.Equal(t, c.bytes, hex.EncodeToString(b))
		r := reader{bytes: b}
		assert.Equal(t, c.span, r.signed("s"))
		assert.NoError(t, r.end())
	}
}

func TestReaderFieldErrors(t *testing.T) {
	for _, c := range []struct {
		bytes string
		read  func(*reader)
		fault string
	}{
		{"", func(r *reader) { r.byte("kind") }, "kind: the bytes end too early"},
		{"8080808010", func(r *reader) { r.number32("of") }, "of: 4294967296 is above 4294967295"},
		{"05", func(r *reader) { r.numberUpTo(4, "n") }, "n: 5 is above 4"},
		{"03 6162", func(r *reader) { r.text("name") }, "name: 3 bytes are announced and 2 are left"},
		{"ffffffffffffffffff01", func(r *reader) { r.text("name") }, "name: 18446744073709551615 bytes are announced and 0 are left"},
		{"010203", func(r *reader) { r.raw("hash", make([]byte, 4)) }, "hash: it has 4 bytes and 3 are left"},
		{"04 00 00 00 00 00 00", func(r *reader) { r.count("items", 2) }, "items: 4 are announced and 6 bytes are left"},
		{"ffffffffffffffffff01", func(r *reader) { r.count("items", 1) }, "items: 18446744073709551615 are announced and 0 bytes are left"},
		{"01 02 03", func(r *reader) { r.byte("kind") }, "2 bytes are left over"},
	} {
		r := reader{bytes: unhex(t, c.bytes)}
		c.read(&r)
		assert.EqualError(t, r.end(), c.fault)
	}
}

func TestReaderKeepsFirstError(t *testing.T) {
	r := reader{bytes: unhex(t, "01 09 61 62 63")}
	assert.EqualValues(t, 1, r.number("version"))
	assert.Empty(t, r.text("name"))

	var hash [2]byte
	r.raw("hash", hash[:])
	assert.Zero(t, hash)
	assert.Zero(t, r.byte("mode"))
	assert.Zero(t, r.number("floor"))
	assert.Zero(t, r.signed("wait"))
	assert.Zero(t, r.count("items", 1))
	assert.Zero(t, r.remaining())
	assert.EqualError(t, r.end(), "name: 9 bytes are announced and 3 are left")

	r.wrapError("item %d", 7)
	r.wrapError("ticket")
	assert.EqualError(t, r.end(), "ticket: item 7: name: 9 bytes are announced and 3 are left")
}

func TestChecksumDetectsDamage(t *testing.T) {
	// The check value of CRC-32C that its catalogues give.
	assert.Equal(t, "839206e3", hex.EncodeToString(appendChecksum([]byte("123456789"), 0)[9:]))

	b := appendChecksum([]byte("before:record"), len("before:"))
	body, err := verifyChecksum(b[len("before:"):])
	require.NoError(t, err)
	assert.Equal(t, "record", string(body))

	b[len(b)-5] ^= 1
	_, err = verifyChecksum(b[len("before:"):])
	assert.ErrorContains(t, err, "damaged: the checksum is ")
	_, err = verifyChecksum([]byte{1, 2, 3})
	assert.EqualError(t, err, "3 bytes are too few for a checksum")
}
