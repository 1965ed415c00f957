package fsm

// lockOf returns the lock of a name. One that is not in use is new, and not among the locks.
func (m *Machine) lockOf(name string) *lock {
	if lk, used := m.locks.Get(name); used {
		return lk
	}
	return &lock{name: name}
}

// lookUp looks up the locks of items into m.lookedUp.
func (m *Machine) lookUp(items []Item) {
	m.lookedUp = m.lookedUp[:0]
	for i := range items {
		m.lookedUp = append(m.lookedUp, m.lockOf(items[i].Name))
	}
}

// kindMismatch returns the name that is in use as another kind of lock than the items ask for, or nil.
func (m *Machine) kindMismatch(items []Item) *Detail {
	for i, lk := range m.lookedUp {
		if lk.inUse() && lk.limit != items[i].Limit {
			return &Detail{Field: lk.name, Limit: lk.limit}
		}
	}
	return nil
}

// canGrant is the queue rule for a ticket that is not in the queues yet: no ticket waits, there is no delay, and it is
// compatible with the holders.
func (m *Machine) canGrant(items []Item) bool {
	for i, lk := range m.lookedUp {
		if lk.waiters.len > 0 || lk.delay != 0 || !lk.fits(items[i]) {
			return false
		}
	}
	return m.HoldOff() == 0
}

// blockers names what blocks a new ticket with these items, in their order: a delay, the holders, and the waiters ahead.
func (m *Machine) blockers(items []Item) []Blocker {
	var all []Blocker
	for i, lk := range m.lookedUp {
		all = m.blockersAt(all, lk, items[i], lk.waiters.last)
	}
	return all[:min(len(all), BlockersMax)]
}

// blockersAt adds what blocks an item at one lock. ahead is the last of the tickets before it in the queue; nil = it is
// first.
func (m *Machine) blockersAt(all []Blocker, lk *lock, it Item, ahead *slot) []Blocker {
	if closed, is := m.closedBy(lk); is {
		all = append(all, closed)
	}
	if !lk.fits(it) {
		for p := lk.holders.first; p != nil && len(all) < BlockersMax; p = p.next {
			all = append(all, m.blocker(p, ByHolder))
		}
	}
	if ahead == nil {
		return all
	}
	for p := lk.waiters.first; len(all) < BlockersMax; p = p.next {
		all = append(all, m.blocker(p, ByWaiter))
		if p == ahead {
			break
		}
	}
	return all
}

// closedBy is what closes a lock until a time: a delay, or the restore hold-off, in which nothing is lost, as nothing was
// granted, so there are no other delays then; false: neither.
func (m *Machine) closedBy(lk *lock) (Blocker, bool) {
	if m.HoldOff() > 0 {
		return Blocker{Name: lk.name, By: ByHoldOff, Until: m.holdOffUntil}, true
	}
	return Blocker{Name: lk.name, By: ByDelay, Until: lk.delay}, lk.delay != 0
}

func (m *Machine) blocker(p *slot, by BlockedBy) Blocker {
	t := m.tickets.Peek(p.key)
	return Blocker{Name: p.lock.name, By: by, TicketRef: p.key, Token: t.token, Owner: t.owner}
}
