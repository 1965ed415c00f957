package fsm

import "iter"

// What a leader asks to tell those who wait and those who are waited for. Like all queries these run
// beside each other, and nothing may be applied while a sequence is read.

// Waiters yields the tickets in the queue of a lock, in order.
func (m *Machine) Waiters(name string) iter.Seq[TicketRef] {
	return func(yield func(TicketRef) bool) {
		if lk, ok := m.locks.Get(name); ok {
			lk.waiters.each(yield)
		}
	}
}

// Holders yields the tickets that hold a lock, in order.
func (m *Machine) Holders(name string) iter.Seq[TicketRef] {
	return func(yield func(TicketRef) bool) {
		if lk, ok := m.locks.Get(name); ok {
			lk.holders.each(yield)
		}
	}
}

func (l *list) each(yield func(TicketRef) bool) {
	for p := l.first; p != nil && yield(p.key.ref()); p = p.next {
	}
}

// PositionExactMax is up to which number of tickets ahead a place is counted, one by one.
const PositionExactMax = 100

// BlockedLock is the first lock of a waiting ticket that is closed to it; "": it does not wait.
func (m *Machine) BlockedLock(ref TicketRef) string {
	if at := m.firstBlocked(ref); at != nil {
		return at.lock.name
	}
	return ""
}

// QueuePosition tells of a waiting ticket the first of its locks that is closed to it, and how many wait before it
// there: exactly up to PositionExactMax. A larger number counts those with it that left the middle of the queue
// and may be too large, never too small. Its cost does not depend on the length of the queue. False: it does not
// wait.
func (m *Machine) QueuePosition(ref TicketRef) (name string, ahead int, waits bool) {
	at := m.firstBlocked(ref)
	if at == nil {
		return "", 0, false
	}
	for p := at.prev; p != nil; p = p.prev {
		if ahead++; ahead > PositionExactMax {
			queue := &at.lock.waiters
			return at.lock.name, min(int(at.number()-queue.first.number()), queue.len-1), true
		}
	}
	return at.lock.name, ahead, true
}

func (m *Machine) firstBlocked(ref TicketRef) *slot {
	t := m.tickets.Peek(ticketKey{ref.Session, ref.Ticket})
	if t == nil || t.state != Waiting {
		return nil
	}
	return t.blockedAt()
}

// Contention is how many wait for the locks of a ticket that holds them, and how many those locks are.
func (m *Machine) Contention(ref TicketRef) (waiting, locks int) {
	t := m.tickets.Peek(ticketKey{ref.Session, ref.Ticket})
	if t == nil || t.state != Granted {
		return 0, 0
	}
	for i := range t.slots {
		waiting += t.slots[i].lock.waiters.len
	}
	return waiting, len(t.slots)
}
