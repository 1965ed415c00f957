package fsm

import (
	"cmp"
	"iter"
	"slices"

	"zamok/session"
)

// ownedKey is a live ticket of an owner, a logical thread inside a session. An owner's waiting ticket comes first, then
// those that it holds, by number. A search for a deadlock goes through them in that order, and how many an entry has
// depends on what they cost. So the order must follow from the tickets alone, and not from whether they were granted here
// or restored from a snapshot.
type ownedKey struct {
	session session.ID
	owner   string
	state   State
	ticket  uint64
}

func (t *ticket) ownedKey(key TicketRef) ownedKey {
	return ownedKey{key.Session, t.owner, t.state, key.Ticket}
}

func (k ownedKey) compare(l ownedKey) int {
	return cmp.Or(cmp.Compare(k.session, l.session), cmp.Compare(k.owner, l.owner), cmp.Compare(k.state, l.state),
		cmp.Compare(k.ticket, l.ticket))
}

// ownedBy yields an owner's tickets in a state.
func (m *Machine) ownedBy(id session.ID, owner string, state State) iter.Seq[TicketRef] {
	return func(yield func(TicketRef) bool) {
		for k := range m.owned.From(ownedKey{id, owner, state, 0}) {
			if k.session != id || k.owner != owner || k.state != state || !yield(TicketRef{id, k.ticket}) {
				return
			}
		}
	}
}

// waitOf returns the ticket with which an owner waits; false: it does not wait.
func (m *Machine) waitOf(id session.ID, owner string) (ref TicketRef, waits bool) {
	for ref := range m.ownedBy(id, owner, Waiting) {
		return ref, true
	}
	return ref, false
}

// hasWaiters reports whether a ticket waits for what the owner of a new ticket holds, or the new one would. If not, there
// is no cycle through it. With more than SearchMax locks to check, the answer is yes.
func (m *Machine) hasWaiters(id session.ID, asked *ticket) bool {
	looked := 0
	defer func() { m.searchCost += looked }()
	for ref := range m.ownedBy(id, asked.owner, Granted) {
		t := m.tickets.Peek(ref)
		if looked += len(t.slots); looked > SearchMax {
			return true
		}
		for i := range t.slots {
			lk := t.slots[i].lock
			wanted := func(p slot) bool { return p.lock == lk }
			if lk.waiters.len > 0 || slices.ContainsFunc(asked.slots, wanted) {
				return true
			}
		}
	}
	return false
}

// searchStep is one ticket that the search reached, and from where.
type searchStep struct {
	key      TicketRef
	parent   int    // the step that led here; -1 = the new ticket
	lockName string // the lock at which that one waits for this one
}

// search goes from a new ticket to all that it would wait for, nearest first.
type search struct {
	m            *Machine
	steps        []searchStep
	seen         map[TicketRef]bool
	visitedWidth map[*lock]uint32 // the greatest width for which a lock's holders were visited
	cost         int              // of SearchMax
}

func (s *search) visit(key TicketRef, parent int, lockName string) {
	s.cost++
	if !s.seen[key] {
		s.seen[key] = true
		s.steps = append(s.steps, searchStep{key, parent, lockName})
	}
}

// findCycle describes the shortest cycle that a new ticket, waiting, would close, or returns nil.
// Every wait is for all of a ticket's items. A timed wait counts as any other, though a cycle
// through it would dissolve by itself.
func (m *Machine) findCycle(newKey TicketRef, asked *ticket) *Detail {
	s := &search{m: m, seen: make(map[TicketRef]bool), visitedWidth: make(map[*lock]uint32)}
	defer func() { m.searchCost += s.cost }()
	s.visitLocks(asked, -1)
	for at := 0; at < len(s.steps) && s.cost <= SearchMax; at++ {
		key := s.steps[at].key
		t := m.tickets.Peek(key)
		switch {
		case t.state == Waiting:
			s.visitLocks(t, at)
		case t.owner == "":
			// Whether its holder waits, and for what, is unknown.
		case key.Session == newKey.Session && t.owner == asked.owner:
			return s.describe(newKey, asked.owner, at)
		default:
			if ref, waits := m.waitOf(key.Session, t.owner); waits {
				s.visit(ref, at, "")
			}
		}
	}
	return nil
}

// visitLocks follows each item of a ticket that waits: to the holders that it is not compatible with, and to the
// ticket just ahead, which leads to the rest of the queue. The holders are visited once, and again only for an item that
// more of them block.
func (s *search) visitLocks(t *ticket, parent int) {
	for i, it := range t.items {
		lk := t.slots[i].lock
		if ahead := t.slots[i].prev; ahead != nil {
			s.visit(ahead.key, parent, lk.name)
		}
		if lk.fits(it) || s.visitedWidth[lk] >= it.width() {
			continue
		}
		s.visitedWidth[lk] = it.width()
		for p := lk.holders.first; p != nil && s.cost <= SearchMax; p = p.next {
			if it.compatible(s.m.tickets.Peek(p.key).items[p.item()]) {
				s.cost++
			} else {
				s.visit(p.key, parent, lk.name)
			}
		}
	}
}

// width orders the items of one lock: a holder that is in the way of one is in the way of a wider one.
func (it Item) width() uint32 {
	switch it.Mode {
	case Shared:
		return 1
	case Exclusive:
		return 2
	default:
		return it.Permits
	}
}

// describe writes the way from the new ticket to the step at, link by link. Of a long one it keeps the beginning and the
// end.
func (s *search) describe(newKey TicketRef, owner string, at int) *Detail {
	var links []Link
	wanted := "" // the lock at which the link before waits for the one at hand
	for ; at >= 0; at = s.steps[at].parent {
		st := s.steps[at]
		t := s.m.tickets.Peek(st.key)
		link := Link{TicketRef: st.key, Owner: t.owner, State: t.state, Name: st.lockName}
		if t.state == Waiting {
			link.Name = wanted
		}
		links = append(links, link)
		wanted = st.lockName
	}
	links = append(links, Link{TicketRef: newKey, Owner: owner, State: Waiting, Name: wanted})
	slices.Reverse(links)
	omitted := max(0, len(links)-2*BlockersMax)
	if omitted > 0 {
		links = slices.Delete(links, BlockersMax, BlockersMax+omitted)
	}
	return &Detail{Cycle: links, More: omitted}
}
