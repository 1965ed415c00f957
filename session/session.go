package session

import "zamok/clock"

// ID names a session: the index of the command that opened it.
type ID uint64

// Hash is the SHA-256 of a session's secret.
type Hash [32]byte

// Session is the record of one session. Copies are handed out freely; the table's own record is
// changed by the table's methods only.
type Session struct {
	ID        ID
	Secret    Hash
	Identity  string
	Label     string
	Metadata  string
	TTL       clock.Span
	LockDelay clock.Span
	Grace     clock.Span // release on disconnect; 0 = off

	Opened   clock.Time // when it was opened
	Deadline clock.Time // when it ends unless heard again
	Renewed  uint64     // the index of the step in which it was last heard
	// Attachment is the index of its latest Attach, 0 = never attached.
	Attachment uint64
	// Attempt is the highest number that its client gave an Attach which took effect.
	Attempt uint64
	// AckedThrough: its client sends no more Acquire for tickets up to here.
	AckedThrough uint64
	// Changed is the index of the last change of any of its tickets.
	Changed uint64
	// Live counts its waiting and granted tickets. It follows from the tickets and is in no sum.
	Live int

	// scheduled is the deadline under which the schedule has it: at or before Deadline.
	scheduled clock.Time
	// fixedFieldsSum is the Sum of the fields that never change, taken once.
	fixedFieldsSum Sum
}

// sum is the record's part of the digest.
func (s *Session) sum() Sum {
	return s.fixedFieldsSum.Word(uint64(s.Deadline)).Word(s.Renewed).Word(s.Attachment).
		Word(s.Attempt).Word(s.AckedThrough).Word(s.Changed)
}

func (s *Session) sumFixedFields() Sum {
	h := Sum(0).Word(sumSession).Word(uint64(s.ID))
	h = h.Text(string(s.Secret[:])).Text(s.Identity).Text(s.Label).Text(s.Metadata)
	return h.Word(uint64(s.TTL)).Word(uint64(s.LockDelay)).Word(uint64(s.Grace)).
		Word(uint64(s.Opened))
}
