package peer

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"zamok/api/visible"
)

// A frame is "zamok", a version byte, the length of the body in two bytes, big-endian, and the
// body: its kind in one byte and one message in JSON. This preamble and the refusal are the same in
// every version, so that nodes of different releases can at least report why they do not connect.
// The version covers the rest. A body is read only if it is what this release writes: one meaning,
// one encoding.
const (
	magic   = "zamok"
	version = 2

	preambleBytes   = len(magic) + 3
	frameBytesMax   = 32 * 1024 // of a body; fits the longest Answer, and 16 KiB in a payload
	detailBytesMax  = 512
	lingerBytesMax  = 16 * 1024 // read and discarded after a refusal, see writeLast
	tlsRecordMarker = 0x16      // the first byte of a TLS client's first record
)

type kind uint8

const (
	kindHello   kind = 1 // caller: the purpose, the intended server, its own Answer
	kindAnswer  kind = 2 // receiver: its Answer
	kindRefusal kind = 3 // either: why not
	// caller: it accepts the receiver; carries the request of a call, or Raft's bytes follow
	kindProceed kind = 4
	kindReply   kind = 5 // receiver: the answer to the request of a call
)

// message is what a frame carries.
type message interface {
	kind() kind
	// check returns what is wrong with a message that was read, beyond its form.
	check() error
}

var (
	errMalformed    = errors.New("not a zamok handshake")
	errOtherVersion = errors.New("a zamok handshake of another version")
	errTLSRecord    = errors.New("a TLS handshake, and this node's peer port speaks without TLS")
)

// writeFrame sends a message in one write, so that it leaves in one packet.
func writeFrame(w io.Writer, m message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) >= frameBytesMax {
		return fmt.Errorf("a message of %d bytes where %d is the most; it was not sent",
			len(body)+1, frameBytesMax)
	}
	frame := append([]byte(magic), version)
	frame = binary.BigEndian.AppendUint16(frame, uint16(1+len(body)))
	frame = append(frame, byte(m.kind()))
	_, err = w.Write(append(frame, body...))
	return err
}

// readFrame reads one message and not a byte behind it: what follows belongs to Raft. A refusal is
// returned as the error that it is.
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
		return fmt.Errorf("%w: a body of %d bytes where %d is the most", errMalformed, size,
			frameBytesMax)
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
	if kind(body[0]) != m.kind() {
		return fmt.Errorf("%w: frame of kind %d where %d belongs", errMalformed, body[0], m.kind())
	}
	err := json.Unmarshal(body[1:], m)
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	if again, err := json.Marshal(m); err != nil || !bytes.Equal(again, body[1:]) {
		return fmt.Errorf("%w: not in its canonical form", errMalformed)
	}
	return nil
}

// purpose is what a connection is for.
type purpose uint8

const (
	purposeRaft  purpose = 1
	purposeAsk   purpose = 2
	purposeCall  purpose = 3
	purposeRelay purpose = 4
)

// lasts reports whether the connection is used beyond the handshake.
func (p purpose) lasts() bool { return p == purposeRaft || p == purposeRelay }

type hello struct {
	Purpose purpose
	// zero with purposeAsk: a question may go to an address whose server is not known yet
	Server Server
	From   Answer
}

func (h *hello) kind() kind { return kindHello }

func (h *hello) check() error {
	_, err := ParseServer(h.Server.ID())
	switch {
	case h.Purpose < purposeRaft || h.Purpose > purposeRelay:
		return fmt.Errorf("purpose %d", h.Purpose)
	case h.Purpose == purposeAsk && h.Server != (Server{}):
		return errors.New("a question with an intended server")
	case h.Purpose != purposeAsk && err != nil:
		return err
	}
	return h.From.check()
}

func (a *Answer) kind() kind { return kindAnswer }

func (a *Answer) check() error {
	if _, err := ParseServer(a.ID()); err != nil {
		return err
	}
	for _, name := range a.Names {
		if err := CheckID(name); err != nil {
			return err
		}
	}
	return cmp.Or(checkPrintable(a.Unready), checkPrintable(a.Format))
}

func (e *RefusedError) kind() kind { return kindRefusal }

func (e *RefusedError) check() error {
	if CheckID(e.By) != nil || e.Peer != "" && CheckID(e.Peer) != nil {
		return fmt.Errorf("no ids: %q, %q", e.By, e.Peer)
	}
	return checkPrintable(e.Detail)
}

// payload is a message of bytes whose meaning only the two nodes know.
type payload struct {
	as   kind
	Body []byte
}

