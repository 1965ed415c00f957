package session

import (
	"zamok/clock"
	"zamok/fsm/record"
)

// ID names a session: the index of the command that opened it.
type ID uint64

// Hash is the SHA-256 of a session's secret.
type Hash [32]byte

// Settings are what a client opens its session with. They never change.
type Settings struct {
	Identity  string // of the client, as the server established it
	Label     string
	Meta      string
	TTL       clock.Span
	LockDelay clock.Span // 0 = none
	// ReleaseOnDisconnect is release on disconnect: how long after a broken stream the leader
	// reports ReleaseOnDisconnect; 0 = off. The state machine only stores it.
	ReleaseOnDisconnect clock.Span
}

// Code visits the settings. Spans may be negative here: refusing them is the state machine's part.
func (s *Settings) Code(c *record.Coder) {
	c.Text("identity", &s.Identity)
	c.Text("label", &s.Label)
	c.Text("meta", &s.Meta)
	c.Signed("ttl", &s.TTL)
	c.Signed("lock delay", &s.LockDelay)
	c.Signed("release on disconnect", &s.ReleaseOnDisconnect)
}

// Session is the record of one session.
type Session struct {
	ID     ID
	Secret Hash
	Settings

	Opened   clock.Time // when it was opened
	Deadline clock.Time // when it ends unless it is renewed
	Renewed  uint64     // the index of the step in which it was last renewed
	// Attachment is the index of its latest Attach, 0 = never attached.
	Attachment uint64
	// Attempt is the highest number that its client gave an Attach which took effect.
	Attempt uint64
	// AckedThrough: its client sends no more Acquire for tickets up to here.
	AckedThrough uint64
	// RefusedThrough: tickets up to here that have no record count as refused.
	RefusedThrough uint64
	// Changed is the index of the last change of any of its tickets.
	Changed uint64
	// Live counts its waiting and granted tickets. It follows from the tickets, and is not stored.
	Live int

	// Scheduled is the deadline under which the state machine's schedule has it: at or before
	// Deadline. It follows from the schedule, and is not stored.
	Scheduled clock.Time
}

// Renew begins the lease anew, at the time now of the step index.
func (s *Session) Renew(now clock.Time, index uint64) {
	s.Deadline, s.Renewed = now.Add(s.TTL), index
}

// Code visits the fields of a session.
func (s *Session) Code(c *record.Coder) {
	record.Number(c, "id", &s.ID)
	c.Raw("secret", s.Secret[:])
	s.Settings.Code(c)
	c.Time("opened", &s.Opened)
	c.Time("deadline", &s.Deadline)
	record.Number(c, "renewed", &s.Renewed)
	record.Number(c, "attachment", &s.Attachment)
	record.Number(c, "attempt", &s.Attempt)
	record.Number(c, "acked through", &s.AckedThrough)
	record.Number(c, "refused through", &s.RefusedThrough)
	record.Number(c, "changed", &s.Changed)
}
