package peer

import (
	"bytes"
	"encoding/hex"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func samples(t testing.TB) map[kind][]byte {
	list := mustList(t, threeNodes)
	from := identity{serverOf("n1"), generation{1}, clusterOf("home"), foundersOf(list).Hash()}
	answer := Answer{
		Server: from.Server, Cluster: from.cluster, List: list,
		Condition: Condition{
			Holds: true, Initial: foundersOf(list), Unready: "no room", Configuration: 7, Listed: true,
		},
	}
	return map[kind][]byte{
		kindHello:   encodeHello(hello{purposeRaft, serverOf("n2").String(), from}),
		kindWelcome: encodeWelcome(from),
		kindGo:      encodeGo(),
		kindCall:    encodeCall(kindCall, []byte("how far are you?")),
		kindReply:   encodeCall(kindReply, []byte("up to 7")),
		kindRefusal: encodeRefusal(&RefusedError{NotMeant, "n2", "n1", "n1 means n3"}),
		kindAnswer:  encodeAnswer(answer, from.generation),
	}
}

// decodeAny decodes a body by its kind and encodes what it got again.
func decodeAny(body []byte) ([]byte, error) {
	switch kind(body[0]) {
	case kindHello:
		h, err := decodeHello(body)
		return encodeHello(h), err
	case kindWelcome:
		i, err := decodeWelcome(body)
		return encodeWelcome(i), err
	case kindGo:
		return encodeGo(), decodeGo(body)
	case kindCall, kindReply:
		return encodeCall(kind(body[0]), body[1:]), nil // opaque: there is nothing to decode
	case kindRefusal:
		e, err := decodeRefusal(body)
		if err != nil {
			return nil, err
		}
		return encodeRefusal(e), nil
	case kindAnswer:
		a, err := decodeAnswer(body)
		if err != nil {
			return nil, err
		}
		var r generation
		copy(r[:], body[1+1+len(a.Name)+len(a.Incarnation):])
		return encodeAnswer(a, r), nil
	}
	return nil, errMalformed
}

func TestFramesDecodeToWhatWasEncoded(t *testing.T) {
	for kind, body := range samples(t) {
		again, err := decodeAny(body)
		require.NoError(t, err, "kind %d", kind)
		assert.Equal(t, body, again, "kind %d", kind)
	}
}

func TestFramesAreReadStrictly(t *testing.T) {
	for kind, body := range samples(t) {
		if kind == kindCall || kind == kindReply {
			continue
		}
		for cut := 1; cut < len(body); cut++ {
			_, err := decodeAny(body[:cut])
			require.ErrorIs(t, err, errMalformed, "kind %d cut to %d bytes", kind, cut)
		}
		_, err := decodeAny(append(bytes.Clone(body), 0))
		require.ErrorIs(t, err, errMalformed, "kind %d with a byte too many", kind)
	}
	change := func(k kind, at int, to byte) error {
		body := samples(t)[k]
		if at < 0 {
			at += len(body)
		}
		body[at] = to
		_, err := decodeAny(body)
		return err
	}
	assert.ErrorContains(t, change(kindHello, 1, 9), "purpose 9")
	assert.ErrorContains(t, change(kindHello, 3, 'N'), "lower-case")
	assert.ErrorContains(t, change(kindRefusal, -1, '\n'), "not fit to print")
	assert.ErrorContains(t, change(kindAnswer, 1+3+16+8+16+32, 2), "boolean of 2")
	assert.ErrorContains(t, change(kindAnswer, -1, '2'), "doesn't have its hash")
	assert.ErrorContains(t, change(kindAnswer, -1, 'x'), "1 to 65535")
}

// What releases tell each other can't change by accident.
func TestFramesAreFixed(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeFrame(&b, samples(t)[kindHello]))
	assert.Equal(t, "7a616d6f6b"+"01"+"0071"+"01"+"01"+"236e3240"+hex.EncodeToString([]byte("6e322066697273740000000000000000"))+
		"026e31"+"6e312066697273740000000000000000"+"0100000000000000"+"686f6d65000000000000000000000000"+
		"3a6b50c9e25f7fdad13a32521e0e426c8ad5a17d1ac8e0e9c162463d973d0e25", hex.EncodeToString(b.Bytes()))
	b.Reset()
	require.NoError(t, writeFrame(&b, samples(t)[kindAnswer]))
	text := hex.EncodeToString(b.Bytes())
	assert.Equal(t, "7a616d6f6b"+"01"+"0107"+"05"+"026e31"+"6e312066697273740000000000000000"+"0100000000000000"+
		"686f6d65000000000000000000000000"+"3a6b50c9e25f7fdad13a32521e0e426c8ad5a17d1ac8e0e9c162463d973d0e25"+
		"010001"+"0000000000000007"+"0007"+hex.EncodeToString([]byte("no room"))+
		"0020"+hex.EncodeToString([]byte(threeNodes)), text[:len(text)-2*(2+len(foundersOf(mustList(t, threeNodes)).String()))])
	b.Reset()
	require.NoError(t, writeFrame(&b, samples(t)[kindRefusal]))
	assert.Equal(t, "7a616d6f6b"+"01"+"0015"+"03"+"06"+"026e32"+"026e31"+
		"000b6e31206d65616e73206e33", hex.EncodeToString(b.Bytes()))
}

