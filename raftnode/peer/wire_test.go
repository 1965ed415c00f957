package peer

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func samples(t testing.TB) map[string]message {
	list := mustList(t, threeNodes)
	from := Answer{
		Server: serverOf("n1"), Generation: 1, Cluster: clusterOf("home"), List: list, Format: "f",
		Condition: Condition{
			HasData: true, Initial: initialMembersOf(list), Unready: "no room", Configuration: 7,
			Listed: true, Names: []string{"n1", "n4"},
		},
	}
	return map[string]message{
		"hello":    &hello{purposeRaft, serverOf("n2"), from},
		"question": &hello{purposeAsk, Server{}, from},
		"proceed":  &payload{kindProceed, []byte("how far are you?")},
		"reply":    &payload{kindReply, []byte("up to 7")},
		"refusal":  &RefusedError{OtherNode, "n2", "n1", "n1 wants n3"},
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
		body := bodyOf(t, sent)
		for cut := 1; cut < len(body); cut++ {
			require.ErrorIs(t, decode(body[:cut], emptyOf(sent.kind())), errMalformed,
				"%s cut to %d bytes", name, cut)
		}
		err := decode(append(bytes.Clone(body), ' '), emptyOf(sent.kind()))
		require.ErrorIs(t, err, errMalformed, "%s with a byte too many", name)
	}
	for _, c := range []struct{ name, from, to, want string }{
		{"hello", `"Purpose":1`, `"Purpose":9`, "purpose 9"},
		{"hello", `"Name":"n2"`, `"Name":"N2"`, "lower-case"},
		{"hello", `"6e312066`, `"6E312066`, "canonical"},
		{"hello", `"6e312066`, `"312066`, "is not 32 hexadecimal digits"},
		{"question", `"Server":{"Name":""`, `"Server":{"Name":"n2"`,
			"a question with an intended server"},
		{"refusal", `wants n3`, `wants\nn3`, "not fit to print"},
		{"refusal", `"By":"n2"`, `"By":""`, "no ids"},
		{"answer", `"HasData":true`, `"HasData":2`, "cannot unmarshal number"},
		{"answer", `"HasData":true`, `"HasData":true,"HasData":true`, "canonical"},
		{"answer", `"HasData":true`, `"HasData":true,"More":1`, "canonical"},
		{"answer", `=h1:5751,n2=`, `=H1:5751,n2=`, "canonical"},
		{"answer", `5751","Unready`, `575x","Unready`, "1 to 65535"},
		{"answer", `h3:5751","Unready`, `H3:5751","Unready`, "not as this release writes them"},
	} {
		body := bytes.Replace(bodyOf(t, samples(t)[c.name]), []byte(c.from), []byte(c.to), 1)
		err := decode(body, emptyOf(kind(body[0])))
		require.ErrorIs(t, err, errMalformed, "%s %s", c.name, c.to)
		assert.ErrorContains(t, err, c.want, "%s %s", c.name, c.to)
	}
}

// What releases send each other can't change by accident.
func TestFramesAreFixed(t *testing.T) {
	n1 := `"Name":"n1","Incarnation":"6e312066697273740000000000000000"`
	n2 := `"Name":"n2","Incarnation":"6e322066697273740000000000000000"`
	from := `{` + n1 + `,"Cluster":"686f6d65000000000000000000000000","List":"` + threeNodes +
		`","Format":"f",` +
		`"HasData":true,"Member":false,"Initial":"` +
		initialMembersOf(mustList(t, threeNodes)).String() + `",` +
		`"Unready":"no room","Configuration":7,"Listed":true,"Names":["n1","n4"],"Generation":1}`
	none := `"Name":"","Incarnation":"00000000000000000000000000000000"`
	for name, want := range map[string]string{
		"hello":    "\x01" + `{"Purpose":1,"Server":{` + n2 + `},"From":` + from + `}`,
		"question": "\x01" + `{"Purpose":2,"Server":{` + none + `},"From":` + from + `}`,
		"answer":   "\x02" + from,
		"refusal":  "\x03" + `{"Code":6,"By":"n2","Peer":"n1","Detail":"n1 wants n3"}`,
		"reply":    "\x05" + `{"Body":"dXAgdG8gNw=="}`,
	} {
		var b bytes.Buffer
		require.NoError(t, writeFrame(&b, samples(t)[name]))
		size := []byte{byte(len(want) >> 8), byte(len(want))}
		assert.Equal(t, "zamok\x02"+string(size)+want, b.String(), name)
	}
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
	assert.ErrorIs(t, read("zamok\x02\x00\x00"), errMalformed)
	assert.ErrorIs(t, read("zamok\x02\x80\x01"), errMalformed)
	assert.ErrorIs(t, read("zamok\x02\x00\x01\x02"), errMalformed)
	assert.ErrorIs(t, read("zamok\x09\x00\x01\x01"), errOtherVersion)
	assert.ErrorIs(t, read("zamok\x02\x00\x04\x01"), io.ErrUnexpectedEOF)
}

// A refusal by a later release is understood.
func TestRefusalIsReadInEveryVersion(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeFrame(&b, &RefusedError{RefusalCode(77), "n2", "", "too old"}))
	b.Bytes()[len(magic)] = 9
	assert.EqualError(t, readFrame(&b, &Answer{}),
		"n2 refused a caller: too old; no message of Raft passed between them; the releases "+
			"differ: see the log of the node that refused")
}

func TestRefusalIsFitToPrint(t *testing.T) {
	long := strings.Repeat("ä", detailBytesMax)
	var e RefusedError
	sent := newRefusal(Malformed, "n2", "", "%s", "a\x1b[2J\n\xff"+long)
	require.NoError(t, decode(bodyOf(t, sent), &e))
	assert.True(t, strings.HasPrefix(e.Detail, `a\x1b[2J\n\xffää`))
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

// TestRemediesAreShort: a refusal is logged again at each attempt, at both ends.
func TestRemediesAreShort(t *testing.T) {
	for code, of := range codes {
		assert.LessOrEqual(t, len(of.remedy), 200, code)
	}
}
