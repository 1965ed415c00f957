package session

import (
	"cmp"
	"fmt"
	"iter"

	"zamok/clock"
	"zamok/session/record"
	"zamok/session/tree"
)

// Table holds the living sessions. The zero Table is not ready: use NewTable.
type Table struct {
	byID *tree.Tree[ID, Session]
	// bySecret and schedule follow from byID.
	bySecret map[Hash]ID // only ever looked up, never ranged over
	schedule *tree.Tree[scheduleKey, struct{}]
	sum      record.Sum
}

// scheduleKey is a session's position in the schedule.
type scheduleKey struct {
	at clock.Time
	id ID
}

func (f scheduleKey) compare(g scheduleKey) int {
	return cmp.Or(cmp.Compare(f.at, g.at), cmp.Compare(f.id, g.id))
}

// NewTable returns a table without sessions.
func NewTable() *Table {
	return &Table{
		byID:     tree.New[ID, Session](cmp.Compare[ID]),
		bySecret: make(map[Hash]ID),
		schedule: tree.New[scheduleKey, struct{}](scheduleKey.compare),
	}
}

// Open adds s, opened at now in step index. No living session may have the same secret (Find with BySecret).
func (t *Table) Open(s Session, now clock.Time, index uint64) {
	s.Opened, s.Renewed, s.Deadline = now, index, now.Add(s.TTL)
	t.Insert(s)
}

// Insert adds a session from a snapshot.
func (t *Table) Insert(s Session) {
	s.scheduled, s.fixedFieldsSum, s.Live = s.Deadline, s.sumFixedFields(), 0
	t.sum += s.sum()
	t.bySecret[s.Secret] = s.ID
	t.schedule.Set(scheduleKey{s.scheduled, s.ID}, struct{}{})
	t.byID.Set(s.ID, s)
}

// Find returns the table's own record, or nil. It is valid until a session is opened or closed or
// the table is frozen, and changed through the table's methods only.
func (t *Table) Find(id ID) *Session { return t.byID.Ref(id) }

// Get returns a copy of the record.
func (t *Table) Get(id ID) (Session, bool) { return t.byID.Get(id) }

// BySecret returns the living session that the secret opened, or 0.
func (t *Table) BySecret(secret Hash) ID { return t.bySecret[secret] }

// Renew renews the lease at now, in step index.
func (t *Table) Renew(s *Session, now clock.Time, index uint64) {
	t.sum -= s.sum()
	s.Deadline, s.Renewed = now.Add(s.TTL), index
	t.sum += s.sum()
}

// Attach makes index the session's attachment, by its client's attempt of that number; the highest is kept.
func (t *Table) Attach(s *Session, index, attempt uint64) {
	t.sum -= s.sum()
	s.Attachment, s.Attempt = index, max(s.Attempt, attempt)
	t.sum += s.sum()
}

// Acknowledge raises the session's acknowledged-through; it never falls.
func (t *Table) Acknowledge(s *Session, through uint64) {
	t.sum -= s.sum()
	s.AckedThrough = max(s.AckedThrough, through)
	t.sum += s.sum()
}

// RecordChange notes that a ticket of the session changed in step index, and by how much the number of live tickets did.
func (t *Table) RecordChange(s *Session, index uint64, live int) {
	t.sum -= s.sum()
	s.Changed = index
	s.Live += live
	t.sum += s.sum()
}

// Close removes the session.
func (t *Table) Close(id ID) {
	if s, ok := t.byID.Delete(id); ok {
		t.sum -= s.sum()
		delete(t.bySecret, s.Secret)
		t.schedule.Delete(scheduleKey{s.scheduled, id})
	}
}

// Earliest returns the session with the first deadline, by (deadline, id). It may reschedule sessions, and so changes the
// table.
func (t *Table) Earliest() (deadline clock.Time, id ID, ok bool) {
	for {
		earliest, _, some := t.schedule.Min()
		if !some {
			return 0, 0, false
		}
		s := t.byID.Peek(earliest.id)
		if s.Deadline == earliest.at {
			return earliest.at, earliest.id, true
		}
		// It was renewed since it was scheduled: reschedule it and try again.
		t.schedule.Delete(earliest)
		t.schedule.Set(scheduleKey{s.Deadline, earliest.id}, struct{}{})
		t.byID.Ref(earliest.id).scheduled = s.Deadline
	}
}

// Len is the number of living sessions.
func (t *Table) Len() int { return t.byID.Len() }

// Sum is the table's part of the digest.
func (t *Table) Sum() record.Sum { return t.sum }

// From yields sessions in the order of their ids, beginning with the first id ≥ id. They are for reading, and the table
// must not be changed meanwhile.
func (t *Table) From(id ID) iter.Seq2[ID, *Session] { return t.byID.From(id) }

// Freeze returns the current sessions, in constant time. The result may be read on another goroutine while the table
// changes.
func (t *Table) Freeze() *tree.Tree[ID, Session] { return t.byID.Clone() }

// Check tests the invariants of the package comment and names the first that is broken.
func (t *Table) Check() error {
	if err := t.byID.Check(); err != nil {
		return fmt.Errorf("sessions by id: %w", err)
	}
	if err := t.schedule.Check(); err != nil {
		return fmt.Errorf("schedule: %w", err)
	}
	var sum record.Sum
	for id, s := range t.byID.All() {
		_, filed := t.schedule.Get(scheduleKey{s.scheduled, id})
		switch {
		case id != s.ID || id == 0:
			return fmt.Errorf("S1: session %d is kept under id %d", s.ID, id)
		case t.bySecret[s.Secret] != id:
			return fmt.Errorf("S2: session %d is not found by its secret", id)
		case !filed || s.scheduled > s.Deadline:
			return fmt.Errorf("S3: session %d is filed at %v, its deadline is %v", id, s.scheduled, s.Deadline)
		case s.Deadline < s.Opened.Add(s.TTL):
			return fmt.Errorf("S4: session %d, opened at %v, ends at %v, before its ttl %v", id, s.Opened, s.Deadline, s.TTL)
		case s.fixedFieldsSum != s.sumFixedFields():
			return fmt.Errorf("S5: a fixed field of session %d changed", id)
		}
		sum += s.sum()
	}
	switch {
	case len(t.bySecret) != t.byID.Len():
		return fmt.Errorf("S2: %d secrets for %d sessions", len(t.bySecret), t.byID.Len())
	case t.schedule.Len() != t.byID.Len():
		return fmt.Errorf("S3: %d filings for %d sessions", t.schedule.Len(), t.byID.Len())
	case sum != t.sum:
		return fmt.Errorf("S5: the sum kept is %x, the sum of the records %x", t.sum, sum)
	}
	return nil
}
