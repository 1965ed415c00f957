package fsm

import (
	"fmt"
	"slices"

	"zamok/session"
	"zamok/session/record"
)

// Check tests the invariants of the package comment and names the first that is broken. It reads
// the whole state: for tests, and once after a restore.
func (m *Machine) Check() error {
	for _, check := range []func() error{
		m.sessions.Check, m.checkTrees, m.checkTickets, m.checkLocks, m.checkOwners, m.checkSessions,
		m.checkSchedule, m.checkMembers, m.checkDigest,
	} {
		if err := check(); err != nil {
			return fmt.Errorf("fsm: at index %d: %w", m.index, err)
		}
	}
	return nil
}

func (m *Machine) checkTrees() error {
	for _, check := range []func() error{
		m.tickets.Check, m.delays.Check, m.members.Check, m.reports.Check, m.locks.Check, m.due.Check,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) checkTickets() error {
	var granted, waiting int
	for key, t := range m.tickets.All() {
		if s, ok := m.sessions.Get(key.session); !ok {
			return fmt.Errorf("M4: ticket %v belongs to no living session", key)
		} else if t.state == Ended && key.number <= s.AckedThrough {
			return fmt.Errorf("M9: gone ticket %v is at or below the floor %d", key, s.AckedThrough)
		} else if t.state == Ended && key.number-s.AckedThrough > TicketWindow {
			return fmt.Errorf("M9: gone ticket %v is above the window of floor %d", key, s.AckedThrough)
		}
		if t.enqueued > m.index {
			return fmt.Errorf("M3: ticket %v was enqueued at %d, in the future", key, t.enqueued)
		}
		switch t.state {
		case Waiting:
			waiting++
			if m.grantable(t) {
				return fmt.Errorf("M2: ticket %v waits and could be granted", key)
			}
			if t.token != 0 || t.holdUntil != 0 {
				return fmt.Errorf("M3: ticket %v waits and has a token or a hold", key)
			}
		case Granted:
			granted++
			if t.token < t.enqueued || t.token > m.index || t.enqueued == 0 {
				return fmt.Errorf("M3: ticket %v, enqueued at %d, has token %d at index %d", key, t.enqueued, t.token, m.index)
			}
		case Ended:
			if t.items != nil || t.slots != nil {
				return fmt.Errorf("M4: gone ticket %v keeps its places", key)
			}
		default:
			return fmt.Errorf("M4: ticket %v has no state", key)
		}
		if err := m.checkSlots(key, t); err != nil {
			return err
		}
	}
	if granted != m.counts.Granted || waiting != m.counts.Waiting {
		return fmt.Errorf("M7: %d granted and %d waiting tickets, counted %+v", granted, waiting, m.counts)
	}
	return nil
}

func (m *Machine) checkSlots(key ticketKey, t *ticket) error {
	if len(t.items) != len(t.slots) || len(t.items) > ItemsMax || t.state != Ended && len(t.items) == 0 {
		return fmt.Errorf("M11: ticket %v has %d items and %d places", key, len(t.items), len(t.slots))
	}
	for i := range t.slots {
		p := &t.slots[i]
		if p.key != key || p.item() != i || p.lock.name != t.items[i].Name {
			return fmt.Errorf("M4: place %d of ticket %v is another's", i, key)
		}
		if lk, _ := m.locks.Get(p.lock.name); lk != p.lock {
			return fmt.Errorf("M4: ticket %v stands in a lock %q that is not there", key, p.lock.name)
		}
	}
	return nil
}

func (m *Machine) checkLocks() error {
	slots := 0
	for name, l := range m.locks.All() {
		lk := *l
		if lk.name != name || !isName(name) || !lk.inUse() && lk.delay == 0 {
			return fmt.Errorf("M6: lock %q (%q) is there for nobody", name, lk.name)
		}
		if until, _ := m.delays.Get(name); until != lk.delay {
			return fmt.Errorf("M6: lock %q is delayed until %v, on record is %v", name, lk.delay, until)
		}
		if lk.recheck || lk.queueChanged {
			return fmt.Errorf("M7: lock %q was left unsettled", name)
		}
		seen := lock{limit: lk.limit}
		if err := m.checkList(lk, &lk.holders, Granted, &seen); err != nil {
			return err
		}
		if seen.exclusive != lk.exclusive || seen.shared != lk.shared || seen.permits != lk.permits {
			return fmt.Errorf("M7: lock %q counts %d/%d/%d, its holders have %d/%d/%d", name,
				lk.exclusive, lk.shared, lk.permits, seen.exclusive, seen.shared, seen.permits)
		}
		if lk.exclusive > 1 || lk.exclusive == 1 && lk.holders.len > 1 || lk.permits > lk.limit {
			return fmt.Errorf("M1: lock %q (of %d) has %d exclusive, %d shared holders and %d permits out", name,
				lk.limit, lk.exclusive, lk.shared, lk.permits)
		}
		if err := m.checkList(lk, &lk.waiters, Waiting, &lock{}); err != nil {
			return err
		}
		slots += lk.holders.len + lk.waiters.len
	}
	for _, t := range m.tickets.All() {
		slots -= len(t.slots)
	}
	if slots != 0 {
		return fmt.Errorf("M4: the locks have %+d places against the tickets", slots)
	}
	for name := range m.delays.All() {
		if _, ok := m.locks.Get(name); !ok {
			return fmt.Errorf("M6: %q is delayed and not there", name)
		}
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
		case t == nil || t.state != state || p != &t.slots[p.item()]:
			return fmt.Errorf("M4: ticket %v does not stand in lock %q as %d", p.key, lk.name, state)
		case previous != nil && (t.enqueued <= m.tickets.Peek(previous.key).enqueued || p.number() <= previous.number()):
			return fmt.Errorf("M5: a list of %q is not in order at ticket index %d", lk.name, t.enqueued)
		case t.items[p.item()].Limit != lk.limit:
			return fmt.Errorf("M7: ticket %v and lock %q are of different kinds", p.key, lk.name)
		}
		seen.adjust(t.items[p.item()], 1)
		n++
	}
	if l.last != previous || l.len != n {
		return fmt.Errorf("M4: a list of lock %q says %d places and has %d", lk.name, l.len, n)
	}
	return nil
}

