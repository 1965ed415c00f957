package fsm

import (
	"zamok/clock"
	"zamok/session/record"
)

// Digest is a hash of the whole canonical state but the reported digests. It is a function of the
// state alone and kept up to date record by record.
func (m *Machine) Digest() uint64 {
	c := newSum(sumHeader)
	m.header.code(&c)
	return uint64(c.Sum() + m.sessions.Sum() + m.sum)
}

// Each kind of record begins its sum with another word; sessions, in their own package, with 1.
const (
	sumHeader = 2 + iota
	sumTicket
	sumDelay
	sumMember
)

func newSum(kind uint64) coder { return coder{Coder: record.NewSum(record.Sum(0).Word(kind))} }

// sum is the ticket's part of the digest.
func (t *ticket) sum(key TicketRef) record.Sum {
	c := newSum(sumTicket)
	record.Number(&c.Coder, "session", &key.Session)
	t.code(&c, &key.Ticket)
	return c.Sum()
}

func delaySum(name string, until clock.Time) record.Sum {
	c := newSum(sumDelay)
	(&delay{name, until}).code(&c)
	return c.Sum()
}

func memberSum(m *MemberRecord) record.Sum {
	c := newSum(sumMember)
	m.code(&c)
	return c.Sum()
}
