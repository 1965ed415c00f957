package fsm

import (
	"iter"
	"slices"

	"zamok/clock"
	"zamok/fsm/internal/tree"
	"zamok/session"
)

// ticket is the canonical record of one acquisition. An ended one keeps only state, reason and
// token.
type ticket struct {
	state     State
	reason    Reason
	enqueued  uint64     // the index of its Acquire: its position in every queue
	token     uint64     // once granted
	waitUntil clock.Time // while it waits with a limit
	holdUntil clock.Time // once granted with a maximum hold
	maxHold   clock.Span
	owner     string
	meta      string
	// items never change; a downgrade puts another slice in their place, so events and frozen
	// snapshots may share them. slots correspond to them and link the lists.
	items []Item
	slots []slot
}

// ticketsOf yields the tickets of from's session, beginning with that number.
func ticketsOf(tickets *tree.Tree[TicketRef, ticket],
	from TicketRef) iter.Seq2[TicketRef, *ticket] {
	return func(yield func(TicketRef, *ticket) bool) {
		for key, t := range tickets.From(from) {
			if key.Session != from.Session || !yield(key, t) {
				return
			}
		}
	}
}

// singleItem is the memory of the usual ticket, with one item.
type singleItem struct {
	items [1]Item
	slots [1]slot
}

// execute answers a retransmission as its original, or grants, queues or refuses the ticket.
func (c *Acquire) execute(m *Machine) Result {
	if field := c.invalid(); field != "" {
		return invalid(field)
	}
	s, key, t := m.find(c.Session, c.Ticket, c.AckedThrough)
	switch {
	case s == nil:
		return m.noSession(c.Session)
	case t != nil:
		return t.result(s)
	case c.Ticket <= s.AckedThrough:
		return endedResult(s, TicketEnded)
	case c.Ticket-s.AckedThrough > TicketWindow:
		return Result{Code: LimitExceeded, Detail: &Detail{Field: "ticket"}}.forSession(s)
	}
	if quota := m.overQuota(s.Identity, c.amounts()); quota != "" {
		m.refuseThrough(s, key)
		m.emit(Event{Kind: EvRefused, TicketRef: key, Reason: TooMany,
			Items: slices.Clone(c.Items)})
		return Result{Code: LimitExceeded, State: Ended, Reason: TooMany,
			Detail: &Detail{Field: quota}}.forSession(s)
	}
	asked := ticket{state: Waiting, enqueued: m.index, maxHold: c.MaxHold, owner: c.Owner,
		meta: c.Meta}
	asked.setItems(c.Items)
	m.fillSlots(key, &asked)
	free := m.HoldOff() == 0 && asked.blockedAt() == nil
	if reason, detail := m.refusal(s, key, &asked, c.Wait, free); reason != 0 {
		return m.refuseTicket(s, key, &asked, reason, detail)
	}
	m.useLocks(&asked)
	m.recordChange(s, 1)
	t = m.tickets.Insert(key, asked)
	if free {
		m.grant(key, t)
		m.emitGranted(key, t)
	} else {
		m.wait(key, t, c.Wait)
	}
	m.charge(s.Identity, t.amounts(), 1)
	m.makeRoom(s.Identity)
	return t.result(s)
}

// find begins the commands about a ticket: it takes the acknowledged-through and finds the session,
// if it is alive, and the ticket, for reading, if it is known.
func (m *Machine) find(id session.ID,
	number, ackedThrough uint64) (s *session.Session, key TicketRef, t *ticket) {
	key = TicketRef{id, number}
	if s = m.sessions.Ref(id); s == nil {
		return nil, key, nil
	}
	m.acknowledge(s, ackedThrough)
	return s, key, m.known(s, key)
}

// refusal is why a new ticket is refused: 0 = it is granted if its locks are free, and waits
// otherwise.
func (m *Machine) refusal(s *session.Session, key TicketRef, t *ticket, wait clock.Span,
	free bool) (Reason, *Detail) {
	switch mismatch := t.kindMismatch(); {
	case s.Live >= TicketsMax:
		return TooMany, &Detail{Field: "tickets"}
	case s.LockDelay > 0 && (m.delays.Len() >= DelaysMax ||
		m.delayBytes > m.quotas.Bytes/delaysDivisor):
		return TooMany, &Detail{Field: "delays"}
	case mismatch != nil:
		return KindMismatch, mismatch
	case free:
		return 0, nil
	case wait == 0:
		return TryFailed, &Detail{Blockers: m.blockers(t)}
	case t.owner == "":
		return 0, nil
	}
	if ref, waits := m.waitOf(s.ID, t.owner); waits {
		return OwnerBusy, &Detail{
			Blockers: []Blocker{{By: ByWaiter, TicketRef: ref, Owner: t.owner}}}
	}
	if cycle := m.findCycle(s, key, t); cycle != nil {
		return Deadlocked, cycle
	}
	return 0, nil
}

