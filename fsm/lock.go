package fsm

import "zamok/clock"

// lock is a name in use. It follows from the tickets and delays, and is changed in place; only its
// name is read by a frozen snapshot, and that never changes.
type lock struct {
	name    string
	of      uint32 // how many permits it has; 0 = a mutex
	holders list
	waiters list
	// What the holders have.
	exclusive int32
	permits   uint32
	// delay is when a lock delay ends; 0 = none.
	delay clock.Time
	// In the current step: it may have a waiter to grant to, or no ticket left; a ticket entered or
	// left its queue.
	recheck, queueChanged bool
}

// slot is a ticket's position at a lock: among the holders or the waiters.
type slot struct {
	lock *lock
	key  TicketRef
	// its number in the list, times ItemsMax, and which of the ticket's items it is
	at         uint64
	prev, next *slot
}

// item is which of the ticket's items has the slot, number the slot's own in its list.
func (p *slot) item() int      { return int(p.at % ItemsMax) }
func (p *slot) number() uint64 { return p.at / ItemsMax }

// list links slots in the order of their arrival. Removal from the middle takes constant time.
type list struct {
	first, last *slot
	len         int
	// the number of the latest slot; restored queues are renumbered, so only queries may use it
	lastNumber uint64
}

func (l *list) push(p *slot) {
	l.lastNumber++
	p.at = l.lastNumber*ItemsMax + p.at%ItemsMax
	p.prev, p.next = l.last, nil
	if l.last == nil {
		l.first = p
	} else {
		l.last.next = p
	}
	l.last = p
	l.len++
}

func (l *list) remove(p *slot) {
	if p.prev == nil {
		l.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.prev, p.next = nil, nil
	l.len--
}

// inUse reports whether the lock has a holder or a waiter, which fixes its kind.
func (lk *lock) inUse() bool { return lk.holders.len+lk.waiters.len > 0 }

// fits reports whether the item is compatible with the current holders.
func (lk *lock) fits(it Item) bool {
	switch it.Mode {
	case Exclusive:
		return lk.holders.len == 0
	case Shared:
		return lk.exclusive == 0
	default:
		return lk.permits+it.Permits <= it.Of // both are at most PermitsMax
	}
}

// compatible reports whether one item is compatible with another of the same lock, without other
// holders.
func (it Item) compatible(other Item) bool {
	if it.Mode == Permits {
		return it.Permits+other.Permits <= it.Of
	}
	return it.Mode == Shared && other.Mode == Shared
}

// adjust adds an item to the lock's holdings, or removes it.
func (lk *lock) adjust(it Item, n int32) {
	switch it.Mode {
	case Exclusive:
		lk.exclusive += n
	case Permits:
		lk.permits += uint32(n) * it.Permits // wraps around for -1, as it should
	}
}

// mark sets one of the flags that lk has for the current step.
func (m *Machine) mark(lk *lock, flag *bool) {
	if !*flag {
		*flag = true
		m.marked = append(m.marked, lk)
	}
}
