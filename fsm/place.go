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

// Place tells of a waiting ticket the first of its locks that is closed to it, and how many wait
// before it there. False: it does not wait.
func (m *Machine) Place(ref TicketRef) (name string, ahead int, waits bool) {
	t := m.tickets.Peek(ticketKey{ref.Session, ref.Ticket})
	if t == nil || t.state != Waiting {
		return "", 0, false
	}
	name, _ = m.before(t)
	for i := range t.places {
		if p := &t.places[i]; p.lock.name == name {
			for q := p.prev; q != nil; q = q.prev {
				ahead++
			}
		}
	}
	return name, ahead, true
}

// Crowd is how many wait for the locks of a ticket that holds them.
func (m *Machine) Crowd(ref TicketRef) int {
	t := m.tickets.Peek(ticketKey{ref.Session, ref.Ticket})
	if t == nil || t.state != Granted {
		return 0
	}
	n := 0
	for i := range t.places {
		n += t.places[i].lock.waiters.len
	}
	return n
}
