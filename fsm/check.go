package fsm

import (
	"fmt"
	"slices"

	"zamok/session"
)

// ticketTotals is what the tickets come to. The derived state is compared with it.
type ticketTotals struct {
	byState                          [Ended + 1]int
	slots, deadlines, owned, delayed int
	live                             map[session.ID]int
	delayBytes, endedBytes           uint64
	used                             map[string]Amounts // by identity
}

// add counts a record for its identity.
func (all *ticketTotals) add(identity string, a Amounts) {
	u := all.used[identity]
	all.used[identity] = Amounts{u.Sessions + a.Sessions, u.Tickets + a.Tickets, u.Bytes + a.Bytes}
}

// Check tests the invariants of the package comment and names the first that is broken. It reads
// the whole state: for tests, and once after a restore.
func (m *Machine) Check() error {
	all := ticketTotals{live: make(map[session.ID]int), used: make(map[string]Amounts)}
	for _, check := range []func() error{
		func() error { return m.checkTickets(&all) },
		func() error { return m.checkLocks(&all) },
		func() error { return m.checkSessions(&all) },
		m.checkMembers,
		func() error { return m.checkEnded(&all) },
		func() error { return m.checkQuotas(&all) },
	} {
		if err := check(); err != nil {
			return fmt.Errorf("fsm: at index %d: %w", m.index, err)
		}
	}
	return nil
}

func (m *Machine) checkTickets(all *ticketTotals) error {
	for key, t := range m.tickets.All() {
		s, alive := m.sessions.Get(key.Session)
		waits, granted, ended := t.state == Waiting, t.state == Granted, t.state == Ended
		limited, owned := t.due().at != 0, t.owner != ""
		due, _ := m.due.Get(t.due())
		_, recorded := m.owned.Get(t.ownedKey(key))
		ownersWait, _ := m.waitOf(key.Session, t.owner)
		broken := firstBroken(
			rule{"M4: its session is not alive", alive},
			rule{"M9: it ended and is not above what its session acknowledged",
				!ended || key.Ticket > s.AckedThrough},
			rule{"M9: it ended and is above its session's window",
				!ended || key.Ticket-s.AckedThrough <= TicketWindow},
			rule{"M3: it was enqueued in the future", t.enqueued <= m.index},
			rule{"M2: it waits and could be granted", !waits || t.blockedAt() != nil},
			rule{"M3: it waits and has a token or a maximum hold that runs",
				!waits || t.token == 0 && t.holdUntil == 0},
			rule{"M10: it was granted and its wait still ends", !granted || t.waitUntil == 0},
			rule{"M3: it was never enqueued", !granted || t.enqueued != 0},
			rule{"M3: its token is older than its place in the queue",
				!granted || t.token >= t.enqueued},
			rule{"M3: its token is of the future", !granted || t.token <= m.index},
			rule{"M4: it ended and keeps its items or slots",
				!ended || t.items == nil && t.slots == nil},
			rule{"M4: it has no state", waits || granted || ended},
			rule{"M11: it has no items or too many",
				ended || 0 < len(t.items) && len(t.items) <= ItemsMax},
			rule{"M11: it has not one slot for each item", len(t.items) == len(t.slots)},
			rule{"M10: its deadline is not in the schedule", !limited || due == key},
			rule{"M8: it is not among its owner's tickets", !owned || recorded},
			rule{"M8: its owner waits twice", !owned || !waits || ownersWait == key},
		)
		if broken != "" {
			return fmt.Errorf("%s: ticket %+v of session %+v", broken, t.view(key), s)
		}
		all.slots += len(t.slots)
		all.add(s.Identity, t.amounts())
		all.byState[t.state]++
		if !ended {
			all.live[key.Session]++
		}
		if limited {
			all.deadlines++
		}
		if owned {
			all.owned++
		}
	}
	switch {
	case m.live[Waiting] != all.byState[Waiting] || m.live[Granted] != all.byState[Granted]:
		return fmt.Errorf("M7: %v wait and are granted, counted %v", all.byState, m.live)
	case m.owned.Len() != all.owned:
		return fmt.Errorf("M8: %d tickets of owners on record, and there are %d", m.owned.Len(),
			all.owned)
	}
	return nil
}

