package record

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

func unhex(tb testing.TB, text string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	require.NoError(tb, err)
	return b
}

func numberBytesOf(v uint64) []byte {
	w := NewWriter(nil)
	Number(&w, "n", &v)
	return w.Bytes()
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
		r := NewReader(unhex(t, c.bytes))
		var value uint64
		Number(&r, "n", &value)
		assert.Equal(t, c.value, value, c.bytes)
		if c.fault != "" {
			assert.EqualError(t, r.End(), c.fault, c.bytes)
			continue
		}
		assert.NoError(t, r.End(), c.bytes)
		assert.Equal(t, unhex(t, c.bytes), numberBytesOf(value), c.bytes)
	}
}

// The standard library reads the same numbers from the same bytes, but is content with long forms.
func TestNumbersMatchBinaryUvarint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 0x7f, 0x80, 0x81, 0xff}), 0, 12).Draw(
			t, "bytes")
		want, n := binary.Uvarint(b)
		shortest := n > 0 && (n == 1 || b[n-1] != 0)
		r := NewReader(b)
		var got uint64
		Number(&r, "n", &got)
		require.Equal(t, shortest, r.err == nil, "%v", r.err)
		if shortest {
			require.Equal(t, want, got)
			require.Equal(t, n, r.offset)
			require.Equal(t, b[:n], numberBytesOf(got))
		}
	})
}

func TestSignedNumberEncoding(t *testing.T) {
	for _, c := range []struct {
		span  clock.Span
		bytes string
	}{
		{0, "00"},
		{-1, "01"},
		{1, "02"},
		{-64, "7f"},
		{64, "8001"},
		{math.MaxInt64, "feffffffffffffffff01"},
		{math.MinInt64, "ffffffffffffffffff01"},
	} {
		w := NewWriter(nil)
		w.Signed("s", &c.span)
		assert.Equal(t, c.bytes, hex.EncodeToString(w.Bytes()))
		r := NewReader(w.Bytes())
		var span clock.Span
		r.Signed("s", &span)
		assert.Equal(t, c.span, span)
		assert.NoError(t, r.End())
	}
}

func TestReaderFieldErrors(t *testing.T) {
	var (
		b    byte
		n    uint64
		n32  uint32
		at   clock.Time
		text string
	)
	for _, c := range []struct {
		bytes string
		read  func(*Coder)
		fault string
	}{
		{"", func(r *Coder) { Byte(r, "kind", &b) }, "kind: the bytes end too early"},
		{"8080808010", func(r *Coder) { r.Number32("of", &n32) },
			"of: 4294967296 is above 4294967295"},
		{"80808080808080808001", func(r *Coder) { r.Time("at", &at) },
			"at: 9223372036854775808 is above 9223372036854775807"},
		{"03 6162", func(r *Coder) { r.Text("name", &text) },
			"name: 3 bytes are announced and 2 are left"},
		{"ffffffffffffffffff01", func(r *Coder) { r.Text("name", &text) },
			"name: 18446744073709551615 bytes are announced and 0 are left"},
		{"010203", func(r *Coder) { r.Raw("hash", make([]byte, 4)) },
			"hash: it has 4 bytes and 3 are left"},
		{"04 00 00 00 00 00 00", func(r *Coder) { r.Count("items", 0, 9, 2) },
			"items: 4 are announced and 6 bytes are left"},
		{"ffffffffffffffffff01", func(r *Coder) { r.Count("items", 0, 9, 1) },
			"items: 18446744073709551615 are announced and 0 bytes are left"},
		{"01 02 03", func(r *Coder) { Byte(r, "kind", &b) }, "2 bytes are left over"},
		{"01 02", func(r *Coder) { Number(r, "n", &n) }, "1 bytes are left over"},
	} {
		r := NewReader(unhex(t, c.bytes))
		c.read(&r)
		assert.EqualError(t, r.End(), c.fault)
	}
}

// every is a record with a field of every kind.
type every struct {
	Number  uint64
	Narrow  uint32
	At      clock.Time
	Span    clock.Span
	Signed  clock.Span
	Kind    uint8
	Text    string
	Hash    [4]byte
	Strings []string
}

func (e *every) code(c *Coder) {
	Number(c, "number", &e.Number)
	c.Number32("narrow", &e.Narrow)
	c.Time("at", &e.At)
	c.Span("span", &e.Span)
	c.Signed("signed", &e.Signed)
	Byte(c, "kind", &e.Kind)
	c.Text("text", &e.Text)
	c.Raw("hash", e.Hash[:])
	n := c.Count("strings", len(e.Strings), math.MaxInt, 1)
	if c.Reading() {
		e.Strings = make([]string, n)
	}
	for i := range e.Strings {
		c.Text("string", &e.Strings[i])
	}
}

// After a failure nothing is read: every field becomes zero, and the failure stays the first.
func TestReaderKeepsFirstError(t *testing.T) {
	e := every{1, 2, 3, 4, 5, 6, "text", [4]byte{}, nil}
	r := NewReader(unhex(t, "8000"))
	e.code(&r)
	assert.Equal(t, every{Strings: []string{}}, e)
	assert.Zero(t, r.Remaining())
	assert.EqualError(t, r.End(), "number: the number is not in its shortest form")
	r.Wrap("item %d", 7)
	r.Wrap("ticket")
	assert.EqualError(t, r.End(), "ticket: item 7: number: the number is not in its shortest form")
}

// What is written is read again, and is no longer than a sizer says.
func TestDirectionsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := every{
			Number: rapid.Uint64().Draw(t, "number"), Narrow: rapid.Uint32().Draw(t, "narrow"),
			At:      clock.Time(rapid.Int64Min(0).Draw(t, "at")),
			Span:    clock.Span(rapid.Int64Range(0, int64(SpanMax)).Draw(t, "span")),
			Signed:  clock.Span(rapid.Int64().Draw(t, "signed")),
			Kind:    rapid.Uint8().Draw(t, "kind"),
			Text:    rapid.String().Draw(t, "text"),
			Strings: rapid.SliceOf(rapid.String()).Draw(t, "strings"),
		}
		w, size := NewWriter(nil), NewSizer()
		e.code(&w)
		e.code(&size)
		require.GreaterOrEqual(t, size.Size(), len(w.Bytes()))
		r := NewReader(w.Bytes())
		var again every
		again.code(&r)
		require.NoError(t, r.End())
		require.Equal(t, e, again)
	})
}

func TestChecksumDetectsDamage(t *testing.T) {
	// The check value of CRC-32C that its catalogues give.
	assert.Equal(t, "839206e3", hex.EncodeToString(AppendChecksum([]byte("123456789"), 0)[9:]))

	b := AppendChecksum([]byte("before:record"), len("before:"))
	body, err := VerifyChecksum(b[len("before:"):])
	require.NoError(t, err)
	assert.Equal(t, "record", string(body))

	b[len(b)-5] ^= 1
	_, err = VerifyChecksum(b[len("before:"):])
	assert.ErrorContains(t, err, "damaged: the checksum is ")
	_, err = VerifyChecksum([]byte{1, 2, 3})
	assert.EqualError(t, err, "3 bytes are too few for a checksum")
}
