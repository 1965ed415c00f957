package fsm

import (
	"zamok/fsm/record"
	"zamok/session"
)

// # Ended sessions
//
// A session that its owner closed, or that held a lock, is remembered with how it ended. So a close
// that is repeated is not taken for one that comes too late, and a late copy of what opened the
// session opens no other one, which would hold locks for nobody.
//
// What is remembered is bounded: EndedSessionsMax sessions, and a sixteenth of the bytes of each
// quota. It counts as bytes of its identity, and gives way to whatever needs them: nothing is
// refused because of it. The oldest end of an identity is forgotten first if that has too much, and
// otherwise the oldest of all. So an identity that has its share forgets its own ends only; what
// lives may push out the oldest end of all.

// EndedSession is what is remembered of a session.
type EndedSession struct {
	ID       session.ID
	Secret   session.Hash
	Identity string
	Reason   Reason
	// Ticket is how the only ticket ended, before its session or with it; 0 = there were none, or
	// several.
	Ticket Reason
}

func (e *EndedSession) code(c *coder, number *uint64) {
	record.Number(&c.Coder, "number", number)
	record.Number(&c.Coder, "id", &e.ID)
	c.Raw("secret", e.Secret[:])
	c.Text("identity", &e.Identity)
	record.Byte(&c.Coder, "reason", &e.Reason)
	record.Byte(&c.Coder, "ticket", &e.Ticket)
}

// EndedSession returns what is remembered of the session that a secret opened.
func (m *Machine) EndedSession(secret session.Hash) (EndedSession, bool) {
	return m.ended.Get(m.endedBySecret[secret])
}

// EndedSessions is how many are remembered.
func (m *Machine) EndedSessions() int { return m.ended.Len() }

// rememberSession remembers a session that has ended just now.
func (m *Machine) rememberSession(e EndedSession) {
	m.ends++
	m.addEnded(m.ends, e)
	m.makeRoom(e.Identity)
}

// addEnded adds an ended session to the state.
func (m *Machine) addEnded(number uint64, e EndedSession) {
	m.ended.Set(number, e)
	m.endedBySecret[e.Secret] = number
	used := m.chargeEnded(&e, 1)
	used.ended = append(used.ended, number)
}

// forgetEnded forgets an ended session, the oldest of its identity.
func (m *Machine) forgetEnded(number uint64) {
	e, _ := m.ended.Delete(number)
	delete(m.endedBySecret, e.Secret)
	used := m.chargeEnded(&e, gone)
	used.ended = used.ended[1:]
}

// chargeEnded adds or removes an ended session in the usage of its identity, which it returns.
func (m *Machine) chargeEnded(e *EndedSession, sign uint64) *usage {
	m.endedBytes += sign * endedBytes(e.Identity)
	return m.charge(e.Identity, Amounts{Bytes: endedBytes(e.Identity)}, sign)
}

// makeRoom forgets ended sessions of an identity, and of all, until both have room for what is
// there.
func (m *Machine) makeRoom(identity string) {
	if m.ended.Len() == 0 {
		return
	}
	if used, most := m.identities[identity], m.quotas.OfIdentity().Bytes; used != nil {
		for len(used.ended) > 0 &&
			(used.Bytes > most || used.endedBytes(identity) > most/endedDivisor) {
			m.forgetEnded(used.ended[0])
		}
	}
	for most := m.quotas.Bytes; m.bytes > most || m.endedBytes > most/endedDivisor ||
		m.ended.Len() > EndedSessionsMax; {
		oldest, _, some := m.ended.Min()
		if !some {
			return
		}
		m.forgetEnded(oldest)
	}
}

// endedBytes is the cost of an ended session.
func endedBytes(identity string) uint64 { return EndedSessionBytes + uint64(len(identity)) }

// endedBytes is the cost of the ended sessions of an identity.
func (u *usage) endedBytes(identity string) uint64 {
	return uint64(len(u.ended)) * endedBytes(identity)
}