func (m *Machine) checkOwners() error {
	owners := make(map[ownerKey]ownerTickets)
	for key, t := range m.tickets.All() {
		if t.owner == "" {
			continue
		}
		k := ownerKey{key.session, t.owner}
		o := owners[k]
		switch {
		case t.state == Granted:
			o.held = append(o.held, key.number)
		case o.waiting != 0:
			return fmt.Errorf("M8: owner %v waits twice", k)
		default:
			o.waiting = key.number
		}
		owners[k] = o
		if m.owners[k].waiting != 0 && t.state == Waiting && m.owners[k].waiting != key.number {
			return fmt.Errorf("M8: owner %v waits as %d, on record is %d", k, key.number, m.owners[k].waiting)
		}
	}
	if len(owners) != len(m.owners) {
		return fmt.Errorf("M8: %d owners on record, the tickets name %d", len(m.owners), len(owners))
	}
	for k, o := range owners {
		if recorded := m.owners[k]; recorded.waiting != o.waiting || !slices.Equal(recorded.held, o.held) {
			return fmt.Errorf("M8: owner %v has %+v, on record is %+v", k, o, m.owners[k])
		}
	}
	return nil
}

func (m *Machine) checkSessions() error {
	live := make(map[session.ID]int)
	for key, t := range m.tickets.All() {
		if t.state != Ended {
			live[key.session]++
		}
	}
	for s := range m.sessions.From(0) {
		if s.Live != live[s.ID] || s.Live > TicketsMax {
			return fmt.Errorf("M9: session %d has %d live tickets, on record are %d", s.ID, live[s.ID], s.Live)
		}
		if uint64(s.ID) > m.index || s.Renewed > m.index || s.Changed > m.index || s.Deadline > m.time.Add(s.TTL) {
			return fmt.Errorf("M9: session %+v is of the future at %v", s, m.time)
		}
	}
	if m.sessions.Len() > SessionsMax {
		return fmt.Errorf("M11: %d sessions", m.sessions.Len())
	}
	return nil
}

func (m *Machine) checkMembers() error {
	if m.members.Len() > MembersMax || m.reports.Len() > MembersMax {
		return fmt.Errorf("M11: %d members, %d reports", m.members.Len(), m.reports.Len())
	}
	announced := make(map[uint64]string)
	for name, record := range m.members.All() {
		other, taken := announced[record.Announced]
		announced[record.Announced] = name
		switch {
		case record.ID != name:
			return fmt.Errorf("M13: member %q is on record as %q", record.ID, name)
		case record.Announced == 0 || record.Announced > m.index || taken:
			return fmt.Errorf("M13: member %q was announced at %d; the index is %d, and %q has the same", name,
				record.Announced, m.index, other)
		case record.Replaced > m.time:
			return fmt.Errorf("M13: member %q was replaced at %v, of the future", name, record.Replaced)
		}
	}
	return nil
}

func (m *Machine) checkSchedule() error {
	n := m.delays.Len()
	for key, t := range m.tickets.All() {
		for _, k := range []dueKey{{t.waitUntil, dueWait, t.enqueued, ""}, {t.holdUntil, dueHold, t.enqueued, ""}} {
			if k.at == 0 {
				continue
			}
			n++
			if due, ok := m.due.Get(k); !ok || due != key {
				return fmt.Errorf("M10: %+v of ticket %v is not in the schedule", k, key)
			}
		}
	}
	for name, until := range m.delays.All() {
		if _, ok := m.due.Get(dueKey{*until, dueDelay, 0, name}); !ok {
			return fmt.Errorf("M10: the delay of %q is not in the schedule", name)
		}
	}
	if n != m.due.Len() {
		return fmt.Errorf("M10: %d deadlines, %d in the schedule", n, m.due.Len())
	}
	return nil
}

func (m *Machine) checkDigest() error {
	var sum record.Sum
	for key, t := range m.tickets.All() {
		sum += t.sum(key)
	}
	for name, until := range m.delays.All() {
		sum += delaySum(name, *until)
	}
	for _, member := range m.members.All() {
		sum += memberSum(member)
	}
	if sum != m.sum {
		return fmt.Errorf("M12: the sum kept is %x, computed %x", m.sum, sum)
	}
	return nil
}
