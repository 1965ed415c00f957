package fsm

import (
	"cmp"
	"slices"
)

// grantOrder is a ticket granted in this step, for the order of the events.
type grantOrder struct {
	enqueued uint64
	key      TicketRef
}

// grantUnblocked ends a step: it grants, once, what the removals of the step made possible, removes
// the locks that are not in use any more, and emits an event for each queue that changed.
//
// A lock is checked again whenever its holders or the head of its queue changed, so in the end no
// waiting ticket could be granted (M2). The result does not depend on the order of the checks: two
// tickets that can be granted never block each other.
func (m *Machine) grantUnblocked() {
	for i := 0; i < len(m.marked); i++ {
		if lk := m.marked[i]; lk.recheck {
			lk.recheck = false // a later change puts it in again
			m.grantHeads(lk)
		}
	}
	if len(m.granted) > 1 {
		slices.SortFunc(m.granted,
			func(a, b grantOrder) int { return cmp.Compare(a.enqueued, b.enqueued) })
	}
	for _, b := range m.granted {
		m.emitGranted(b.key, m.tickets.Peek(b.key))
	}
	for _, lk := range m.marked {
		if m.isUnused(lk) {
			m.setDelay(lk, 0)
			m.locks.Delete(lk.name)
		} else if lk.queueChanged {
			m.emit(Event{Kind: EvQueueChanged, Lock: lk.name})
		}
		lk.queueChanged = false
	}
	clear(m.marked) // drop the references to removed locks
	m.marked, m.granted = m.marked[:0], m.granted[:0]
}

// isUnused reports whether the lock can be removed: it has neither holder nor waiter, and its only
// delay may be the restore hold-off, which closes unused names, too.
func (m *Machine) isUnused(lk *lock) bool {
	return !lk.inUse() && (lk.delay == 0 || lk.delay == m.holdOffUntil && m.time < m.holdOffUntil)
}

// grantHeads grants the first waiter of lk while it can be, then the next.
func (m *Machine) grantHeads(lk *lock) {
	for lk.waiters.first != nil {
		key := lk.waiters.first.key
		t := m.tickets.Ref(key)
		if t.blockedAt() != nil {
			return
		}
		m.leave(key, t)
		m.grant(key, t)
		m.recordChange(m.sessions.Ref(key.Session), 0)
		m.granted = append(m.granted, grantOrder{t.enqueued, key})
	}
}

// blockedAt is the queue rule: it returns the first slot at which t is not first, the lock has a
// delay, or the item is not compatible with the holders. Without one a waiting ticket can be
// granted.
func (t *ticket) blockedAt() *slot {
	for i := range t.slots {
		p := &t.slots[i]
		if p.prev != nil || p.lock.delay != 0 || !p.lock.fits(t.items[i]) {
			return p
		}
	}
	return nil
}

// grant makes t, which is in no queue, a holder of all its locks. It is the only place where a
// token is made.
func (m *Machine) grant(key TicketRef, t *ticket) {
	t.state, t.token, t.waitUntil = Granted, m.index, 0
	if t.maxHold > 0 {
		t.holdUntil = m.time.Add(t.maxHold)
	}
	m.enter(key, t)
}

func (m *Machine) emitGranted(key TicketRef, t *ticket) {
	m.emit(Event{
		Kind: EvGranted, TicketRef: key, Token: t.token, HoldUntil: t.holdUntil, Items: t.items,
		Identity: m.sessions.Peek(key.Session).Identity,
	})
}
