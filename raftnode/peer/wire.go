package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A frame is "zamok", a version byte, the length of the body in two bytes, and the body: its kind in one byte
// and the fields of one message. This preamble and the refusal are the same in every version, so that nodes
// of different releases can at least report why they do not connect. The version covers the rest. Numbers are
// big-endian, texts have their length before them, nothing is optional, and a body must be used up to its
// last byte: one meaning, one encoding.
const (
	magic   = "zamok"
	version = 1

	preambleBytes   = len(magic) + 3
	frameBytesMax   = 32 * 1024 // of a body; fits the longest Answer
	callBytesMax    = 16*1024 - 1
	detailBytesMax  = 512
	lingerBytesMax  = 16 * 1024 // read and discarded after a refusal, see awaitPeerClose
	tlsRecordMarker = 0x16      // the first byte of a TLS client's first record
)

type kind uint8

const (
	kindHello   kind = 1 // caller: the purpose, the server that it means, its own Answer
	kindAnswer  kind = 2 // receiver: its Answer
	kindRefusal kind = 3 // either: why not
	kindProceed kind = 4 // caller: it accepts the receiver; carries the request of a call, or Raft's bytes follow
	kindReply   kind = 5 // receiver: the answer to the request of a call
)

// message is what a frame carries. One function, code, both writes and reads its fields.
type message interface {
	kind() kind
	code(c *coder)
}

var (
	errMalformed    = errors.New("not a zamok handshake")
	errOtherVersion = errors.New("a zamok handshake of another version")
	errTLSRecord    = errors.New("a TLS handshake, and this node's peer port speaks without TLS")
)

// writeFrame sends a message in one write, so that it leaves in one packet.
func writeFrame(w io.Writer, m message) error {
	c := coder{rest: []byte{byte(m.kind())}}
	m.code(&c)
	frame := append([]byte(magic), version)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(c.rest)))
	_, err := w.Write(append(frame, c.rest...))
	return err
}

// readFrame reads one message and not a byte behind it: what follows belongs to Raft. A refusal is returned
// as the error that it is.
func readFrame(r io.Reader, m message) error {
	var preamble [preambleBytes]byte
	if _, err := io.ReadFull(r, preamble[:]); err != nil {
		return err
	}
	if string(preamble[:len(magic)]) != magic {
		if preamble[0] == tlsRecordMarker {
			return errTLSRecord
		}
		return fmt.Errorf("%w: it begins with %q", errMalformed, preamble[:])
	}
	size := int(binary.BigEndian.Uint16(preamble[len(magic)+1:]))
	if size == 0 || size > frameBytesMax {
		return fmt.Errorf("%w: a body of %d bytes where %d is the most", errMalformed, size, frameBytesMax)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return fmt.Errorf("the connection broke inside a frame: %w", err)
	}
	if kind(body[0]) == kindRefusal {
		refusal := &RefusedError{}
		if err := decode(body, refusal); err != nil {
			return err
		}
		return refusal
	}
	if v := preamble[len(magic)]; v != version {
		return fmt.Errorf("%w: it has %d, this release has %d", errOtherVersion, v, version)
	}
	return decode(body, m)
}

func decode(body []byte, m message) error {
	c := coder{reading: true, rest: body[1:]}
	c.require(kind(body[0]) == m.kind(), "frame of kind %d where %d belongs", body[0], m.kind())
	m.code(&c)
	c.require(len(c.rest) == 0, "%d bytes too many", len(c.rest))
	return c.err
}

// purpose is what a connection is for.
type purpose uint8

const (
	purposeRaft purpose = 1
	purposeAsk  purpose = 2
	purposeCall purpose = 3
)

type hello struct {
	purpose purpose
	server  Server // zero with purposeAsk: a question may go to an address whose server is not known yet
	from    Answer
}

func (h *hello) kind() kind { return kindHello }

func (h *hello) code(c *coder) {
	c.byte((*byte)(&h.purpose))
	c.require(h.purpose >= purposeRaft && h.purpose <= purposeCall, "purpose %d", h.purpose)
	if h.purpose != purposeAsk {
		c.server(&h.server)
	}
	h.from.code(c)
}

