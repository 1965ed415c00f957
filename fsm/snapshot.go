package fsm

import (
	"bufio"
	"encoding/binary"
	"io"

	"zamok/clock"
	"zamok/fsm/internal/tree"
	"zamok/fsm/record"
	"zamok/session"
)

// # The form of a snapshot
//
// This table is the reference. Its parts are those of package record; one without a type is a
// number.
//
//	magic     "zamok" and the version as a byte, 1
//	records   each: its kind as a byte, the length of its fields in 2 bytes, the low one first,
//	          its fields
//	checksum  4 bytes over everything before
//
//	kind       fields
//	1 header   version · term · index · time · epoch · cluster raw 16 · restored · hold-off ·
//	           longest ttl · highest ttl · quotas, as in an entry · ends
//	2 session  id · secret raw 32 · identity text · label text · meta text · ttl signed ·
//	           lock delay signed · release on disconnect signed · opened · deadline · renewed ·
//	           attachment · attempt · acked through · refused through · changed
//	3 ticket   number · state · reason, both up to 255 · token; unless ended: enqueued · wait
//	           until · hold until · max hold · owner text · meta text · items, as in an entry
//	4 delay    name text · until
//	5 member   as in an entry, then: announced · replaced
//	6 ended    number · id · secret raw 32 · identity text · reason · ticket, both up to 255
//	7 end      none
//
// The header comes first and the end last; between them sessions in the order of their ids, each
// followed by its tickets in the order of their numbers; then delays, members and ended sessions,
// each in the order of its key. So equal states have equal bytes.

const (
	snapshotMagic   = "zamok"
	snapshotVersion = 1
	// digestVersion numbers the ways in which digests were computed.
	digestVersion = 1
	// recordHeadBytes is a record's kind and the length of its fields: the most, of a ticket of 64
	// items, have under 40 KiB.
	recordHeadBytes = 1 + 2
)

type recordKind byte

const (
	recHeader recordKind = 1 + iota
	recSession
	recTicket
	recDelay
	recMember
	recEnded
	recEnd
)

// canonical is the part of the state that a snapshot holds and the digest covers.
type canonical struct {
	header
	sessions *tree.Tree[session.ID, session.Session]
	tickets  *tree.Tree[TicketRef, ticket]
	delays   *tree.Tree[string, clock.Time]
	members  *tree.Tree[string, MemberRecord]
	ended    *tree.Tree[uint64, EndedSession] // by their number, in the order of their ends
}

// Frozen is the canonical state at one index. It may be written on another goroutine while the
// state machine continues.
type Frozen struct{ canonical }

// header is the numbers of a state.
type header struct {
	version uint32
	term    uint64
	index   uint64
	time    clock.Time
	epoch   uint64
	cluster ClusterID
	// sessions with ids up to this one belong to a history before this one
	restoredThrough uint64
	holdOffUntil    clock.Time // nothing is granted before
	longestTTL      clock.Span // that a session may be opened with
	// the highest that longestTTL ever was, in the histories before a restore, too
	highestTTL clock.Span
	quotas     Quotas
	ends       uint64 // how many sessions ended and were remembered
}

func (h *header) code(c *coder) {
	c.Number32("version", &h.version)
	record.Number(&c.Coder, "term", &h.term)
	record.Number(&c.Coder, "index", &h.index)
	c.Time("time", &h.time)
	record.Number(&c.Coder, "epoch", &h.epoch)
	c.Raw("cluster", h.cluster[:])
	record.Number(&c.Coder, "restored through", &h.restoredThrough)
	c.Time("hold-off until", &h.holdOffUntil)
	c.Span("longest ttl", &h.longestTTL)
	c.Span("highest ttl", &h.highestTTL)
	h.quotas.code(c)
	record.Number(&c.Coder, "ends", &h.ends)
}

// code visits a ticket with its number. Of an ended one only state, reason and token are kept.
func (t *ticket) code(c *coder, number *uint64) {
	record.Number(&c.Coder, "number", number)
	record.Byte(&c.Coder, "state", &t.state)
	record.Byte(&c.Coder, "reason", &t.reason)
	record.Number(&c.Coder, "token", &t.token)
	if t.state == Ended {
		return
	}
	record.Number(&c.Coder, "enqueued", &t.enqueued)
	c.Time("wait until", &t.waitUntil)
	c.Time("hold until", &t.holdUntil)
	c.Span("max hold", &t.maxHold)
	c.Text("owner", &t.owner)
	c.Text("meta", &t.meta)
	c.codeItems(&t.items)
}

// delay is a lock delay as it is stored: by its lock's name.
type delay struct {
	name  string
	until clock.Time
}

func (d *delay) code(c *coder) {
	c.Text("name", &d.name)
	c.Time("until", &d.until)
}

func (r *MemberRecord) code(c *coder) {
	r.Member.code(c)
	record.Number(&c.Coder, "announced", &r.Announced)
	c.Time("replaced", &r.Replaced)
}

// Freeze returns the current state, in constant time. The state machine then copies each node
// before it first changes it.
func (m *Machine) Freeze() *Frozen {
	return &Frozen{canonical{
		header:   m.header,
		sessions: m.sessions.Clone(),
		tickets:  m.tickets.Clone(),
		delays:   m.delays.Clone(),
		members:  m.members.Clone(),
		ended:    m.ended.Clone(),
	}}
}

// WriteTo writes the snapshot.
func (f *Frozen) WriteTo(w io.Writer) (int64, error) {
	s := &snapshotWriter{w: bufio.NewWriterSize(w, 1<<16)}
	f.write(s)
	s.write(binary.LittleEndian.AppendUint32(nil, s.sum))
	return s.n, s.w.Flush()
}

// Digest is the checksum of a snapshot of this state, and takes as long as writing one. Equal
// states have equal digests.
func (s *canonical) Digest() uint64 {
	w := &snapshotWriter{w: bufio.NewWriter(io.Discard)}
	s.write(w)
	return uint64(w.sum)
}

// write writes the snapshot without its checksum.
func (s *canonical) write(w *snapshotWriter) {
	w.write(append([]byte(snapshotMagic), snapshotVersion))
	w.record(recHeader, s.header.code)
	for id, rec := range s.sessions.All() {
		w.record(recSession, func(c *coder) { rec.Code(&c.Coder) })
		for key, t := range ticketsOf(s.tickets, TicketRef{Session: id}) {
			w.record(recTicket, func(c *coder) { t.code(c, &key.Ticket) })
		}
	}
	for name, until := range s.delays.All() {
		w.record(recDelay, (&delay{name, *until}).code)
	}
	for _, member := range s.members.All() {
		w.record(recMember, member.code)
	}
	for number, e := range s.ended.All() {
		w.record(recEnded, func(c *coder) { e.code(c, &number) })
	}
	w.record(recEnd, func(*coder) {})
}

// snapshotWriter writes records. After its first failure w writes nothing more, and Flush returns
// it.
type snapshotWriter struct {
	w   *bufio.Writer
	sum uint32
	n   int64
	c   coder // of the current record
}

func (s *snapshotWriter) write(b []byte) {
	n, _ := s.w.Write(b)
	s.n += int64(n)
	s.sum = record.UpdateChecksum(s.sum, b)
}

func (s *snapshotWriter) record(kind recordKind, code func(*coder)) {
	s.c.Coder = record.NewWriter(append(s.c.Bytes()[:0], byte(kind), 0, 0))
	code(&s.c)
	b := s.c.Bytes()
	binary.LittleEndian.PutUint16(b[1:], uint16(len(b)-recordHeadBytes))
	s.write(b)
}
