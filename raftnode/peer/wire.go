package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/raft"
)

// A frame is "zamok", a version byte, the length of the body in two bytes, and the body, whose
// first byte is its kind. This preamble and the refusal are the same in every version forever, so
// that nodes of different releases can at least tell each other why they don't speak. The version
// covers the rest. Numbers are big-endian, strings have their length before them, nothing is
// optional, and a body must be used up to its last byte: one meaning, one encoding.
const (
	magic   = "zamok"
	version = 1

	preambleBytes   = len(magic) + 3
	frameBytesMax   = 1024 // of a body other than an answer
	answerBytesMax  = 32 * 1024
	factBytesMax    = 512
	lingerBytesMax  = 16 * 1024 // read and thrown away after a refusal, see linger
	tlsRecordMarker = 0x16      // the first byte of a TLS client's first record
)

type kind uint8

const (
	kindHello   kind = 1 // caller: who I am, whom I mean, what for
	kindWelcome kind = 2 // receiver: who I am
	kindRefusal kind = 3 // either: why not
	kindGo      kind = 4 // caller: I know you; Raft's bytes follow
	kindAnswer  kind = 5 // receiver: what I hold
	kindCall    kind = 6 // caller, after Go: something for the node itself
	kindReply   kind = 7 // receiver: its answer
)

// purpose says what a connection is for.
type purpose uint8

const (
	purposeRaft purpose = 1
	purposeAsk  purpose = 2
	purposeCall purpose = 3
)

type hello struct {
	purpose purpose
	meant   string
	from    identity
}

var (
	errMalformed    = errors.New("not a zamok handshake")
	errOtherVersion = errors.New("a zamok handshake of another version")
	errTLSRecord    = errors.New("a TLS handshake, and this node's peer port speaks without TLS")
)

// writeFrame sends body in one write, so that it leaves in one packet.
func writeFrame(w io.Writer, body []byte) error {
	frame := make([]byte, 0, preambleBytes+len(body))
	frame = append(frame, magic...)
	frame = append(frame, version)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(body)))
	_, err := w.Write(append(frame, body...))
	return err
}

// readFrame reads one body and not a byte behind it: what follows belongs to Raft. A refusal
// comes back as the error that it is.
func readFrame(r io.Reader, want kind, bytesMax int) ([]byte, error) {
	var preamble [preambleBytes]byte
	if _, err := io.ReadFull(r, preamble[:]); err != nil {
		return nil, err
	}
	if string(preamble[:len(magic)]) != magic {
		if preamble[0] == tlsRecordMarker {
			return nil, errTLSRecord
		}
		return nil, fmt.Errorf("%w: it begins with %q", errMalformed, preamble[:])
	}
	size := int(binary.BigEndian.Uint16(preamble[len(magic)+1:]))
	if size == 0 || size > bytesMax {
		return nil, fmt.Errorf("%w: a body of %d bytes where %d is the most",
			errMalformed, size, bytesMax)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, fmt.Errorf("the connection broke inside a frame: %w", err)
	}
	if kind(body[0]) == kindRefusal {
		refusal, err := decodeRefusal(body)
		if err != nil {
			return nil, err
		}
		return nil, refusal
	}
	if v := preamble[len(magic)]; v != version {
		return nil, fmt.Errorf("%w: it has %d, this release has %d", errOtherVersion, v, version)
	}
	if kind(body[0]) != want {
		return nil, fmt.Errorf("%w: frame of kind %d where %d belongs", errMalformed, body[0], want)
	}
	return body, nil
}

func encodeHello(h hello) []byte {
	b := []byte{byte(kindHello), byte(h.purpose)}
	return appendIdentity(appendText(b, h.meant), h.from)
}

func decodeHello(body []byte) (hello, error) {
	d := decoder{rest: body}
	d.kind(kindHello)
	h := hello{purpose: purpose(d.take(1)[0]), meant: d.text(), from: d.identity()}
	d.require(h.purpose >= purposeRaft && h.purpose <= purposeCall, "purpose %d", h.purpose)
	if h.purpose != purposeAsk { // a question may go to an address whose server is not known yet
		_, err := ParseServer(raft.ServerID(h.meant))
		d.require(err == nil, "%v", err)
	}
	return h, d.end()
}

func encodeWelcome(i identity) []byte { return appendIdentity([]byte{byte(kindWelcome)}, i) }

func decodeWelcome(body []byte) (identity, error) {
	d := decoder{rest: body}
	d.kind(kindWelcome)
	i := d.identity()
	return i, d.end()
}

func encodeGo() []byte { return []byte{byte(kindGo)} }

func decodeGo(body []byte) error {
	d := decoder{rest: body}
	d.kind(kindGo)
	return d.end()
}