// checkLocks finds each slot of a lock in its ticket. There are as many of both, so every slot of a
// ticket is in a lock.
func (m *Machine) checkLocks(all *ticketTotals) error {
	slots := 0
	for name, l := range m.locks.All() {
		lk := *l
		seen := lock{of: lk.of}
		if err := m.checkList(lk, &lk.holders, Granted, &seen); err != nil {
			return err
		}
		if err := m.checkList(lk, &lk.waiters, Waiting, &lock{}); err != nil {
			return err
		}
		until, _ := m.delays.Get(name)
		_, scheduled := m.due.Get(dueKey{lk.delay, dueDelay, 0, name})
		if broken := firstBroken(
			rule{"M6: it has no name, or that of another", lk.name == name && isName(name)},
			rule{"M6: it has no holder, no waiter and no delay", lk.inUse() || lk.delay != 0},
			rule{"M6: its delay is not the one on record", until == lk.delay},
			rule{"M10: the end of its delay is not in the schedule", lk.delay == 0 || scheduled},
			rule{"M7: it is still to be looked at", !lk.recheck && !lk.queueChanged},
			rule{"M7: its counters are not those of its holders",
				seen.exclusive == lk.exclusive && seen.permits == lk.permits},
			rule{"M1: an exclusive holder is not alone",
				lk.exclusive == 0 || lk.exclusive == 1 && lk.holders.len == 1},
			rule{"M1: more permits are held than there are", lk.permits <= lk.of},
		); broken != "" {
			return fmt.Errorf("%s: lock %q: %+v, delayed until %v on record; counted %d "+
				"exclusive, %d permits, its holders have %d, %d",
				broken, name, m.summary(lk), until, lk.exclusive, lk.permits, seen.exclusive,
				seen.permits)
		}
		slots += lk.holders.len + lk.waiters.len
		if lk.delay != 0 {
			all.delayed++
			all.delayBytes += DelayBytes + uint64(len(name))
		}
	}
	switch {
	case slots != all.slots:
		return fmt.Errorf("M4: the locks have %d slots, the tickets %d", slots, all.slots)
	case m.delays.Len() != all.delayed:
		return fmt.Errorf("M6: %d delays on record, and %d locks are delayed", m.delays.Len(),
			all.delayed)
	}
	return nil
}

// checkList walks one of lk's lists and counts into seen what its tickets have.
func (m *Machine) checkList(lk *lock, l *list, state State, seen *lock) error {
	var previous *slot
	n := 0
	for p := l.first; p != nil; previous, p = p, p.next {
		t := m.tickets.Peek(p.key)
		switch {
		case p.prev != previous || p.lock != lk:
			return fmt.Errorf("M4: the links of lock %q are broken at ticket %v", lk.name, p.key)
		case t == nil || t.state != state || p.item() >= len(t.slots) || p != &t.slots[p.item()]:
			return fmt.Errorf("M4: ticket %v is not in lock %q in state %d", p.key, lk.name, state)
		case previous != nil && (t.enqueued <= m.tickets.Peek(previous.key).enqueued ||
			p.number() <= previous.number()):
			return fmt.Errorf("M5: a list of %q is not in order at ticket index %d", lk.name,
				t.enqueued)
		case t.items[p.item()].Name != lk.name:
			return fmt.Errorf("M4: ticket %v is in lock %q and asked for another", p.key, lk.name)
		case t.items[p.item()].Of != lk.of:
			return fmt.Errorf("M7: ticket %v and lock %q are of different kinds", p.key, lk.name)
		}
		seen.adjust(t.items[p.item()], 1)
		n++
	}
	if l.last != previous || l.len != n {
		return fmt.Errorf("M4: a list of lock %q has %d slots, counted %d", lk.name, n, l.len)
	}
	return nil
}