func TestReadFrameStopsAtTheFramesEnd(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeFrame(&b, []byte{byte(kindGo)}))
	b.WriteString("raft")
	_, err := readFrame(&b, kindGo, 1)
	require.NoError(t, err)
	assert.Equal(t, "raft", b.String())
}

func TestReadFrameRefusesWhatItCantRead(t *testing.T) {
	read := func(text string) error {
		_, err := readFrame(strings.NewReader(text), kindHello, 10)
		return err
	}
	assert.ErrorIs(t, read(""), io.EOF)
	assert.ErrorIs(t, read("zam"), io.ErrUnexpectedEOF)
	assert.ErrorIs(t, read("GET / HTTP/1.1"), errMalformed)
	assert.ErrorIs(t, read("\x16\x03\x01\x02\x00\x01\x00\x01"), errTLSRecord)
	assert.ErrorIs(t, read("zamok\x01\x00\x00"), errMalformed)
	assert.ErrorIs(t, read("zamok\x01\x00\x0b"), errMalformed)
	assert.ErrorIs(t, read("zamok\x01\x00\x01\x02"), errMalformed)
	assert.ErrorIs(t, read("zamok\x02\x00\x01\x01"), errOtherVersion)
	assert.ErrorIs(t, read("zamok\x01\x00\x04\x01"), io.ErrUnexpectedEOF)
}

// A refusal by a later release is understood.
func TestRefusalIsReadInEveryVersion(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeFrame(&b, encodeRefusal(&RefusedError{Code(77), "n2", "", "too old"})))
	b.Bytes()[len(magic)] = 9
	_, err := readFrame(&b, kindWelcome, frameBytesMax)
	assert.EqualError(t, err, "n2 refused a caller: too old; no message of Raft passed between them; "+
		"the releases differ: see the log of the node that refused")
}

func TestRefusalIsFitToPrint(t *testing.T) {
	long := strings.Repeat("ä", factBytesMax)
	e, err := decodeRefusal(encodeRefusal(&RefusedError{Malformed, "n2", "", "a\x1b[2J\n\xff" + long}))
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(e.Fact, "a?[2J??ää"))
	assert.LessOrEqual(t, len(e.Fact), factBytesMax)
}

func FuzzFrame(f *testing.F) {
	for kind, body := range samples(f) {
		var b bytes.Buffer
		require.NoError(f, writeFrame(&b, body))
		f.Add(byte(kind), b.Bytes())
	}
	f.Fuzz(func(t *testing.T, want byte, stream []byte) {
		body, err := readFrame(bytes.NewReader(stream), kind(want), answerBytesMax)
		if err != nil {
			return
		}
		again, err := decodeAny(body)
		if err == nil && !bytes.Equal(body, again) {
			t.Fatalf("%x is read as %x: one meaning has two encodings", body, again)
		}
	})
}
