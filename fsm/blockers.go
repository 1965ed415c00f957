package fsm

// lockOf returns the lock of a name. One that is not in use is new, and not among the locks.
func (m *Machine) lockOf(name string) *lock {
	if lk, used := m.locks.Get(name); used {
		return lk
	}
	return &lock{name: name}
}

// blockers names what blocks a waiting or a new ticket at each of its locks, in the order of its
// items: a delay, the holders, and the waiters ahead; up to BlockersMax.
func (m *Machine) blockers(t *ticket) []Blocker {
	var all []Blocker
	for i := range t.slots {
		p := &t.slots[i]
		all = m.blockersAt(all, p.lock, t.items[i], p.prev)
	}
	return all[:min(len(all), BlockersMax)]
}

// blockersAt adds what blocks an item at one lock. ahead is the last of the tickets before it in
// the queue; nil = it is first. During the restore hold-off nothing is lost, as nothing was
// granted, so there are no other delays then.
func (m *Machine) blockersAt(all []Blocker, lk *lock, it Item, ahead *slot) []Blocker {
	switch {
	case m.HoldOff() > 0:
		all = append(all, Blocker{Name: lk.name, By: ByHoldOff, Until: m.holdOffUntil})
	case lk.delay != 0:
		all = append(all, Blocker{Name: lk.name, By: ByDelay, Until: lk.delay})
	}
	if !lk.fits(it) {
		for p := lk.holders.first; p != nil && len(all) < BlockersMax; p = p.next {
			all = append(all, m.blocker(p, ByHolder))
		}
	}
	for p := lk.waiters.first; ahead != nil && len(all) < BlockersMax; p = p.next {
		all = append(all, m.blocker(p, ByWaiter))
		if p == ahead {
			break
		}
	}
	return all
}

func (m *Machine) blocker(p *slot, by BlockedBy) Blocker {
	t := m.tickets.Peek(p.key)
	return Blocker{Name: p.lock.name, By: by, TicketRef: p.key, Token: t.token, Owner: t.owner}
}
