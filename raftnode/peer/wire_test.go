package peer

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func samples(t testing.TB) map[string]message {
	list := mustList(t, threeNodes)
	from := Answer{
		Server: serverOf("n1"), generation: generation{1}, Cluster: clusterOf("home"), List: list,
		Condition: Condition{
			HasData: true, Initial: initialMembersOf(list), Unready: "no room", Configuration: 7, Listed: true,
		},
	}
	return map[string]message{
		"hello":    &hello{purposeRaft, serverOf("n2"), from},
		"question": &hello{purposeAsk, Server{}, from},
		"proceed":  &payload{kindProceed, []byte("how far are you?")},
		"reply":    &payload{kindReply, []byte("up to 7")},
		"refusal":  &RefusedError{NotMeant, "n2", "n1", "n1 means n3"},
		"answer":   &from,
	}
}

// bodyOf is what is sent of a message behind the preamble.
func bodyOf(t testing.TB, m message) []byte {
	var b bytes.Buffer
	require.NoError(t, writeFrame(&b, m))
	return b.Bytes()[preambleBytes:]
}

// emptyOf is a message of a kind, to read into.
func emptyOf(k kind) message {
	switch k {
	case kindHello:
		return &hello{}
	case kindAnswer:
		return &Answer{}
	case kindRefusal:
		return &RefusedError{}
	}
	return &payload{as: k}
}

func TestFramesDecodeToWhatWasEncoded(t *testing.T) {
	for name, sent := range samples(t) {
		read := emptyOf(sent.kind())
		require.NoError(t, decode(bodyOf(t, sent), read), name)
		assert.Equal(t, sent, read, name)
	}
}

func TestFramesAreReadStrictly(t *testing.T) {
	for name, sent := range samples(t) {
		if _, opaque := sent.(*payload); opaque {
			continue
		}
		body := bodyOf(t, sent)
		for cut := 1; cut < len(body); cut++ {
			require.ErrorIs(t, decode(body[:cut], emptyOf(sent.kind())), errMalformed, "%s cut to %d bytes", name, cut)
		}
		err := decode(append(bytes.Clone(body), 0), emptyOf(sent.kind()))
		require.ErrorIs(t, err, errMalformed, "%s with a byte too many", name)
	}
	change := func(name string, at int, to byte) error {
		body := bodyOf(t, samples(t)[name])
		if at < 0 {
			at += len(body)
		}
		body[at] = to
		return decode(body, emptyOf(kind(body[0])))
	}
	assert.ErrorContains(t, change("hello", 1, 9), "purpose 9")
	assert.ErrorContains(t, change("hello", 4, 'N'), "lower-case")
	assert.ErrorContains(t, change("refusal", -1, '\n'), "not fit to print")
	assert.ErrorContains(t, change("answer", 1+4+16+8+16, 2), "boolean of 2")
	assert.ErrorContains(t, change("answer", 1+4+16+8+16+3+8+9+5, 'H'), "canonical")
	assert.ErrorContains(t, change("answer", -1, 'x'), "1 to 65535")
	assert.ErrorContains(t, change("answer", -6, 'H'), "not as this release writes them")
}

// What releases send each other can't change by accident.
func TestFramesAreFixed(t *testing.T) {
	hexOf := func(name string) string {
		var b bytes.Buffer
		require.NoError(t, writeFrame(&b, samples(t)[name]))
		return hex.EncodeToString(b.Bytes())
	}
	text := func(s string) string { return fmt.Sprintf("%04x%x", len(s), s) }
	n1, n2 := text("n1")+"6e312066697273740000000000000000", text("n2")+"6e322066697273740000000000000000"
	from := n1 + "0100000000000000" + "686f6d65000000000000000000000000" + "010001" + "0000000000000007" +
		text("no room") + text(threeNodes) + text(initialMembersOf(mustList(t, threeNodes)).String())
	assert.Equal(t, "7a616d6f6b"+"01"+"00fd"+"01"+"01"+n2+from, hexOf("hello"))
	assert.Equal(t, "7a616d6f6b"+"01"+"00e9"+"01"+"02"+from, hexOf("question"))
	assert.Equal(t, "7a616d6f6b"+"01"+"00e8"+"02"+from, hexOf("answer"))
	assert.Equal(t, "7a616d6f6b"+"01"+"0017"+"03"+"06"+text("n2")+text("n1")+text("n1 means n3"), hexOf("refusal"))
}

func TestReadFrameStopsAtTheFramesEnd(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeFrame(&b, &payload{as: kindProceed}))
	b.WriteString("raft")
	require.NoError(t, readFrame(&b, &payload{as: kindProceed}))
	assert.Equal(t, "raft", b.String())
}

func TestReadFrameRefusesWhatItCantRead(t *testing.T) {
	read := func(text string) error {
		return readFrame(strings.NewReader(text), &hello{})
	}
	assert.ErrorIs(t, read(""), io.EOF)
	assert.ErrorIs(t, read("zam"), io.ErrUnexpectedEOF)
	assert.ErrorIs(t, read("GET / HTTP/1.1"), errMalformed)
	assert.ErrorIs(t, read("\x16\x03\x01\x02\x00\x01\x00\x01"), errTLSRecord)
	assert.ErrorIs(t, read("zamok\x01\x00\x00"), errMalformed)
	assert.ErrorIs(t, read("zamok\x01\x80\x01"), errMalformed)
	assert.ErrorIs(t, read("zamok\x01\x00\x01\x02"), errMalformed)
	assert.ErrorIs(t, read("zamok\x02\x00\x01\x01"), errOtherVersion)
	assert.ErrorIs(t, read("zamok\x01\x00\x04\x01"), io.ErrUnexpectedEOF)
}

// A refusal by a later release is understood.
func TestRefusalIsReadInEveryVersion(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeFrame(&b, &RefusedError{RefusalCode(77), "n2", "", "too old"}))
	b.Bytes()[len(magic)] = 9
	assert.EqualError(t, readFrame(&b, &Answer{}), "n2 refused a caller: too old; no message of Raft passed between them; "+
		"the releases differ: see the log of the node that refused")
}

func TestRefusalIsFitToPrint(t *testing.T) {
	long := strings.Repeat("ä", detailBytesMax)
	var e RefusedError
	require.NoError(t, decode(bodyOf(t, &RefusedError{Malformed, "n2", "", "a\x1b[2J\n\xff" + long}), &e))
	assert.True(t, strings.HasPrefix(e.Detail, "a?[2J??ää"))
	assert.LessOrEqual(t, len(e.Detail), detailBytesMax)
}

func FuzzFrame(f *testing.F) {
	for _, m := range samples(f) {
		var b bytes.Buffer
		require.NoError(f, writeFrame(&b, m))
		f.Add(byte(m.kind()), b.Bytes())
	}
	f.Fuzz(func(t *testing.T, want byte, stream []byte) {
		_ = readFrame(bytes.NewReader(stream), emptyOf(kind(want)))
		if len(stream) <= preambleBytes {
			return
		}
		body := stream[preambleBytes:]
		m := emptyOf(kind(body[0]))
		if decode(body, m) == nil && !bytes.Equal(body, bodyOf(t, m)) {
			t.Fatalf("%x is read as %x: one meaning has two encodings", body, bodyOf(t, m))
		}
	})
}
