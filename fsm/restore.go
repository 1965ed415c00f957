package fsm

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"zamok/fsm/record"
	"zamok/session"
)

// Restore builds a state machine from a snapshot. It refuses bytes that are not a complete and
// undamaged snapshot in its one form. A *VersionError, or a *FormatError, means that the snapshot
// is undamaged, and that this binary is too old or too new for it. Whether the state is consistent
// is checked by Check: all nodes restore the same bytes, so refusing an inconsistent state would
// stop them all.
func Restore(r io.Reader) (*Machine, error) { return RestoreWithVersions(r, SupportedVersions()) }

// RestoreWithVersions is Restore for a binary that knows other versions than this one.
func RestoreWithVersions(r io.Reader, supported VersionRange) (*Machine, error) {
	s := &snapshotReader{r: bufio.NewReaderSize(r, 1<<16), m: NewWithVersions(supported)}
	err := s.read()
	switch version := (*VersionError)(nil); {
	case err == nil:
		return s.m, nil
	case !s.undamaged():
		return nil, fmt.Errorf("the snapshot is damaged or incomplete and nothing was restored: "+
			"record %d: %v", s.records, err)
	case errors.As(err, &version):
		return nil, version
	}
	return nil, &FormatError{"the snapshot", fmt.Errorf("record %d: %w", s.records, err)}
}

// undamaged reads what is left, and reports whether all that was read ends with its checksum.
func (s *snapshotReader) undamaged() bool {
	b := make([]byte, 1<<16)
	for {
		n, err := s.r.Read(b)
		if s.sum = record.UpdateChecksum(s.sum, b[:n]); err != nil {
			return err == io.EOF && s.sum == record.WholeChecksum
		}
	}
}

// recordReaders read the fields of a record, by its kind.
var recordReaders = [recEnd]func(*snapshotReader, *coder) error{
	recHeader: (*snapshotReader).readHeader, recSession: (*snapshotReader).readSession,
	recTicket: (*snapshotReader).readTicket,
	recDelay:  (*snapshotReader).readDelay, recMember: (*snapshotReader).readMember,
	recEnded: (*snapshotReader).readEnded,
}

// snapshotReader reads records into a state machine.
type snapshotReader struct {
	r        *bufio.Reader
	m        *Machine
	sum      uint32
	records  uint64
	buf      []byte
	c        coder // of the current record
	lastKind recordKind
	live     []grantOrder // the live tickets that were read
	// The keys read last, which the next ones of their kind must come after.
	last  TicketRef
	name  string
	ended uint64
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
	end, err := s.readBytes(record.ChecksumBytes)
	if err != nil {
		return err
	}
	if err := record.CompareChecksum(end, want); err != nil {
		return err
	}
	if _, err := s.readBytes(1); !errors.Is(err, io.EOF) {
		return errors.New("there is something after the end")
	}
	return s.enqueueTickets()
}

// readBytes reads n bytes, which are good until the next take. Memory grows with what was read.
func (s *snapshotReader) readBytes(n int) ([]byte, error) {
	if cap(s.buf) < n {
		s.buf = make([]byte, n) // n is below 64 KiB
	}
	b := s.buf[:n]
	got, err := io.ReadFull(s.r, b)
	s.sum = record.UpdateChecksum(s.sum, b[:got])
	if err != nil {
		return nil, fmt.Errorf("it is cut off: %w", err)
	}
	return b, nil
}

func (s *snapshotReader) record() error {
	head, err := s.readBytes(recordHeadBytes)
	if err != nil {
		return err
	}
	kind, n := recordKind(head[0]), binary.LittleEndian.Uint16(head[1:])
	// Kinds are in order, but for tickets between sessions.
	backToSession := kind == recSession && s.lastKind == recTicket
	once := kind == recHeader || kind == recEnd
	if kind < s.lastKind && !backToSession || once && kind == s.lastKind ||
		(s.lastKind == 0) != (kind == recHeader) {
		return fmt.Errorf("a record of kind %d after one of kind %d", kind, s.lastKind)
	}
	if kind != s.lastKind {
		s.name = ""
	}
	s.lastKind = kind
	b, err := s.readBytes(int(n))
	if err != nil {
		return err
	}
	if kind > recEnd {
		return fmt.Errorf("kind %d is unknown", kind)
	}
	s.c.Coder, s.c.items = record.NewReader(b), s.c.items[:0]
	if kind != recEnd {
		err = recordReaders[kind](s, &s.c)
	}
	s.records++
	// nonsense may only follow from bytes that can't be read
	return cmp.Or(s.c.End(), err)
}

func (s *snapshotReader) readHeader(c *coder) error {
	m := s.m
	m.header.code(c)
	if m.version < m.supported.Min || m.version > m.supported.Max {
		return &VersionError{Need: m.version, Known: m.supported}
	}
	if m.index > indexMax || m.time > timeMax {
		return fmt.Errorf("index: %d at %v is out of bounds", m.index, m.time)
	}
	if q := m.quotas; q.invalid() != "" || q.Sessions == 0 || q.Tickets == 0 || q.Bytes == 0 ||
		q.Share == 0 {
		return fmt.Errorf("quotas: %+v are out of bounds", q)
	}
	if m.longestTTL < LongestTTLMin || m.longestTTL > m.highestTTL || m.highestTTL > LongestTTLMax {
		return fmt.Errorf("longest ttl: %v, at most %v so far, is out of bounds", m.longestTTL,
			m.highestTTL)
	}
	return cmp.Or(s.notAfterIndex("epoch", m.epoch),
		s.notAfterIndex("restored through", m.restoredThrough))
}

