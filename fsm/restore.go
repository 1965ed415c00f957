package fsm

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"

	"zamok/clock"
	"zamok/session"
)

// Restore builds a machine from a snapshot. It refuses, and returns nothing, when the bytes are
// not a whole and undamaged snapshot in its one form; a *VersionError says that this binary is too
// old or too new for it. Whether the state makes sense is Check's question: all nodes restore the
// same bytes, so refusing a strange one would stop them all.
func Restore(r io.Reader) (*Machine, error) { return restore(r, Known()) }

// RestoreFor is Restore for a binary that knows other versions than this one.
func RestoreFor(r io.Reader, known Range) (*Machine, error) { return restore(r, known) }

func restore(r io.Reader, known Range) (*Machine, error) {
	s := &snapshotReader{r: bufio.NewReaderSize(r, 1<<16), m: newMachine(known)}
	if err := s.read(); err != nil {
		if version := (*VersionError)(nil); errors.As(err, &version) {
			return nil, err
		}
		return nil, fmt.Errorf("the snapshot can't be read and nothing was restored: record %d: %w", s.records, err)
	}
	if err := s.m.derive(); err != nil {
		return nil, fmt.Errorf("the snapshot makes no sense and nothing was restored: %w", err)
	}
	return s.m, nil
}

// snapshotReader reads records into a machine.
type snapshotReader struct {
	r       *bufio.Reader
	m       *Machine
	sum     uint32
	records uint64
	version error // what the header says is unknown: believed once the checksum was right
	buf     []byte
	in      decoded // lends room for items
	last    recordKind
	// The keys read last, which the next ones of their kind must come after.
	session session.ID
	ticket  uint64
	name    string
}

func (s *snapshotReader) read() error {
	magic, err := s.take(len(snapshotMagic) + 1)
	if err != nil {
		return err
	}
	if string(magic[:len(snapshotMagic)]) != snapshotMagic {
		return errors.New("these are not the bytes of a snapshot")
	}
	if v := magic[len(snapshotMagic)]; v != snapshotVersion {
		return fmt.Errorf("version %d is unknown", v)
	}
	for s.last != recEnd {
		if err := s.record(); err != nil {
			return err
		}
	}
	want := s.sum
	end, err := s.take(checksumBytes)
	if err != nil {
		return err
	}
	if got := binary.LittleEndian.Uint32(end); got != want {
		return fmt.Errorf("damaged: the checksum is %08x and should be %08x", got, want)
	}
	if s.version != nil {
		return s.version
	}
	if _, err := s.r.ReadByte(); err != io.EOF {
		return errors.New("there is something after the end")
	}
	return nil
}

// take reads n bytes, which are good until the next take. Memory grows with what was read.
func (s *snapshotReader) take(n int) ([]byte, error) {
	if cap(s.buf) < n {
		s.buf = make([]byte, n) // n ≤ recordBytesMax
	}
	b := s.buf[:n]
	if _, err := io.ReadFull(s.r, b); err != nil {
		return nil, fmt.Errorf("it is cut off: %w", err)
	}
	s.sum = crc32.Update(s.sum, castagnoli(), b)
	return b, nil
}

// length reads a record's length in its shortest form.
func (s *snapshotReader) length() (int, error) {
	n := 0
	for shift := 0; shift < 21; shift += 7 {
		b, err := s.take(1)
		if err != nil {
			return 0, err
		}
		n |= int(b[0]&0x7f) << shift
		if b[0] < 0x80 {
			if b[0] == 0 || n > recordBytesMax {
				break
			}
			return n, nil
		}
	}
	return 0, errors.New("the length of a record is out of bounds")
}

func (s *snapshotReader) record() error {
	n, err := s.length()
	if err != nil {
		return err
	}
	b, err := s.take(n)
	if err != nil {
		return err
	}
	kind := recordKind(b[0])
	// Kinds come in order, but that tickets stand between sessions.
	backToSession := kind == recSession && s.last == recTicket
	once := kind == recHeader || kind == recEnd
	if kind < s.last && !backToSession || once && kind == s.last || (s.last == 0) != (kind == recHeader) {
		return fmt.Errorf("a record of kind %d after one of kind %d", kind, s.last)
	}
	if kind != s.last {
		s.name = ""
	}
	s.last = kind
	if s.version != nil {
		return nil // its bytes are not ours to read
	}
	r := &reader{bytes: b[1:]}
	switch kind {
	case recHeader:
		s.header(r)
	case recSession:
		err = s.readSession(r)
	case recTicket:
		err = s.readTicket(r)
	case recDelay:
		s.readDelay(r)
	case recMember:
		s.readMember(r)
	case recReport:
		s.readReport(r)
	case recEnd:
		if count := r.number("records"); count != s.records {
			r.fail("records", "%d are announced and %d were there", count, s.records)
		}
	default:
		return fmt.Errorf("kind %d is unknown", kind)
	}
	s.records++
	return cmp.Or(err, r.end())
}