// kindMismatch returns the name that is in use as another kind of lock than the ticket asks for, or
// nil.
func (t *ticket) kindMismatch() *Detail {
	for i := range t.slots {
		if lk := t.slots[i].lock; lk.inUse() && lk.of != t.items[i].Of {
			return &Detail{Field: lk.name, Of: lk.of}
		}
	}
	return nil
}

// wait puts a new ticket at the end of all its queues.
func (m *Machine) wait(key TicketRef, t *ticket, wait clock.Span) {
	if wait != Forever {
		t.waitUntil = m.time.Add(wait)
	}
	m.enter(key, t)
	for i := range t.slots {
		lk := t.slots[i].lock
		m.mark(lk, &lk.queueChanged)
	}
	if m.time < m.holdOffUntil {
		m.delayLocks(t, m.holdOffUntil)
	}
}

// setItems copies the items, which belong to the command, and makes the slots.
func (t *ticket) setItems(items []Item) {
	if len(items) == 1 {
		one := new(singleItem)
		one.items[0] = items[0]
		t.items, t.slots = one.items[:], one.slots[:]
		return
	}
	t.items, t.slots = slices.Clone(items), make([]slot, len(items))
}

// fillSlots gives each item of a new ticket its lock, and the position behind all that wait there,
// although no queue has the slot before enter. So what blocks a ticket is found in one way, before
// it waits and while it does.
func (m *Machine) fillSlots(key TicketRef, t *ticket) {
	for i := range t.slots {
		lk := m.lockOf(t.items[i].Name)
		t.slots[i] = slot{lock: lk, key: key, at: uint64(i), prev: lk.waiters.last}
	}
}

// useLocks adds those of t's locks that were not in use, and makes its items share the locks'
// copies of the names.
func (m *Machine) useLocks(t *ticket) {
	for i := range t.slots {
		lk := t.slots[i].lock
		if !lk.inUse() {
			lk.of = t.items[i].Of
			m.locks.Set(lk.name, lk)
		}
		t.items[i].Name = lk.name
	}
}

// execute ends a ticket for its client, in any state.
func (c *Drop) execute(m *Machine) Result {
	if c.Ticket == 0 {
		return invalid("ticket")
	}
	s, key, t := m.find(c.Session, c.Ticket, c.AckedThrough)
	reason, token := Dropped, uint64(0)
	switch {
	case s == nil:
		return m.noSession(c.Session)
	case t == nil && c.Ticket <= s.AckedThrough:
		return endedResult(s, OK)
	case t == nil && c.Ticket-s.AckedThrough > TicketWindow:
		return Result{Code: LimitExceeded, Detail: &Detail{Field: "ticket"}}.forSession(s)
	case t == nil && m.overQuota(s.Identity, Amounts{Bytes: EndedBytes}) != "":
		m.refuseThrough(s, key)
	case t == nil:
		// the Acquire may still arrive, and must then find that the ticket ended
		m.rememberEnded(s, key, Dropped)
	case t.state == Ended:
		reason, token = t.reason, t.token
	default:
		token = t.token
		m.endTicket(key, Dropped, "")
	}
	return Result{State: Ended, Reason: reason, Token: token}.forSession(s)
}

// execute is that of a Drop. No client may take the answer for a renewal.
func (c *DropUnrenewed) execute(m *Machine) Result {
	r := (*Drop)(c).execute(m)
	r.Session, r.TTL = 0, 0
	return r
}

// execute makes the exclusive items of a granted ticket shared.
func (c *Downgrade) execute(m *Machine) Result {
	if c.Ticket == 0 {
		return invalid("ticket")
	}
	s, key, t := m.find(c.Session, c.Ticket, c.AckedThrough)
	switch {
	case s == nil:
		return m.noSession(c.Session)
	case t == nil && c.Ticket <= s.AckedThrough:
		return endedResult(s, NotHeld)
	case t == nil:
		return Result{Code: NotHeld}.forSession(s) // its Acquire may still arrive
	case t.state != Granted || !slices.ContainsFunc(t.items, Item.isMutex):
		r := t.result(s)
		r.Code = NotHeld
		return r
	}
	if slices.ContainsFunc(t.items, func(it Item) bool { return it.Mode == Exclusive }) {
		t = m.tickets.Ref(key)
		t.items = slices.Clone(t.items)
		for i := range t.items {
			if it := &t.items[i]; it.Mode == Exclusive {
				lk := t.slots[i].lock
				lk.adjust(*it, -1)
				it.Mode = Shared
				lk.adjust(*it, 1)
				m.mark(lk, &lk.recheck)
			}
		}
		m.recordChange(s, 0)
		m.emit(Event{Kind: EvDowngraded, TicketRef: key, Token: t.token, HoldUntil: t.holdUntil,
			Items: t.items})
	}
	return t.result(s)
}

func (it Item) isMutex() bool { return it.Mode != Permits }

