package fsm

import (
	"cmp"

	"zamok/clock"
	"zamok/session"
)

// dueKey is a deadline. id is the session's, or for a wait and a hold the index at which the ticket
// was enqueued; a delay has the lock's name.
type dueKey struct {
	at   clock.Time
	kind dueKind
	id   uint64
	name string
}

// dueKind is what ends; at one moment in this order.
type dueKind uint8

const (
	dueSession dueKind = 1 + iota
	dueWait
	dueDelay
	dueHold
)

// due is when the ticket's wait or hold ends; 0 = it has no limit. A waiting ticket has no hold
// yet, and a granted one's wait is over.
func (t *ticket) due() dueKey {
	if t.state == Waiting {
		return dueKey{t.waitUntil, dueWait, t.enqueued, ""}
	}
	return dueKey{t.holdUntil, dueHold, t.enqueued, ""}
}

func (k dueKey) compare(l dueKey) int {
	return cmp.Or(cmp.Compare(k.at, l.at), cmp.Compare(k.kind, l.kind), cmp.Compare(k.id, l.id),
		cmp.Compare(k.name, l.name))
}

// sessionDue is the session's entry in the schedule.
func sessionDue(s *session.Session) dueKey {
	return dueKey{s.Scheduled, dueSession, uint64(s.ID), ""}
}

// schedule puts a session into the schedule under its deadline.
func (m *Machine) schedule(s *session.Session) {
	s.Scheduled = s.Deadline
	m.due.Set(sessionDue(s), TicketRef{})
}

// earliest returns the first deadline, with its ticket; one after until may be too early. A renewal
// changes one record and leaves the session in the schedule under its old deadline, which is too
// early and never too late; when that comes first and is not after until, the session is scheduled
// again. Were it scheduled again whenever it comes first, every entry would do so for nearly every
// session that the one before renewed.
func (m *Machine) earliest(until clock.Time) (key dueKey, ticket TicketRef, some bool) {
	for {
		key, ticket, some = m.due.Min()
		if !some || key.kind != dueSession || key.at > until {
			return key, ticket, some
		}
		s := m.sessions.Ref(session.ID(key.id))
		if s.Deadline == key.at {
			return key, ticket, some
		}
		m.due.Delete(key)
		m.schedule(s)
	}
}

// expireDue ends what is due: removes all of it first, then grants once, so that no lock is granted
// twice under one index.
func (m *Machine) expireDue() {
	for spent := 0; spent < ExpirationsMax; {
		key, ticket, some := m.earliest(m.time)
		if !some || key.at > m.time {
			break
		}
		spent++
		switch key.kind {
		case dueSession:
			spent += m.endSession(session.ID(key.id), Expired, "", true)
		case dueWait:
			m.endTicket(ticket, WaitTimeout, "")
		case dueDelay:
			lk := m.lockOf(key.name)
			m.setDelay(lk, 0)
			m.mark(lk, &lk.recheck)
		case dueHold:
			m.endTicket(ticket, MaxHoldExceeded, "")
		}
	}
	m.grantUnblocked()
}

// delayLocks closes the locks of t until at least then.
func (m *Machine) delayLocks(t *ticket, until clock.Time) {
	for i := range t.slots {
		if lk := t.slots[i].lock; until > lk.delay {
			m.setDelay(lk, until)
		}
	}
}

// setDelay closes lk until then; 0 opens it.
func (m *Machine) setDelay(lk *lock, until clock.Time) {
	if lk.delay != 0 {
		m.delays.Delete(lk.name)
		m.due.Delete(dueKey{lk.delay, dueDelay, 0, lk.name})
		m.chargeDelay(lk.name, gone)
	}
	lk.delay = until
	if until != 0 {
		m.delays.Set(lk.name, until)
		m.due.Set(dueKey{until, dueDelay, 0, lk.name}, TicketRef{})
		m.chargeDelay(lk.name, 1)
	}
}