func (s *snapshotReader) header(r *reader) {
	m := s.m
	m.version = r.number32("version")
	m.term = r.number("term")
	m.index = r.number("index")
	m.time = readTime(r, "time")
	m.epoch = r.number("epoch")
	r.raw("cluster", m.cluster[:])
	m.restored = r.number("restored")
	m.holdOffUntil = readTime(r, "quiet")
	if r.err == nil && (m.version < m.known.Min || m.version > m.known.Max) {
		s.version = &VersionError{Need: m.version, Known: m.known}
	}
	s.past(r, "epoch", m.epoch)
	s.past(r, "restored", m.restored)
	if m.index > indexMax || m.time > timeMax {
		r.fail("index", "%d at %v is out of bounds", m.index, m.time)
	}
}

// past refuses an index that the machine has not come to.
func (s *snapshotReader) past(r *reader, field string, index uint64) {
	if index > s.m.index {
		r.fail(field, "%d is above the machine's index %d", index, s.m.index)
	}
}

func readTime(r *reader, field string) clock.Time {
	return clock.Time(r.numberUpTo(math.MaxInt64, field))
}

func readSpan(r *reader, field string) clock.Span {
	return clock.Span(r.numberUpTo(uint64(SpanMax), field))
}

func (s *snapshotReader) readSession(r *reader) error {
	one := session.Session{ID: session.ID(r.number("id"))}
	r.raw("secret", one.Secret[:])
	one.Identity = r.text("identity")
	one.Label = r.text("label")
	one.Metadata = r.text("metadata")
	one.TTL = readSpan(r, "ttl")
	one.LockDelay = readSpan(r, "lock delay")
	one.Grace = readSpan(r, "grace")
	one.Opened = readTime(r, "opened")
	one.Deadline = readTime(r, "deadline")
	one.Renewed = r.number("heard")
	one.Attachment = r.number("attachment")
	one.Attempt = r.number("attempt")
	one.AckedThrough = r.number("floor")
	one.Changed = r.number("changed")
	s.past(r, "id", uint64(one.ID))
	s.past(r, "heard", one.Renewed)
	s.past(r, "attachment", one.Attachment)
	s.past(r, "changed", one.Changed)
	if err := r.end(); err != nil {
		return err
	}
	if one.ID <= s.session || s.m.sessions.BySecret(one.Secret) != 0 {
		return fmt.Errorf("session %d is out of order or has another's secret", one.ID)
	}
	s.session, s.ticket = one.ID, 0
	s.m.sessions.Insert(one)
	return nil
}

func (s *snapshotReader) readTicket(r *reader) error {
	key := ticketKey{s.session, r.number("number")}
	t := ticket{state: State(r.byte("state")), reason: Reason(r.byte("why")), token: r.number("token")}
	if t.state != Ended {
		t.enqueued = r.number("born")
		t.waitUntil = readTime(r, "wait until")
		t.holdUntil = readTime(r, "hold until")
		t.maxHold = readSpan(r, "max hold")
		t.owner = r.text("owner")
		t.metadata = r.text("metadata")
		s.in.items = s.in.items[:0]
		t.items = s.in.readItems(r)
	}
	s.past(r, "born", t.enqueued)
	s.past(r, "token", t.token)
	if err := r.end(); err != nil {
		return err
	}
	if key.session == 0 {
		return errors.New("a ticket without a session")
	}
	if key.number <= s.ticket {
		return fmt.Errorf("ticket %d of session %d is out of order", key.number, key.session)
	}
	if field := t.inconsistent(); field != "" {
		return fmt.Errorf("ticket %d of session %d, in state %d: %s", key.number, key.session, t.state, field)
	}
	if t.state != Ended {
		t.take(t.items)
	}
	s.ticket = key.number
	s.m.tickets.Set(key, t)
	return nil
}