// endTicket removes a live ticket from all lists, emits an event, and remembers it as ended for as
// long as a late Acquire could arrive.
func (m *Machine) endTicket(key TicketRef, reason Reason, text string) {
	s := m.sessions.Ref(key.Session)
	t := m.tickets.Ref(key)
	m.charge(s.Identity, t.amounts(), gone)
	m.releaseSlots(s, key, t, reason, text)
	m.recordChange(s, -1)
	if key.Ticket <= s.AckedThrough {
		m.tickets.Delete(key)
		return
	}
	*t = ticket{state: Ended, reason: reason, token: t.token}
	m.charge(s.Identity, t.amounts(), 1)
}

// releaseSlots removes t, waiting or granted, from its locks, the schedule and the owners, and
// emits how it ended.
func (m *Machine) releaseSlots(s *session.Session, key TicketRef, t *ticket, reason Reason,
	text string) {
	event := Event{Kind: EvReleased, TicketRef: key, Token: t.token, Reason: reason, Text: text,
		Items: t.items}
	if t.state == Granted {
		event.Identity = s.Identity
	}
	m.leave(key, t)
	switch {
	case reason.asked():
	case t.state == Waiting:
		event.Kind = EvRefused
	default:
		event.Kind = EvLost
		if s.LockDelay > 0 {
			m.delayLocks(t, m.time.Add(s.LockDelay))
		}
	}
	// they share the memory of items, which events keep, and would keep the locks with it
	clear(t.slots)
	m.emit(event)
}

// enter makes a live ticket a waiter or a holder of its locks, and puts it into the schedule and
// its owner's record.
func (m *Machine) enter(key TicketRef, t *ticket) {
	for i := range t.slots {
		p := &t.slots[i]
		if t.state == Waiting {
			p.lock.waiters.push(p)
		} else {
			p.lock.holders.push(p)
			p.lock.adjust(t.items[i], 1)
		}
	}
	if k := t.due(); k.at != 0 {
		m.due.Set(k, key)
	}
	if t.owner != "" {
		m.owned.Set(t.ownedKey(key), struct{}{})
	}
	m.live[t.state]++
}

// leave is the reverse of enter. Others may be first in the queues, or compatible with the holders,
// now.
func (m *Machine) leave(key TicketRef, t *ticket) {
	for i := range t.slots {
		p := &t.slots[i]
		if t.state == Waiting {
			p.lock.waiters.remove(p)
			m.mark(p.lock, &p.lock.queueChanged)
		} else {
			p.lock.holders.remove(p)
			p.lock.adjust(t.items[i], -1)
		}
		m.mark(p.lock, &p.lock.recheck)
	}
	if k := t.due(); k.at != 0 {
		m.due.Delete(k)
	}
	if t.owner != "" {
		m.owned.Delete(t.ownedKey(key))
	}
	m.live[t.state]--
}

// refuseTicket ends a new ticket at once.
func (m *Machine) refuseTicket(s *session.Session, key TicketRef, t *ticket, reason Reason,
	detail *Detail) Result {
	m.rememberEnded(s, key, reason)
	clear(t.slots) // see releaseSlots
	m.emit(Event{Kind: EvRefused, TicketRef: key, Reason: reason, Items: t.items})
	return Result{Code: reason.code(), State: Ended, Reason: reason, Detail: detail}.forSession(s)
}

// rememberEnded records that a ticket ended that never was in a queue. Of a refused one a repeated
// Acquire must not find the lock free meanwhile and take it.
func (m *Machine) rememberEnded(s *session.Session, key TicketRef, reason Reason) {
	t := m.tickets.Insert(key, ticket{state: Ended, reason: reason})
	m.charge(s.Identity, t.amounts(), 1)
	m.makeRoom(s.Identity)
	m.recordChange(s, 0)
}

// acknowledge removes the ended tickets up to a new acknowledged-through. Above the old one there
// are at most TicketWindow of them.
func (m *Machine) acknowledge(s *session.Session, through uint64) {
	if through <= s.AckedThrough {
		return
	}
	keys := m.keyBuffer[:0]
	for key, t := range ticketsOf(m.tickets, TicketRef{s.ID, s.AckedThrough + 1}) {
		if key.Ticket > through {
			break
		}
		if t.state == Ended {
			keys = append(keys, key)
			m.charge(s.Identity, t.amounts(), gone)
		}
	}
	for _, key := range keys {
		m.tickets.Delete(key)
	}
	m.keyBuffer = keys
	s.AckedThrough = through
}

// result is the current state of a ticket.
func (t *ticket) result(s *session.Session) Result {
	r := Result{State: t.state, Reason: t.reason, Token: t.token, HoldUntil: t.holdUntil}
	if t.state == Ended {
		r.Code = t.reason.code()
	}
	return r.forSession(s)
}

// endedResult is the answer about a ticket at or below the acknowledged-through that is not live.
func endedResult(s *session.Session, code Code) Result {
	return Result{Code: code, State: Ended}.forSession(s)
}

// forSession adds the session of the command to its result.
func (r Result) forSession(s *session.Session) Result {
	r.Session, r.TTL = s.ID, s.TTL
	return r
}

func invalid(field string) Result {
	return Result{Code: Invalid, Detail: &Detail{Field: field}}
}