func (a *Answer) kind() kind { return kindAnswer }

func (a *Answer) code(c *coder) {
	c.server(&a.Server)
	c.bytes(a.generation[:])
	c.bytes(a.Cluster[:])
	for _, flag := range []*bool{&a.HasData, &a.Member, &a.Listed} {
		c.bool(flag)
	}
	c.uint64(&a.Configuration)
	c.printable(&a.Unready)
	list, initial := a.List.String(), a.Initial.String()
	c.text(&list)
	c.text(&initial)
	if !c.reading || c.err != nil {
		return
	}
	var err error
	if list != "" {
		a.List, err = ParseList(list)
		c.require(err == nil, "%v", err)
		c.require(a.List.String() == list, "a list that is not in its canonical form")
	}
	a.Initial, err = ParseInitialMembers(initial)
	c.require(err == nil, "%v", err)
}

func (e *RefusedError) kind() kind { return kindRefusal }

func (e *RefusedError) code(c *coder) {
	c.byte((*byte)(&e.Code))
	c.text(&e.By)
	c.text(&e.Peer)
	c.require(CheckID(e.By) == nil && (e.Peer == "" || CheckID(e.Peer) == nil), "no ids: %q, %q", e.By, e.Peer)
	c.printable(&e.Detail)
}

// payload is a message of bytes whose meaning only the two nodes know.
type payload struct {
	as   kind
	body []byte
}

func (p *payload) kind() kind { return p.as }

func (p *payload) code(c *coder) {
	if !c.reading {
		c.rest = append(c.rest, p.body...)
		return
	}
	p.body, c.rest = c.rest, nil
}

// coder appends the fields of a message to rest or, reading, takes them from its front. After the first fault
// of what it reads, rest is empty and err is set.
type coder struct {
	reading bool
	rest    []byte
	err     error
}

func (c *coder) require(ok bool, format string, args ...any) {
	if !ok && c.reading && c.err == nil {
		c.err, c.rest = fmt.Errorf("%w: "+format, append([]any{errMalformed}, args...)...), nil
	}
}

func (c *coder) bytes(b []byte) {
	if !c.reading {
		c.rest = append(c.rest, b...)
		return
	}
	c.require(len(c.rest) >= len(b), "it ends early")
	c.rest = c.rest[copy(b, c.rest):]
}

func (c *coder) byte(b *byte) {
	one := [1]byte{*b}
	c.bytes(one[:])
	*b = one[0]
}

func (c *coder) bool(yes *bool) {
	var b byte
	if *yes {
		b = 1
	}
	c.byte(&b)
	c.require(b <= 1, "a boolean of %d", b)
	*yes = b == 1
}

func (c *coder) uint64(n *uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], *n)
	c.bytes(b[:])
	*n = binary.BigEndian.Uint64(b[:])
}

func (c *coder) text(s *string) {
	var size [2]byte
	binary.BigEndian.PutUint16(size[:], uint16(len(*s)))
	c.bytes(size[:])
	text := []byte(*s)
	if c.reading {
		n := int(binary.BigEndian.Uint16(size[:]))
		c.require(n <= len(c.rest), "it ends early")
		text = make([]byte, min(n, len(c.rest)))
	}
	c.bytes(text)
	*s = string(text)
}

// printable is a text that may stand in a line of a log.
func (c *coder) printable(s *string) {
	text := *s
	if !c.reading {
		text = printable(text)
	}
	c.text(&text)
	c.require(text == printable(text), "a text not fit to print, or over %d bytes", detailBytesMax)
	if c.reading {
		*s = text
	}
}

func (c *coder) server(s *Server) {
	c.text(&s.Name)
	c.bytes(s.Incarnation[:])
	err := CheckID(s.Name)
	c.require(err == nil, "%v", err)
	c.require(s.Incarnation != Incarnation{}, "no incarnation")
}

// printable replaces what may not stand in a log line, and cuts a text to detailBytesMax.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	for len(s) > detailBytesMax {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}