// encodeCall makes a kindCall or kindReply; what is in it is between the two nodes.
func encodeCall(k kind, what []byte) []byte { return append([]byte{byte(k)}, what...) }

func encodeRefusal(e *RefusedError) []byte {
	b := appendText([]byte{byte(kindRefusal), byte(e.Code)}, e.By)
	b = appendText(b, e.Peer)
	return appendLongText(b, printable(e.Fact))
}

func decodeRefusal(body []byte) (*RefusedError, error) {
	d := decoder{rest: body}
	d.kind(kindRefusal)
	e := &RefusedError{Code: Code(d.take(1)[0]), By: d.id(), Peer: d.text(), Fact: d.longText()}
	d.require(e.Peer == "" || CheckID(e.Peer) == nil, "no id: %q", e.Peer)
	d.require(e.Fact == printable(e.Fact), "a text not fit to print, or over %d bytes", factBytesMax)
	return e, d.end()
}

func encodeAnswer(a Answer, r generation) []byte {
	from := identity{a.Server, r, a.Cluster, a.Initial.Hash()}
	b := appendIdentity([]byte{byte(kindAnswer)}, from)
	for _, yes := range []bool{a.Holds, a.Member, a.Listed} {
		b = append(b, 0)
		if yes {
			b[len(b)-1] = 1
		}
	}
	b = binary.BigEndian.AppendUint64(b, a.Configuration)
	b = appendLongText(b, printable(a.Unready))
	b = appendLongText(b, a.List.String())
	return appendLongText(b, a.Initial.String())
}

func decodeAnswer(body []byte) (a Answer, err error) {
	d := decoder{rest: body}
	d.kind(kindAnswer)
	i := d.identity()
	a.Server, a.Cluster = i.Server, i.cluster
	a.Holds, a.Member, a.Listed = d.bool(), d.bool(), d.bool()
	a.Configuration = binary.BigEndian.Uint64(d.take(8))
	a.Unready = d.longText()
	d.require(a.Unready == printable(a.Unready), "a text not fit to print, or over %d bytes", factBytesMax)
	list, founders := d.longText(), d.longText()
	if err := d.end(); err != nil {
		return Answer{}, err
	}
	if list != "" {
		if a.List, err = ParseList(list); err != nil {
			return Answer{}, fmt.Errorf("%w: %w", errMalformed, err)
		}
	}
	if a.Initial, err = ParseInitialMembers(founders); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if a.List.String() != list || a.Initial.Hash() != i.initial {
		return Answer{}, fmt.Errorf("%w: a list that is not in its canonical form, or doesn't have its hash", errMalformed)
	}
	return a, nil
}

func appendText(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

func appendLongText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func appendIdentity(b []byte, i identity) []byte {
	b = appendText(b, i.Name)
	return append(b, bytes.Join([][]byte{i.Incarnation[:], i.generation[:], i.cluster[:], i.initial[:]}, nil)...)
}

// printable cuts a text down to what may stand in a log line, and to factBytesMax.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	for len(s) > factBytesMax {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// decoder reads a body from the front. After the first fault it hands out zeros, and end tells.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) require(ok bool, format string, args ...any) {
	if !ok && d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{errMalformed}, args...)...)
	}
}

func (d *decoder) take(n int) []byte {
	d.require(len(d.rest) >= n, "it ends early")
	if d.err != nil {
		return make([]byte, n)
	}
	taken := d.rest[:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) kind(want kind) {
	got := kind(d.take(1)[0])
	d.require(got == want, "frame of kind %d where %d belongs", got, want)
}

func (d *decoder) bool() bool {
	b := d.take(1)[0]
	d.require(b <= 1, "a boolean of %d", b)
	return b == 1
}

func (d *decoder) text() string { return string(d.take(int(d.take(1)[0]))) }

func (d *decoder) longText() string {
	return string(d.take(int(binary.BigEndian.Uint16(d.take(2)))))
}

func (d *decoder) id() string {
	id := d.text()
	err := CheckID(id)
	d.require(err == nil, "%v", err)
	return id
}

func (d *decoder) identity() (i identity) {
	i.Name = d.id()
	copy(i.Incarnation[:], d.take(len(i.Incarnation)))
	copy(i.generation[:], d.take(len(i.generation)))
	copy(i.cluster[:], d.take(len(i.cluster)))
	copy(i.initial[:], d.take(len(i.initial)))
	d.require(i.Incarnation != Incarnation{}, "no incarnation")
	return i
}

func (d *decoder) end() error {
	d.require(len(d.rest) == 0, "%d bytes too many", len(d.rest))
	return d.err
}