func (p *payload) kind() kind   { return p.as }
func (p *payload) check() error { return nil }

func checkPrintable(s string) error {
	if s != printable(s) {
		return fmt.Errorf("a text not fit to print, or over %d bytes", detailBytesMax)
	}
	return nil
}

// printable escapes a text for a log line, and cuts it to detailBytesMax.
func printable(s string) string {
	s = visible.Line(s)
	return strings.ToValidUTF8(s[:min(len(s), detailBytesMax)], "") // no part of a rune at the end
}

// A Code names why a connection was refused. The numbers are part of the wire and never change.
type RefusalCode uint8

// The reasons for a refusal.
const (
	Malformed           RefusalCode = 1 // what came is not a handshake
	OtherVersion        RefusalCode = 2 // the handshake is of another version
	TLSWanted           RefusalCode = 3 // one end speaks TLS and the other doesn't
	WrongCertificate    RefusalCode = 4 // the certificate doesn't name the node that showed it
	OtherCluster        RefusalCode = 5 // the cluster ids differ
	OtherNode           RefusalCode = 6 // the node reached is not the one that the caller intends
	OtherInitialMembers RefusalCode = 7 // no cluster id to compare, and the initial members differ
	// nothing that both know shows that they are of one cluster
	NothingInCommon RefusalCode = 8
	// the node reached has another data directory than the intended one
	OtherIncarnation RefusalCode = 9
	NotReady         RefusalCode = 10 // the called node runs no Raft yet
	// the node reached knows no node of the caller's name in its cluster
	NotKnown    RefusalCode = 11
	OtherFormat RefusalCode = 12 // the binaries read and write different entries
)

// RefusedError is the refusal of one end to connect with the other. Such a connection carried no
// message of Raft. Match it with errors.AsType[*RefusedError] and look at its Code.
type RefusedError struct {
	Code   RefusalCode
	By     string // the name of the node that refused
	Peer   string // the name of the node that it refused; "": not known
	Detail string // what the refusing node saw
}

func newRefusal(code RefusalCode, by, peer, format string, args ...any) *RefusedError {
	return &RefusedError{Code: code, By: by, Peer: peer,
		Detail: printable(fmt.Sprintf(format, args...))}
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s refused %s: %s; no message of Raft passed between them; %s",
		e.By, cmp.Or(e.Peer, "a caller"), e.Detail, e.Code.remedy())
}

// codes are the name of each reason, for logs and metrics, and what the operator can do. The remedy
// isn't sent, so that it fits the release that prints it.
var codes = map[RefusalCode]struct{ name, remedy string }{
	Malformed: {"malformed", "check that the address is the peer port of a zamok node"},
	OtherVersion: {"other version",
		"upgrade the older node: the two releases have no handshake in common"},
	TLSWanted: {"TLS wanted", "give all nodes of the cluster peer certificates, or none"},
	WrongCertificate: {"wrong certificate",
		"if another node or a port for clients is at this address, correct it: a node is called " +
			"at its peer port; else give each node a certificate with its id as a DNS name, " +
			"signed by the peers' CA"},
	OtherCluster: {"other cluster",
		"correct the address; a node changes clusters only with an empty data directory " +
			"and --join"},
	OtherNode: {"other node",
		"if another node took over the address, `zamok remove` the one that had it and start the " +
			"new one with --join; else correct the address"},
	OtherInitialMembers: {"other initial members",
		"correct the addresses: each cluster has nodes of its own"},
	NothingInCommon: {"nothing in common",
		"a node becomes part of a running cluster when it is started with --join"},
	OtherIncarnation: {"other incarnation",
		"if the node lost its data, start it with --join and it takes the place of the lost " +
			"directory; a directory that was moved away belongs back in its place"},
	NotReady: {"not ready", "nothing to do: the caller retries until the node has started"},
	NotKnown: {"not known",
		"run `zamok join` for the caller, or start the refusing node with --peer-allowed-names " +
			"and its name; if it is no node of yours, its certificate is in the wrong hands"},
	OtherFormat: {"other format",
		"run one binary on all nodes of a cluster: an entry that one of them does not know would " +
			"divide them; `zamok version` prints the format of a binary"},
}

// String names the reason.
func (c RefusalCode) String() string {
	return cmp.Or(codes[c].name, fmt.Sprintf("code %d", uint8(c)))
}

func (c RefusalCode) remedy() string {
	return cmp.Or(codes[c].remedy, "the releases differ: see the log of the node that refused")
}
