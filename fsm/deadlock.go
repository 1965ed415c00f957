package fsm

import (
	"cmp"
	"iter"
	"slices"

	"zamok/session"
)

// ownedKey is a live ticket of an owner, a logical thread inside a session. An owner's waiting
// ticket comes first, then those that it holds, by number. A search for a deadlock goes through
// them in that order, and how many an entry has depends on what they cost. So the order must follow
// from the tickets alone, and not from whether they were granted here or restored from a snapshot.
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
	return cmp.Or(cmp.Compare(k.session, l.session), cmp.Compare(k.owner, l.owner),
		cmp.Compare(k.state, l.state),
		cmp.Compare(k.ticket, l.ticket))
}

// ownedBy yields an owner's tickets in a state.
func (m *Machine) ownedBy(id session.ID, owner string, state State) iter.Seq[TicketRef] {
	return func(yield func(TicketRef) bool) {
		for k := range m.owned.From(ownedKey{id, owner, state, 0}) {
			if k.session != id || k.owner != owner || k.state != state ||
				!yield(TicketRef{id, k.ticket}) {
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

// searchStep is one ticket that the search reached, and from where.
type searchStep struct {
	key      TicketRef
	parent   int    // the step that led here; -1 = the new ticket
	lockName string // the lock at which that one waits for this one
}

// search looks for a cycle that a new ticket, waiting, would close. Every wait is for all of a
// ticket's items. A timed wait counts as any other, though a cycle through it would dissolve by
// itself.
type search struct {
	m            *Machine
	key          TicketRef      // of the new ticket
	owner        string         // its
	items        map[*lock]Item // that it asks for
	steps        []searchStep
	seen         map[TicketRef]bool
	visitedWidth map[*lock]uint32 // the greatest width for which a lock's holders were visited
	left, until  int              // the steps that are left, and those that the part at hand leaves
}

// findCycle describes a cycle that the new ticket of s, waiting, would close, or returns nil. Most
// searches end at once: no ticket waits for what the owner holds. Then it goes to all that the new
// ticket would wait for, which finds the shortest cycle. Behind a long queue that takes too many
// steps; often the other direction, from what the owner holds to all that waits for it, takes few.
// Each part has half of the steps that are left.
func (m *Machine) findCycle(s *session.Session, key TicketRef, asked *ticket) *Detail {
	steps := m.searched.left(s.Identity)
	if steps <= 0 {
		return nil
	}
	search := &search{m: m, key: key, owner: asked.owner, left: steps, until: steps / 2}
	defer func() { m.searched.spend(s.Identity, steps-search.left) }()
	search.items = make(map[*lock]Item, len(asked.items))
	for i, it := range asked.items {
		search.items[asked.slots[i].lock] = it
	}
	if !search.hasWaiters() {
		return nil
	}
	search.until = search.left / 2
	if cycle := search.ahead(asked); cycle != nil || !search.isCut() {
		return cycle
	}
	search.until = 0
	return search.behind()
}

// isCut reports whether the part at hand has used its steps.
func (s *search) isCut() bool { return s.left <= s.until }

// hasWaiters reports whether a ticket waits for what the owner of the new ticket holds, or the new
// one would. If not, there is no cycle through it. With too many locks to check, the answer is yes.
func (s *search) hasWaiters() bool {
	for ref := range s.m.ownedBy(s.key.Session, s.owner, Granted) {
		t := s.m.tickets.Peek(ref)
		for i := range t.slots {
			lk := t.slots[i].lock
			if _, wanted := s.items[lk]; wanted || lk.waiters.len > 0 || s.isCut() {
				return true
			}
			s.left--
		}
	}
	return false
}

// begin makes the search forget the steps that it took.
func (s *search) begin() {
	s.steps, s.seen, s.visitedWidth = nil, make(map[TicketRef]bool), make(map[*lock]uint32)
}

func (s *search) visit(key TicketRef, parent int, lockName string) {
	if s.isCut() {
		return
	}
	s.left--
	if !s.seen[key] {
		s.seen[key] = true
		s.steps = append(s.steps, searchStep{key, parent, lockName})
	}
}

// ahead goes from the new ticket to all that it would wait for, nearest first.
func (s *search) ahead(asked *ticket) *Detail {
	s.begin()
	s.visitLocks(asked, -1)
	for at := 0; at < len(s.steps) && !s.isCut(); at++ {
		key := s.steps[at].key
		t := s.m.tickets.Peek(key)
		switch {
		case t.state == Waiting:
			s.visitLocks(t, at)
		case t.owner == "":
			// Whether its holder waits, and for what, is unknown.
		case key.Session == s.key.Session && t.owner == s.owner:
			return s.describe(at)
		default:
			if ref, waits := s.m.waitOf(key.Session, t.owner); waits {
				s.visit(ref, at, "")
			}
		}
	}
	return nil
}

// visitLocks follows each item of a ticket that waits: to the holders that it is not compatible
// with, and to the ticket just ahead, which leads to the rest of the queue. The holders are visited
// once, and again only for an item that more of them block.
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
		for p := lk.holders.first; p != nil && !s.isCut(); p = p.next {
			if it.compatible(s.m.tickets.Peek(p.key).items[p.item()]) {
				s.left--
			} else {
				s.visit(p.key, parent, lk.name)
			}
		}
	}
}

// behind goes the same ways in the other direction, from what the owner holds, until the new ticket
// would wait for a step.
func (s *search) behind() *Detail {
	s.begin()
	s.visitOwned(s.key.Session, s.owner, -1)
	for at := 0; at < len(s.steps); at++ {
		key := s.steps[at].key
		t := s.m.tickets.Peek(key)
		for i := range t.slots {
			if s.isCut() {
				return nil
			}
			s.left--
			p := &t.slots[i]
			asked, asks := s.items[p.lock]
			if asks && (t.state == Waiting || !asked.compatible(t.items[i])) {
				return s.describeTurned(at, p.lock.name)
			}
			if p = s.behindSlot(t.state, t.items[i], p); p != nil {
				s.visit(p.key, at, p.lock.name)
			}
		}
		if t.state == Waiting && t.owner != "" {
			s.visitOwned(key.Session, t.owner, at)
		}
	}
	return nil
}

// visitOwned visits what an owner holds.
func (s *search) visitOwned(id session.ID, owner string, parent int) {
	for ref := range s.m.ownedBy(id, owner, Granted) {
		if s.isCut() {
			return
		}
		s.visit(ref, parent, "")
	}
}

// behindSlot returns the slot just behind that of an item that waits, or the first that waits for
// the holder of one: it leads to the rest of the queue.
func (s *search) behindSlot(state State, it Item, p *slot) *slot {
	if state == Waiting {
		return p.next
	}
	for w := p.lock.waiters.first; w != nil && !s.isCut(); w = w.next {
		if !s.m.tickets.Peek(w.key).items[w.item()].compatible(it) {
			return w
		}
		s.left--
	}
	return nil
}

// width orders the items of one lock: a holder that is in the way of one is in the way of a wider
// one.
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

// describeTurned describes the cycle of which the new ticket waits, at that lock, for the step at,
// and each step for its parent.
func (s *search) describeTurned(at int, lockName string) *Detail {
	var steps []searchStep
	for ; at >= 0; at = s.steps[at].parent {
		steps = append(steps, searchStep{s.steps[at].key, len(steps) - 1, lockName})
		lockName = s.steps[at].lockName
	}
	s.steps = steps
	return s.describe(len(steps) - 1)
}

// describe writes the way from the new ticket to the step at, link by link. Of a long one it keeps
// the beginning and the end.
func (s *search) describe(at int) *Detail {
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
	links = append(links, Link{TicketRef: s.key, Owner: s.owner, State: Waiting, Name: wanted})
	slices.Reverse(links)
	omitted := max(0, len(links)-2*BlockersMax)
	if omitted > 0 {
		links = slices.Delete(links, BlockersMax, BlockersMax+omitted)
	}
	return &Detail{Cycle: links, More: omitted}
}