func (m *Machine) checkSessions(all *ticketTotals) error {
	for id, s := range m.sessions.All() {
		_, scheduled := m.due.Get(sessionDue(s))
		if broken := firstBroken(
			rule{"M14: it is kept under another id, or has none", id == s.ID && id != 0},
			rule{"M14: it is not found by its secret", m.bySecret[s.Secret] == id},
			rule{"M14: it ends before its ttl has passed", s.Deadline >= s.Opened.Add(s.TTL)},
			rule{"M9: its live tickets are more than counted, or fewer", s.Live == all.live[id]},
			rule{"M9: it has too many live tickets", s.Live <= TicketsMax},
			rule{"M9: it refused a ticket above its window",
				s.RefusedThrough <= s.AckedThrough ||
					s.RefusedThrough-s.AckedThrough <= TicketWindow},
			rule{"M9: it is of the future",
				max(uint64(s.ID), s.Renewed, s.Changed) <= m.index &&
					s.Deadline <= m.time.Add(s.TTL)},
			rule{"M10: it is not in the schedule, or too late",
				scheduled && s.Scheduled <= s.Deadline},
			rule{"M11: its ttl is longer than was ever allowed", s.TTL <= m.highestTTL},
		); broken != "" {
			return fmt.Errorf("%s: session %+v at %v has %d live tickets", broken, *s, m.time,
				all.live[id])
		}
		all.add(s.Identity, sessionAmounts(&s.Settings))
	}
	switch {
	case m.sessions.Len() > SessionsMax:
		return fmt.Errorf("M11: %d sessions", m.sessions.Len())
	case m.sessions.Len() != len(m.bySecret):
		return fmt.Errorf("M14: %d secrets for %d sessions", len(m.bySecret), m.sessions.Len())
	case m.due.Len() != all.deadlines+all.delayed+m.sessions.Len():
		return fmt.Errorf(
			"M10: %d deadlines of tickets, %d of delays and %d of sessions, %d in the schedule",
			all.deadlines, all.delayed, m.sessions.Len(), m.due.Len())
	}
	return nil
}

// checkQuotas compares the counted usage with the records.
func (m *Machine) checkQuotas(all *ticketTotals) error {
	bytes := all.delayBytes
	for identity, used := range all.used {
		bytes += used.Bytes
		if counted := m.UsedBy(identity); counted != used {
			return fmt.Errorf("M15: %q uses %+v, counted %+v", identity, used, counted)
		}
	}
	if m.bytes != bytes || m.delayBytes != all.delayBytes || m.endedBytes != all.endedBytes ||
		len(m.identities) != len(all.used) {
		return fmt.Errorf("M15: %d bytes, of delays %d, of ended sessions %d, and %d identities; "+
			"counted %d, %d, %d, %d", bytes,
			all.delayBytes, all.endedBytes, len(all.used), m.bytes, m.delayBytes, m.endedBytes,
			len(m.identities))
	}
	return nil
}

func (m *Machine) checkMembers() error {
	if m.members.Len() > MembersMax {
		return fmt.Errorf("M11: %d members", m.members.Len())
	}
	announced := make(map[uint64]string)
	for name, member := range m.members.All() {
		other, taken := announced[member.Announced]
		announced[member.Announced] = name
		if broken := firstBroken(
			rule{"M13: it is on record under another id", member.ID == name},
			rule{"M13: it was never announced", member.Announced != 0},
			rule{"M13: it was announced in the future", member.Announced <= m.index},
			rule{"M13: another was announced at the same index", !taken},
			rule{"M13: it was replaced in the future", member.Replaced <= m.time},
		); broken != "" {
			return fmt.Errorf("%s: member %q at %v, the other being %q: %+v", broken, name, m.time,
				other, *member)
		}
	}
	return nil
}

func (m *Machine) checkEnded(all *ticketTotals) error {
	queues := make(map[string][]uint64)
	for number, e := range m.ended.All() {
		if broken := firstBroken(
			rule{"M16: its number was not given yet", number <= m.ends && number != 0},
			rule{"M16: it was never opened, or is alive",
				e.ID != 0 && uint64(e.ID) <= m.index && m.sessions.Peek(e.ID) == nil},
			rule{"M16: it is not found by its secret, or a living one is",
				m.endedBySecret[e.Secret] == number && m.bySecret[e.Secret] == 0},
			rule{"M16: it has no reason", e.Reason != 0},
		); broken != "" {
			return fmt.Errorf("%s: ended session %d of %d: %+v", broken, number, m.ends, *e)
		}
		queues[e.Identity] = append(queues[e.Identity], number)
		all.endedBytes += endedBytes(e.Identity)
		all.add(e.Identity, Amounts{Bytes: endedBytes(e.Identity)})
	}
	for identity, used := range m.identities {
		if !slices.Equal(used.ended, queues[identity]) {
			return fmt.Errorf("M16: the ended sessions of %q are %d, counted %d", identity,
				queues[identity], used.ended)
		}
	}
	if m.ended.Len() > EndedSessionsMax || m.ended.Len() != len(m.endedBySecret) {
		return fmt.Errorf("M16: %d ended sessions, with %d secrets", m.ended.Len(),
			len(m.endedBySecret))
	}
	return nil
}
