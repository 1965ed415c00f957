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
func Restore(r io.Reader) (*Machine, error) { return restore(r, SupportedVersions()) }

// RestoreWithVersions is Restore for a binary that knows other versions than this one.
func RestoreWithVersions(r io.Reader, supported VersionRange) (*Machine, error) {
	return restore(r, supported)
}

func restore(r io.Reader, supported VersionRange) (*Machine, error) {
	s := &snapshotReader{r: bufio.NewReaderSize(r, 1<<16), m: newMachine(supported)}
	if err := s.read(); err != nil {
		if version := (*VersionError)(nil); errors.As(err, &version) {
			return nil, err
		}
		return nil, fmt.Errorf("the snapshot can't be read and nothing was restored: record %d: %w", s.records, err)
	}
	if err := s.m.rebuildDerived(); err != nil {
		return nil, fmt.Errorf("the snapshot makes no sense and nothing was restored: %w", err)
	}
	return s.m, nil
}

// snapshotReader reads records into a machine.
type snapshotReader struct {
	r        *bufio.Reader
	m        *Machine
	sum      uint32
	records  uint64
	version  error // what the header says is unknown: believed once the checksum was right
	buf      []byte
	in       decoded // lends room for items
	lastKind recordKind
	// The keys read last, which the next ones of their kind must come after.
	session session.ID
	ticket  uint64
	name    string
}

func (s *snapshotReader) read() error {
	magic, err := s.readBytes(len(snapshotMagic) + 1)
	if err != nil {
		return err
	}
	if string(magic[:len(snapshotMagic)]) != snapshotMagic {
		return errors.New("these are not the bytes of a snapshot")
	}
	if v := magic[len(snapshotMagic)]; v != snapshotVersion {
		return fmt.Errorf("version %d is unknown", v)
	}
	for s.lastKind != recEnd {
		if err := s.record(); err != nil {
			return err
		}
	}
	want := s.sum
	end, err := s.readBytes(checksumBytes)
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

// readBytes reads n bytes, which are good until the next take. Memory grows with what was read.
func (s *snapshotReader) readBytes(n int) ([]byte, error) {
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
		b, err := s.readBytes(1)
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
	b, err := s.readBytes(n)
	if err != nil {
		return err
	}
	kind := recordKind(b[0])
	// Kinds come in order, but that tickets stand between sessions.
	backToSession := kind == recSession && s.lastKind == recTicket
	once := kind == recHeader || kind == recEnd
	if kind < s.lastKind && !backToSession || once && kind == s.lastKind || (s.lastKind == 0) != (kind == recHeader) {
		return fmt.Errorf("a record of kind %d after one of kind %d", kind, s.lastKind)
	}
	if kind != s.lastKind {
		s.name = ""
	}
	s.lastKind = kind
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
	m.restoredThrough = r.number("restored")
	m.holdOffUntil = readTime(r, "quiet")
	if r.err == nil && (m.version < m.supported.Min || m.version > m.supported.Max) {
		s.version = &VersionError{Need: m.version, Known: m.supported}
	}
	s.checkIndex(r, "epoch", m.epoch)
	s.checkIndex(r, "restored", m.restoredThrough)
	if m.index > indexMax || m.time > timeMax {
		r.fail("index", "%d at %v is out of bounds", m.index, m.time)
	}
}

// checkIndex refuses an index that the machine has not come to.
func (s *snapshotReader) checkIndex(r *reader, field string, index uint64) {
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
	rec := session.Session{ID: session.ID(r.number("id"))}
	r.raw("secret", rec.Secret[:])
	rec.Identity = r.text("identity")
	rec.Label = r.text("label")
	rec.Metadata = r.text("metadata")
	rec.TTL = readSpan(r, "ttl")
	rec.LockDelay = readSpan(r, "lock delay")
	rec.Grace = readSpan(r, "grace")
	rec.Opened = readTime(r, "opened")
	rec.Deadline = readTime(r, "deadline")
	rec.Renewed = r.number("heard")
	rec.Attachment = r.number("attachment")
	rec.Attempt = r.number("attempt")
	rec.AckedThrough = r.number("floor")
	rec.Changed = r.number("changed")
	s.checkIndex(r, "id", uint64(rec.ID))
	s.checkIndex(r, "heard", rec.Renewed)
	s.checkIndex(r, "attachment", rec.Attachment)
	s.checkIndex(r, "changed", rec.Changed)
	if err := r.end(); err != nil {
		return err
	}
	if rec.ID <= s.session || s.m.sessions.BySecret(rec.Secret) != 0 {
		return fmt.Errorf("session %d is out of order or has another's secret", rec.ID)
	}
	s.session, s.ticket = rec.ID, 0
	s.m.sessions.Insert(rec)
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
	s.checkIndex(r, "born", t.enqueued)
	s.checkIndex(r, "token", t.token)
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
		t.setItems(t.items)
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
	name, until := s.readKey(r, "name"), readTime(r, "until")
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
	s.checkIndex(r, "announced", record.Announced)
	if record.Replaced > s.m.time {
		r.fail("replaced", "%v is above the machine's time %v", record.Replaced, s.m.time)
	}
	if s.checkKeyOrder(r, record.ID) {
		s.m.members.Set(record.ID, record)
	}
}

func (s *snapshotReader) readReport(r *reader) {
	d := Digest{Node: s.readKey(r, "node"), Index: r.number("index"), Value: r.number("value")}
	if r.err == nil {
		s.m.reports.Set(d.Node, d)
	}
}

// readKey reads a key that must come after the one before.
func (s *snapshotReader) readKey(r *reader, field string) string {
	name := r.text(field)
	s.checkKeyOrder(r, name)
	return name
}

func (s *snapshotReader) checkKeyOrder(r *reader, name string) bool {
	if r.err == nil && name <= s.name {
		r.fail("key", "%q does not come after %q", name, s.name)
	}
	s.name = name
	return r.err == nil
}

// rebuildDerived builds from the canonical records what follows from them.
func (m *Machine) rebuildDerived() error {
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
	m.sessions.AddLive(m.sessions.Find(key.session))
	for i := range t.slots {
		p := &t.slots[i]
		if t.state == Waiting {
			p.lock.waiters.push(p)
		} else {
			p.lock.holders.push(p)
			p.lock.adjust(t.items[i], 1)
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
		m.updateOwner(key, t.owner, func(o *ownerTickets) {
			if t.state == Waiting {
				o.waiting = key.number
			} else {
				o.held = append(o.held, key.number)
			}
		})
	}
}
