package fsm

import "zamok/clock"

// lookUp looks up the locks of items into m.lookedUp; nil = the name is not in use.
func (m *Machine) lookUp(items []Item) {
	m.lookedUp = m.lookedUp[:0]
	for i := range items {
		lk, _ := m.locks.Get(items[i].Name)
		m.lookedUp = append(m.lookedUp, lk)
	}
}

// kindMismatch returns the name that is in use as another kind of lock than the items ask for, or nil.
func (m *Machine) kindMismatch(items []Item) *Detail {
	for i, lk := range m.lookedUp {
		if lk != nil && lk.inUse() && lk.limit != items[i].Limit {
			return &Detail{Field: lk.name, Limit: lk.limit}
		}
	}
	return nil
}

// canGrant is the queue rule for a ticket that is not in the queues yet: no ticket waits, there is no delay, and it is
// compatible with the holders.
func (m *Machine) canGrant(items []Item) bool {
	for i, lk := range m.lookedUp {
		if lk == nil {
			if m.time < m.holdOffUntil {
				return false
			}
			continue
		}
		if lk.waiters.len > 0 || lk.delay != 0 || !lk.fits(items[i]) {
			return false
		}
	}
	return true
}

// blockers names what blocks a new ticket with these items, in their order: a delay, the holders, and the waiters ahead.
func (m *Machine) blockers(items []Item) []Blocker {
	var all []Blocker
	for i, lk := range m.lookedUp {
		if lk == nil {
			if m.time < m.holdOffUntil {
				all = append(all, m.delayBlocker(items[i].Name, m.holdOffUntil))
			}
			continue
		}
		all = m.blockersAt(all, lk, items[i], lk.waiters.last)
		if len(all) >= BlockersMax {
			return all[:BlockersMax]
		}
	}
	return all
}

// blockersAt adds what blocks an item at one lock. ahead is the last of the tickets before it in the queue; nil = it is
// first.
func (m *Machine) blockersAt(all []Blocker, lk *lock, it Item, ahead *slot) []Blocker {
	if lk.delay != 0 {
		all = append(all, m.delayBlocker(lk.name, lk.delay))
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

// delayBlocker is the blocker of a lock that is closed until a time. During the hold-off nothing is lost, as nothing was
// granted, so there are no other delays then.
func (m *Machine) delayBlocker(name string, until clock.Time) Blocker {
	by := ByDelay
	if m.HoldOff() > 0 {
		by = ByHoldOff
	}
	return Blocker{Name: name, By: by, Until: until}
}

func (m *Machine) blocker(p *slot, by BlockedBy) Blocker {
	t := m.tickets.Peek(p.key)
	return Blocker{Name: p.lock.name, By: by, TicketRef: p.key, Token: t.token, Owner: t.owner}
}
