package fsm

import (
	"zamok/clock"
	"zamok/session"
)

// Digest is a hash of the whole canonical state but the reported digests. It is a function of the
// state alone and kept up to date record by record.
func (m *Machine) Digest() uint64 {
	h := session.Sum(0).Word(sumHeader).Word(m.term).Word(m.index).Word(uint64(m.time)).Word(m.epoch)
	h = h.Word(uint64(m.version)).Text(string(m.cluster[:])).Word(m.restoredThrough).Word(uint64(m.holdOffUntil))
	return uint64(h + m.sessions.Sum() + m.sum)
}

// Each kind of record begins its hash with another word; sessions, in their own package, with 1.
const (
	sumHeader = 2 + iota
	sumTicket
	sumDelay
	sumMember
)

// sum is the ticket's part of the digest.
func (t *ticket) sum(key ticketKey) session.Sum {
	h := session.Sum(0).Word(sumTicket).Word(uint64(key.session)).Word(key.number)
	h = h.Word(uint64(t.state) | uint64(t.reason)<<8).Word(t.token)
	if t.state == Ended {
		return h
	}
	h = h.Word(t.enqueued).Word(uint64(t.waitUntil)).Word(uint64(t.holdUntil)).Word(uint64(t.maxHold))
	h = h.Text(t.owner).Text(t.metadata)
	for i := range t.items {
		it := &t.items[i]
		h = h.Text(it.Name).Word(uint64(it.Mode)).Word(uint64(it.Permits)<<32 | uint64(it.Limit))
	}
	return h
}

func delaySum(name string, until clock.Time) session.Sum {
	return session.Sum(0).Word(sumDelay).Text(name).Word(uint64(until))
}

func memberSum(c *MemberRecord) session.Sum {
	h := session.Sum(0).Word(sumMember).Text(c.ID).Text(string(c.Incarnation[:]))
	h = h.Text(c.Client).Text(c.Peer).Text(c.HTTP).Text(c.Version)
	h = h.Word(uint64(c.StateVersionMin)<<32 | uint64(c.StateVersionMax)).Word(c.FreeBytes).Word(c.LowSpaceThreshold)
	h = h.Word(uint64(c.ElectionTimeout)<<32 | uint64(c.ElectionTimeoutFixed))
	return h.Word(c.Announced).Word(uint64(c.Replaced))
}