// inconsistent names a field that can't be what it is in the ticket's state, or "".
func (t *ticket) inconsistent() string {
	switch {
	case t.state < Waiting || t.state > Ended:
		return "state"
	case (t.state == Ended) != (t.reason != 0) || t.reason >= ReasonCount:
		return "why"
	case t.state == Ended:
		return ""
	case (t.state == Granted) != (t.token != 0):
		return "token"
	case t.state == Granted && t.waitUntil != 0:
		return "wait until"
	case (t.holdUntil != 0) != (t.state == Granted && t.maxHold > 0):
		return "hold until"
	}
	return invalidItems(t.items)
}

func (s *snapshotReader) readDelay(r *reader) {
	name, until := s.next(r, "name"), readTime(r, "until")
	if r.err == nil {
		if until == 0 || !isName(name) {
			r.fail("until", "the delay of %q is none", name)
			return
		}
		s.m.delays.Set(name, until)
	}
}

func (s *snapshotReader) readMember(r *reader) {
	record := MemberRecord{Member: *readMember(r), Announced: r.number("announced"), Replaced: readTime(r, "replaced")}
	s.past(r, "announced", record.Announced)
	if record.Replaced > s.m.time {
		r.fail("replaced", "%v is above the machine's time %v", record.Replaced, s.m.time)
	}
	if s.inOrder(r, record.ID) {
		s.m.members.Set(record.ID, record)
	}
}

func (s *snapshotReader) readReport(r *reader) {
	d := Digest{Node: s.next(r, "node"), Index: r.number("index"), Value: r.number("value")}
	if r.err == nil {
		s.m.reports.Set(d.Node, d)
	}
}

// next reads a key that must come after the one before.
func (s *snapshotReader) next(r *reader, field string) string {
	name := r.text(field)
	s.inOrder(r, name)
	return name
}

func (s *snapshotReader) inOrder(r *reader, name string) bool {
	if r.err == nil && name <= s.name {
		r.fail("key", "%q does not come after %q", name, s.name)
	}
	s.name = name
	return r.err == nil
}

// derive builds from the canonical records what follows from them.
func (m *Machine) derive() error {
	var live []grantOrder
	for key, t := range m.tickets.All() {
		m.sum += t.sum(key)
		if t.state != Ended {
			live = append(live, grantOrder{t.enqueued, key})
		}
	}
	// In the order of birth every list fills up as it was: nobody ever overtook.
	slices.SortFunc(live, func(a, b grantOrder) int { return cmp.Compare(a.enqueued, b.enqueued) })
	for i, b := range live {
		if i > 0 && b.enqueued == live[i-1].enqueued {
			return fmt.Errorf("tickets %v and %v have one birth", live[i-1].key, b.key)
		}
		m.restoreSlots(b.key, m.tickets.Ref(b.key))
	}
	for name, until := range m.delays.All() {
		m.lockFor(name, 0).delay = *until
		m.due.Set(dueKey{*until, dueDelay, 0, name}, ticketKey{})
		m.sum += delaySum(name, *until)
	}
	for _, member := range m.members.All() {
		m.sum += memberSum(member)
	}
	return nil
}

// restoreSlots puts a live ticket that was read from a snapshot where it stands.
func (m *Machine) restoreSlots(key ticketKey, t *ticket) {
	m.enqueue(key, t)
	m.sessions.Count(m.sessions.Find(key.session))
	for i := range t.slots {
		p := &t.slots[i]
		if t.state == Waiting {
			p.lock.waiters.push(p)
		} else {
			p.lock.holders.push(p)
			p.lock.count(t.items[i], 1)
		}
	}
	if t.state == Waiting {
		m.counts.Waiting++
	} else {
		m.counts.Granted++
	}
	if t.waitUntil != 0 {
		m.due.Set(dueKey{t.waitUntil, dueWait, t.enqueued, ""}, key)
	}
	if t.holdUntil != 0 {
		m.due.Set(dueKey{t.holdUntil, dueHold, t.enqueued, ""}, key)
	}
	if t.owner != "" {
		m.updateOwner(key, t.owner, func(o *owned) {
			if t.state == Waiting {
				o.waiting = key.number
			} else {
				o.held = append(o.held, key.number)
			}
		})
	}
}
