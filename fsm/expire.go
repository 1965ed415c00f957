package fsm

import (
	"cmp"

	"zamok/clock"
)

// dueKey is a deadline other than a session's. For a wait and a hold, id is the index at which the ticket was
// enqueued; a delay has the lock's name.
type dueKey struct {
	at   clock.Time
	kind dueKind
	id   uint64
	name string
}

// dueKind is what ends; at one moment sessions end first, then these in this order.
type dueKind uint8

const (
	dueWait dueKind = 1 + iota
	dueDelay
	dueHold
)

// due is when the ticket's wait or hold ends; 0 = it has no limit. A waiting ticket has no hold yet, and a granted one's
// wait is over.
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

// expireDue ends what is due: removes all of it first, then grants once, so that no lock is granted
// twice under one index.
func (m *Machine) expireDue() {
	for spent := 0; spent < ExpirationsMax; {
		ends, id, leased := m.sessions.Earliest()
		key, ticket, some := m.due.Min()
		switch {
		case leased && ends <= m.time && (!some || ends <= key.at):
			spent += 1 + m.endSession(id, Expired, "")
			continue
		case some && key.at <= m.time:
			spent++
			switch key.kind {
			case dueWait:
				m.endTicket(ticket, WaitTimeout, "")
			case dueDelay:
				lk, _ := m.locks.Get(key.name)
				m.endDelay(lk)
			case dueHold:
				m.endTicket(ticket, MaxHoldExceeded, "")
			}
			continue
		}
		break
	}
	m.grantUnblocked()
}

// delay closes lk until at least then.
func (m *Machine) delay(lk *lock, until clock.Time) {
	if until <= lk.delay {
		return
	}
	m.unscheduleDelay(lk)
	lk.delay = until
	m.delays.Set(lk.name, until)
	m.due.Set(dueKey{until, dueDelay, 0, lk.name}, TicketRef{})
	m.sum += delaySum(lk.name, until)
}

// delayLocks closes the locks that a ticket lost.
func (m *Machine) delayLocks(t *ticket, delay clock.Span) {
	for i := range t.slots {
		if delay > 0 {
			m.delay(t.slots[i].lock, m.time.Add(delay))
		}
	}
}

// endDelay opens lk again.
func (m *Machine) endDelay(lk *lock) {
	m.unscheduleDelay(lk)
	lk.delay = 0
	m.delays.Delete(lk.name)
	m.markFreed(lk)
}

func (m *Machine) unscheduleDelay(lk *lock) {
	if lk.delay != 0 {
		m.due.Delete(dueKey{lk.delay, dueDelay, 0, lk.name})
		m.sum -= delaySum(lk.name, lk.delay)
	}
}