// notAfterIndex refuses an index that the state machine has not reached.
func (s *snapshotReader) notAfterIndex(field string, index uint64) error {
	if index > s.m.index {
		return fmt.Errorf("%s: %d is above the machine's index %d", field, index, s.m.index)
	}
	return nil
}

func (s *snapshotReader) readSession(c *coder) error {
	var rec session.Session
	rec.Code(&c.Coder)
	if rec.ID <= s.last.Session || s.m.bySecret[rec.Secret] != 0 {
		return fmt.Errorf("session %d is out of order or has another's secret", rec.ID)
	}
	if field := invalidSettings(&rec.Settings); field != "" {
		return fmt.Errorf("session %d: %s is out of bounds", rec.ID, field)
	}
	s.last = TicketRef{Session: rec.ID}
	s.m.addSession(rec)
	return cmp.Or(s.notAfterIndex("id", uint64(rec.ID)), s.notAfterIndex("renewed", rec.Renewed),
		s.notAfterIndex("attachment", rec.Attachment), s.notAfterIndex("changed", rec.Changed))
}

func (s *snapshotReader) readTicket(c *coder) error {
	key := s.last
	var t ticket
	t.code(c, &key.Ticket)
	if key.Session == 0 {
		return errors.New("a ticket without a session")
	}
	if key.Ticket <= s.last.Ticket {
		return fmt.Errorf("ticket %d of session %d is out of order", key.Ticket, key.Session)
	}
	if field := t.inconsistent(); field != "" {
		return fmt.Errorf("ticket %d of session %d, in state %d: %s", key.Ticket, key.Session,
			t.state, field)
	}
	if t.state != Ended {
		t.setItems(t.items)
		s.live = append(s.live, grantOrder{t.enqueued, key})
	}
	s.last = key
	s.m.tickets.Set(key, t)
	s.m.charge(s.m.sessions.Ref(key.Session).Identity, t.amounts(), 1)
	return cmp.Or(s.notAfterIndex("enqueued", t.enqueued), s.notAfterIndex("token", t.token))
}

// inconsistent names a field whose value is impossible in the ticket's state, or "".
func (t *ticket) inconsistent() string {
	ended, granted := t.state == Ended, t.state == Granted
	broken := firstBroken(
		rule{"state", t.state >= Waiting && t.state <= Ended},
		rule{"reason", ended == (t.reason != 0) && t.reason < ReasonCount},
		rule{"token", ended || granted == (t.token != 0)},
		rule{"wait until", !granted || t.waitUntil == 0},
		rule{"hold until", ended || (t.holdUntil != 0) == (granted && t.maxHold > 0)},
	)
	if broken != "" || ended {
		return broken
	}
	return invalidItems(t.items)
}

func (s *snapshotReader) readDelay(c *coder) error {
	var d delay
	d.code(c)
	if d.until == 0 || !isName(d.name) {
		return fmt.Errorf("until: the delay of %q is none", d.name)
	}
	lk := &lock{name: d.name}
	s.m.locks.Set(d.name, lk)
	s.m.setDelay(lk, d.until)
	return s.keyOrder(d.name)
}

func (s *snapshotReader) readMember(c *coder) error {
	var member MemberRecord
	member.code(c)
	if member.Replaced > s.m.time {
		return fmt.Errorf("replaced: %v is above the machine's time %v", member.Replaced, s.m.time)
	}
	s.m.members.Set(member.ID, member)
	return cmp.Or(s.keyOrder(member.ID), s.notAfterIndex("announced", member.Announced))
}

func (s *snapshotReader) readEnded(c *coder) error {
	var number uint64
	var e EndedSession
	e.code(c, &number)
	m := s.m
	if number <= s.ended || number > m.ends {
		return fmt.Errorf("ended session %d is out of order, or above the %d that there were",
			number, m.ends)
	}
	if m.bySecret[e.Secret] != 0 || m.endedBySecret[e.Secret] != 0 || m.sessions.Peek(e.ID) != nil {
		return fmt.Errorf("ended session %d has another's id or secret", number)
	}
	if !isText(e.Identity, 0, IdentityBytesMax) || e.Reason == 0 ||
		max(e.Reason, e.Ticket) >= ReasonCount {
		return fmt.Errorf("ended session %d: its identity or reason is out of bounds", number)
	}
	s.ended = number
	m.addEnded(number, e)
	return s.notAfterIndex("id", uint64(e.ID))
}

// keyOrder refuses a key that is not behind the one before.
func (s *snapshotReader) keyOrder(name string) error {
	if name <= s.name {
		return fmt.Errorf("key: %q does not come after %q", name, s.name)
	}
	s.name = name
	return nil
}

// enqueueTickets puts the live tickets into their lists. In the order of their indexes every list
// fills up as it was: no ticket ever overtook another.
func (s *snapshotReader) enqueueTickets() error {
	slices.SortFunc(s.live, func(a, b grantOrder) int {
		return cmp.Compare(a.enqueued, b.enqueued)
	})
	for i, b := range s.live {
		if i > 0 && b.enqueued == s.live[i-1].enqueued {
			return fmt.Errorf("tickets %v and %v were enqueued at one index",
				s.live[i-1].key, b.key)
		}
		t := s.m.tickets.Ref(b.key)
		s.m.fillSlots(b.key, t)
		s.m.useLocks(t)
		s.m.sessions.Ref(b.key.Session).Live++
		s.m.enter(b.key, t)
	}
	return nil
}
