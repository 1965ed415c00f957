package api

import (
	"time"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// placeEvery is how often at most a ticket is told its place, or how many wait for it; placeFirst,
	// how long the first change after a rest is kept for company.
	placeEvery = time.Second
	placeFirst = 20 * time.Millisecond
	// Locks whose queues moved are looked at in rounds, so that the machine is kept for a short time
	// only; what is left over waits for the next second.
	placeRound  = 256
	placeRounds = 64
	// placeDirtyMax bounds the locks that are remembered to have moved. Of more, some holders are not
	// told that they are waited for, until the queue moves again.
	placeDirtyMax = 1 << 16
	// placeBlockersMax is how many holders a place names, placeHoldersMax how many are told.
	placeBlockersMax = 4
	placeHoldersMax  = 64
)

// places is who wants to know what about queues. The hub's lock guards it.
type places struct {
	asked map[fsm.TicketRef]*asking
	dirty map[string]struct{} // locks whose queue moved
	// wide counts, by name, the asking tickets that wait for other locks as well: which one is spoken
	// of changes with the holders too, not only with the queue.
	wide map[string]int
}

// asking is a waiting ticket whose client wants to know its place.
type asking struct {
	box   *outbox
	names []string // its locks, if they are several
	told  bool
	name  string
	ahead int
	by    uint64 // the token of the first in the way
}

func newPlaces() places {
	return places{asked: make(map[fsm.TicketRef]*asking), dirty: make(map[string]struct{}), wide: make(map[string]int)}
}

// moved notes that a queue moved; true: it is the first since all were looked at.
func (p *places) moved(name string) bool {
	if len(p.dirty) < placeDirtyMax {
		p.dirty[name] = struct{}{}
	}
	return len(p.dirty) == 1
}

// held notes that the holders of locks changed.
func (p *places) held(items []fsm.Item) (wake bool) {
	if len(p.wide) == 0 {
		return false
	}
	for i := range items {
		if p.wide[items[i].Name] > 0 && p.moved(items[i].Name) {
			wake = true
		}
	}
	return wake
}

// ask has a waiting ticket told its place from now on.
func (p *places) ask(o *outbox, ticket uint64, names []string) (wake bool) {
	if o.over {
		return false
	}
	p.forget(o, ticket)
	if o.asked == nil {
		o.asked = make(map[uint64]struct{})
	}
	o.asked[ticket] = struct{}{}
	a := &asking{box: o}
	if len(names) > 1 {
		a.names = names
		for _, name := range names {
			p.wide[name]++
		}
	}
	p.asked[fsm.TicketRef{Session: o.session, Ticket: ticket}] = a
	return p.moved(names[0])
}

// forget ends the telling of a ticket.
func (p *places) forget(o *outbox, ticket uint64) {
	if _, ok := o.asked[ticket]; ok {
		delete(o.asked, ticket)
		p.drop(fsm.TicketRef{Session: o.session, Ticket: ticket})
	}
}

func (p *places) drop(ref fsm.TicketRef) {
	for _, name := range p.asked[ref].names {
		if p.wide[name]--; p.wide[name] == 0 {
			delete(p.wide, name)
		}
	}
	delete(p.asked, ref)
}

// left forgets whatever a stream asked.
func (p *places) left(o *outbox) {
	for ticket := range o.asked {
		p.drop(fsm.TicketRef{Session: o.session, Ticket: ticket})
	}
	o.asked = nil
}

// take returns some of the locks that moved.
func (p *places) take() []string {
	names := make([]string, 0, min(len(p.dirty), placeRound))
	for name := range p.dirty {
		if len(names) == placeRound {
			break
		}
		names = append(names, name)
		delete(p.dirty, name)
	}
	return names
}

// tellPlaces tells those who asked where they stand, and holders how many wait for them. False: nothing
// had moved.
func (h *hub) tellPlaces() bool {
	for round := range placeRounds {
		h.mu.Lock()
		names := h.places.take()
		h.mu.Unlock()
		if len(names) == 0 {
			return round > 0
		}
		h.node.View(func(m *fsm.Machine) {
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, name := range names {
				h.tellLock(m, name)
			}
			h.wakeTouched()
		})
	}
	return true
}

// tellLock tells everybody at one lock. Machine and hub are locked.
func (h *hub) tellLock(m *fsm.Machine, name string) {
	told := 0
	for ref := range m.Holders(name) {
		if told++; told > placeHoldersMax {
			break
		}
		o := h.attached[ref.Session]
		waiting := uint32(m.Crowd(ref))
		if o == nil || !o.hint() || o.contended[ref.Ticket] == waiting {
			continue
		}
		if o.contended == nil {
			o.contended = make(map[uint64]uint32)
		}
		o.contended[ref.Ticket] = waiting
		o.put(note{kind: noteContended, state: fsm.TicketState{Ticket: ref.Ticket}, ahead: waiting})
	}
	if len(h.places.asked) == 0 {
		return
	}
	var blockers []*zamokpb.Blocker // the same for all who wait here
	ahead := 0
	for ref := range m.Waiters(name) {
		if a := h.places.asked[ref]; a != nil && a.box.hint() {
			if blockers == nil {
				blockers = inTheWay(m, name)
			}
			h.tellPlace(m, a, ref, name, ahead, blockers)
		}
		ahead++
	}
}

// tellPlace tells a ticket its place at a lock, if that is news.
func (h *hub) tellPlace(m *fsm.Machine, a *asking, ref fsm.TicketRef, name string, ahead int, by []*zamokpb.Blocker) {
	if a.names != nil {
		if first, n, _ := m.Place(ref); first != name { // the lock to speak of is another
			name, ahead, by = first, n, inTheWay(m, first)
		}
	}
	first := uint64(0)
	if len(by) > 0 {
		first = by[0].Token
	}
	if a.told && a.name == name && a.ahead == ahead && a.by == first {
		return
	}
	a.told, a.name, a.ahead, a.by = true, name, ahead, first
	a.box.put(note{
		kind: notePlace, state: fsm.TicketState{Ticket: ref.Ticket}, text: name, ahead: uint32(ahead), blockers: by,
	})
}

// inTheWay names what a lock is closed by: a delay, and its first holders.
func inTheWay(m *fsm.Machine, name string) []*zamokpb.Blocker {
	var all []fsm.Blocker
	lock, _ := m.Lock(name, 0)
	if lock.DelayedUntil != 0 {
		all = append(all, fsm.Blocker{Name: name, By: fsm.ByDelay, Until: lock.DelayedUntil})
	}
	for ref := range m.Holders(name) {
		if len(all) == placeBlockersMax {
			break
		}
		t, _ := m.Ticket(ref)
		all = append(all, fsm.Blocker{Name: name, By: fsm.ByHolder, TicketRef: ref, Token: t.Token, Owner: t.Owner})
	}
	blockers := toBlockers(all)
	describe(m, blockers)
	return blockers
}
