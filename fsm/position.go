package fsm

import "iter"

// Queries for the queue positions and contention that a leader reports to clients. Like all queries they may run
// concurrently, and nothing may be applied while a sequence is read.

// Waiters yields the tickets in the queue of a lock, in order.
func (m *Machine) Waiters(name string) iter.Seq[TicketRef] {
	return m.refs(name, func(lk *lock) *slot { return lk.waiters.first })
}

// Holders yields the tickets that hold a lock, in order.
func (m *Machine) Holders(name string) iter.Seq[TicketRef] {
	return m.refs(name, func(lk *lock) *slot { return lk.holders.first })
}

func (m *Machine) refs(name string, first func(*lock) *slot) iter.Seq[TicketRef] {
	return func(yield func(TicketRef) bool) {
		lk, ok := m.locks.Get(name)
		if !ok {
			return
		}
		for p := first(lk); p != nil && yield(p.key); p = p.next {
		}
	}
}

// PositionExactMax is the number of tickets ahead up to which a queue position is exact.
const PositionExactMax = 100

// BlockedLock is the first lock of a waiting ticket that is closed to it; "": it does not wait.
func (m *Machine) BlockedLock(ref TicketRef) string {
	if at := m.firstBlocked(ref); at != nil {
		return at.lock.name
	}
	return ""
}

// QueuePosition returns the first of a waiting ticket's locks that is closed to it, and how many tickets wait before it
// there: exactly up to PositionExactMax. A larger number includes tickets that left the middle of the queue, so it may be
// too large, never too small. The cost does not depend on the length of the queue. False: the ticket does not wait.
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
	t := m.tickets.Peek(ref)
	if t == nil || t.state != Waiting {
		return nil
	}
	return t.blockedAt()
}

// Contention is how many tickets wait for the locks that a ticket holds, and how many locks it holds.
func (m *Machine) Contention(ref TicketRef) (waiting, locks int) {
	t := m.tickets.Peek(ref)
	if t == nil || t.state != Granted {
		return 0, 0
	}
	for i := range t.slots {
		waiting += t.slots[i].lock.waiters.len
	}
	return waiting, len(t.slots)
}
