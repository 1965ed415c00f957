package fsm

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"io"

	"zamok/clock"
	"zamok/session"
	"zamok/session/tree"
)

// # The form of a snapshot
//
// This table is the reference. It is made of the parts in encoding.go; what is unnamed is a number.
//
//	magic     "zamok" and the version as a byte, 1
//	records   each: its length in bytes, its kind as a byte, its fields
//	checksum  4 bytes over everything before
//
//	kind       fields
//	1 header   version · term · index · time · epoch · cluster raw 16 · restored · hold-off
//	2 session  id · secret raw 32 · identity text · label text · metadata text · ttl · lock delay ·
//	           grace · opened · deadline · heard · attachment · attempt · floor · changed
//	3 ticket   number · state byte · why byte · token; unless gone: born · wait until · hold until ·
//	           max hold · owner text · metadata text · items, as in an entry
//	4 delay    name text · until
//	5 member   as in an entry, then: announced · replaced
//	6 report   node text · index · value
//	7 end      the number of records before it
//
// The header comes first and the end last; between them sessions in the order of their ids, each
// followed by its tickets in the order of their numbers; then delays, members and reports, each in
// the order of its key. So equal states have equal bytes.

const (
	snapshotMagic   = "zamok"
	snapshotVersion = 1
	// recordBytesMax bounds a record: the largest, a ticket of 64 items, has under 40 KiB.
	recordBytesMax = 1 << 16
)

type recordKind byte

const (
	recHeader recordKind = 1 + iota
	recSession
	recTicket
	recDelay
	recMember
	recReport
	recEnd
)

// Frozen is the canonical state of a machine at one index. It may be written on another goroutine
// while the machine continues.
type Frozen struct {
	header   header
	sessions session.Frozen
	tickets  *tree.Tree[ticketKey, ticket]
	delays   *tree.Tree[string, clock.Time]
	members  *tree.Tree[string, MemberRecord]
	reports  *tree.Tree[string, Digest]
}

// header is the numbers of a state.
type header struct {
	version         uint32
	term            uint64
	index           uint64
	time            clock.Time
	epoch           uint64
	cluster         ClusterID
	restoredThrough uint64
	holdOffUntil    clock.Time
}

// Freeze returns the state as it is now, in constant time. The machine then copies, bit by bit,
// what it changes, until all that it changes is its own again.
func (m *Machine) Freeze() *Frozen {
	return &Frozen{
		header: header{
			m.version, m.term, m.index, m.time, m.epoch, m.cluster, m.restoredThrough, m.holdOffUntil,
		},
		sessions: m.sessions.Freeze(),
		tickets:  m.tickets.Clone(),
		delays:   m.delays.Clone(),
		members:  m.members.Clone(),
		reports:  m.reports.Clone(),
	}
}

// WriteTo writes the snapshot.
func (f *Frozen) WriteTo(w io.Writer) (int64, error) {
	s := &snapshotWriter{w: bufio.NewWriterSize(w, 1<<16)}
	s.write(append([]byte(snapshotMagic), snapshotVersion))
	s.header(&f.header)
	for rec := range f.sessions.All() {
		s.session(&rec)
		for key, t := range f.tickets.From(ticketKey{rec.ID, 0}) {
			if key.session != rec.ID {
				break
			}
			s.ticket(key, t)
		}
	}
	for name, until := range f.delays.All() {
		s.record(recDelay, appendNumber(appendText(s.fields(), name), uint64(*until)))
	}
	for _, record := range f.members.All() {
		b := appendNumber(appendMember(s.fields(), &record.Member), record.Announced)
		s.record(recMember, appendNumber(b, uint64(record.Replaced)))
	}
	for node, r := range f.reports.All() {
		s.record(recReport, appendNumber(appendNumber(appendText(s.fields(), node), r.Index), r.Value))
	}
	s.record(recEnd, appendNumber(s.fields(), s.records))
	s.write(binary.LittleEndian.AppendUint32(nil, s.sum))
	if s.err == nil {
		s.err = s.w.Flush()
	}
	return s.n, s.err
}

// snapshotWriter writes records; after the first failure it does nothing.
type snapshotWriter struct {
	w       *bufio.Writer
	sum     uint32
	n       int64
	records uint64
	scratch []byte
	prefix  []byte
	err     error
}

func (s *snapshotWriter) write(b []byte) {
	if s.err != nil {
		return
	}
	var n int
	n, s.err = s.w.Write(b)
	s.n += int64(n)
	s.sum = crc32.Update(s.sum, castagnoli(), b)
}

// fields lends room for a record's fields.
func (s *snapshotWriter) fields() []byte { return s.scratch[:0] }

func (s *snapshotWriter) record(kind recordKind, fields []byte) {
	s.scratch = fields
	s.prefix = append(appendNumber(s.prefix[:0], uint64(1+len(fields))), byte(kind))
	s.write(s.prefix)
	s.write(fields)
	s.records++
}

func (s *snapshotWriter) header(h *header) {
	b := appendNumber(s.fields(), h.version)
	b = appendNumber(b, h.term)
	b = appendNumber(b, h.index)
	b = appendNumber(b, uint64(h.time))
	b = appendNumber(b, h.epoch)
	b = append(b, h.cluster[:]...)
	b = appendNumber(b, h.restoredThrough)
	s.record(recHeader, appendNumber(b, uint64(h.holdOffUntil)))
}

func (s *snapshotWriter) session(rec *session.Session) {
	b := appendNumber(s.fields(), uint64(rec.ID))
	b = append(b, rec.Secret[:]...)
	b = appendText(b, rec.Identity)
	b = appendText(b, rec.Label)
	b = appendText(b, rec.Metadata)
	b = appendNumber(b, uint64(rec.TTL))
	b = appendNumber(b, uint64(rec.LockDelay))
	b = appendNumber(b, uint64(rec.Grace))
	b = appendNumber(b, uint64(rec.Opened))
	b = appendNumber(b, uint64(rec.Deadline))
	b = appendNumber(b, rec.Renewed)
	b = appendNumber(b, rec.Attachment)
	b = appendNumber(b, rec.Attempt)
	b = appendNumber(b, rec.AckedThrough)
	s.record(recSession, appendNumber(b, rec.Changed))
}

func (s *snapshotWriter) ticket(key ticketKey, t *ticket) {
	b := appendNumber(s.fields(), key.number)
	b = append(b, byte(t.state), byte(t.reason))
	b = appendNumber(b, t.token)
	if t.state != Ended {
		b = appendNumber(b, t.enqueued)
		b = appendNumber(b, uint64(t.waitUntil))
		b = appendNumber(b, uint64(t.holdUntil))
		b = appendNumber(b, uint64(t.maxHold))
		b = appendText(b, t.owner)
		b = appendText(b, t.metadata)
		b = appendItems(b, t.items)
	}
	s.record(recTicket, b)
}
