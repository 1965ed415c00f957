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
	byID     *tree.Tree[ID, Session]
	bySecret map[Hash]ID // follows from byID; only ever looked up, never ranged over
	sum      record.Sum
}

// NewTable returns a table without sessions.
func NewTable() *Table {
	return &Table{byID: tree.New[ID, Session](cmp.Compare[ID]), bySecret: make(map[Hash]ID)}
}

// Insert adds a session. No living session may have the same secret (BySecret).
func (t *Table) Insert(s Session) {
	s.fixedFieldsSum = s.sumFixedFields()
	t.sum += s.sum()
	t.bySecret[s.Secret] = s.ID
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
	}
}

// Len is the number of living sessions.
func (t *Table) Len() int { return t.byID.Len() }

// Sum is the table's part of the digest.
func (t *Table) Sum() record.Sum { return t.sum }

// From yields sessions in the order of their ids, beginning with the first id ≥ id. They are for reading, and the table
// must not be changed meanwhile.
func (t *Table) From(id ID) iter.Seq2[ID, *Session] { return t.byID.From(id) }

// Freeze returns a table of the current sessions, in constant time. It may be read by id on another goroutine while t
// changes.
func (t *Table) Freeze() *Table { return &Table{byID: t.byID.Clone()} }

// Check tests the invariants of the package comment and names the first that is broken.
func (t *Table) Check() error {
	if err := t.byID.Check(); err != nil {
		return fmt.Errorf("sessions by id: %w", err)
	}
	var sum record.Sum
	for id, s := range t.byID.All() {
		switch {
		case id != s.ID || id == 0:
			return fmt.Errorf("S1: session %d is kept under id %d", s.ID, id)
		case t.bySecret[s.Secret] != id:
			return fmt.Errorf("S2: session %d is not found by its secret", id)
		case s.Deadline < s.Opened.Add(s.TTL):
			return fmt.Errorf("S3: session %d, opened at %v, ends at %v, before its ttl %v", id, s.Opened, s.Deadline, s.TTL)
		case s.fixedFieldsSum != s.sumFixedFields():
			return fmt.Errorf("S4: a fixed field of session %d changed", id)
		}
		sum += s.sum()
	}
	switch {
	case len(t.bySecret) != t.byID.Len():
		return fmt.Errorf("S2: %d secrets for %d sessions", len(t.bySecret), t.byID.Len())
	case sum != t.sum:
		return fmt.Errorf("S4: the sum kept is %x, the sum of the records %x", t.sum, sum)
	}
	return nil
}
