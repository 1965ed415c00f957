package api

import (
	"time"
	"unique"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// placeEvery is how often at most a ticket is told its place, or how many wait for it; placeFirst,
	// how long the first change after a rest is kept for company.
	placeEvery = time.Second
	placeFirst = 20 * time.Millisecond
	// What is sent in one read of the machine, during which nothing is applied: placeRound locks, or fewer
	// when they have come to placeSteps (a waiter counts one, a holder one for each lock it has), or
	// placeRoundFar single tickets. There are at most placeRounds of the first and placeRoundsFar of the
	// second in a second; what is left over waits for the next one.
	placeRound     = 256
	placeSteps     = 8192
	placeRounds    = 64
	placeRoundFar  = 128
	placeRoundsFar = 16
	// placeDirtyMax bounds the locks that are remembered to have moved, and the tickets that were not sent their
	// place yet. Of more, some are sent it when the queue moves again, or by chance.
	placeDirtyMax = 1 << 16
	// placeNear is how many at the head of each queue are sent their place at every turn; the others have turns of
	// their own.
	placeNear = fsm.PositionExactMax + 1
	// placeBlockersMax is how many holders a place names, placeHoldersMax how many are told.
	placeBlockersMax = 4
	placeHoldersMax  = 64
)

// places is who wants to know what about queues. The hub's lock guards it.
type places struct {
	asked map[fsm.TicketRef]*asking
	fresh []fsm.TicketRef     // asked, and not sent their place since; some may have ended
	dirty map[string]struct{} // locks whose queue moved
	// wide counts, by name, the asking tickets that wait for other locks as well: which one is spoken
	// of changes with the holders too, not only with the queue.
	wide map[string]int
}

// asking is a waiting ticket whose client wants to know its place.
type asking struct {
	box   *outbox
	names []unique.Handle[string] // its locks, if they are several; many tickets share a name
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
		a.names = make([]unique.Handle[string], len(names))
		for i, name := range names {
			a.names[i] = unique.Make(name)
			p.wide[a.names[i].Value()]++
		}
	}
	ref := fsm.TicketRef{Session: o.session, Ticket: ticket}
	p.asked[ref] = a
	if len(p.fresh) < placeDirtyMax {
		p.fresh = append(p.fresh, ref)
	}
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
	for _, handle := range p.asked[ref].names {
		name := handle.Value()
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

// some returns tickets that asked: first those that were never sent their place, then any. Of more than that, a map
// picks some by chance.
func (p *places) some(most int) []fsm.TicketRef {
	n := min(len(p.fresh), most)
	refs := append(make([]fsm.TicketRef, 0, most), p.fresh[:n]...)
	if p.fresh = p.fresh[n:]; len(p.fresh) == 0 {
		p.fresh = nil
	}
	for ref := range p.asked {
		if len(refs) == most {
			break
		}
		refs = append(refs, ref)
	}
	return refs
}

// tellPlaces tells those who asked where they stand, and holders how many wait for them. False: nothing
// had moved.
func (h *hub) tellPlaces() bool {
	moved := false
	for range placeRounds {
		h.mu.Lock()
		names := h.places.take()
		h.mu.Unlock()
		if len(names) == 0 {
			break
		}
		moved = true
		h.teller(func(t *teller) {
			for _, name := range names {
				if t.steps < placeSteps {
					t.lock(name)
				} else {
					h.places.dirty[name] = struct{}{}
				}
			}
		})
	}
	if !moved {
		return false
	}
	for range placeRoundsFar {
		h.mu.Lock()
		refs := h.places.some(placeRoundFar)
		more := len(h.places.fresh) > 0 || len(h.places.asked) > placeRoundFar
		h.mu.Unlock()
		h.teller(func(t *teller) {
			for _, ref := range refs {
				t.ticket(ref)
			}
		})
		if !more {
			break
		}
	}
	return true
}

// teller sends places during one read of the machine. Machine and hub are locked.
type teller struct {
	*hub
	machine *fsm.Machine
	steps   int
	// blockers of each lock: the same for all tickets that wait there.
	blockers map[string][]*zamokpb.Blocker
}

func (h *hub) teller(tell func(*teller)) {
	h.node.View(func(m *fsm.Machine) {
		h.mu.Lock()
		defer h.mu.Unlock()
		tell(&teller{hub: h, machine: m, blockers: make(map[string][]*zamokpb.Blocker)})
		h.wakeTouched()
	})
}

// lock sends their news to the first holders and the first waiters of a lock.
func (t *teller) lock(name string) {
	told := 0
	for ref := range t.machine.Holders(name) {
		if told++; told > placeHoldersMax {
			break
		}
		t.contended(ref)
	}
	if len(t.places.asked) == 0 {
		return
	}
	ahead := 0
	for ref := range t.machine.Waiters(name) {
		if ahead == placeNear {
			break
		}
		t.steps++
		a := t.places.asked[ref]
		switch {
		case a == nil:
		case a.names == nil || t.machine.WaitsFor(ref) == name:
			t.place(a, ref, name, ahead)
		case ahead == 0: // this lock is open to it: it waits for another one now
			t.ticket(ref)
		}
		ahead++
	}
}

// contended sends a holder the number of waiters for its locks, if that changed.
func (t *teller) contended(ref fsm.TicketRef) {
	crowd, locks := t.machine.Contention(ref)
	t.steps += locks
	o, waiting := t.attached[ref.Session], uint32(crowd)
	if o == nil || !o.hint() || o.contended[ref.Ticket] == waiting {
		return
	}
	if o.contended == nil {
		o.contended = make(map[uint64]uint32)
	}
	o.contended[ref.Ticket] = waiting
	o.put(note{kind: noteContended, state: fsm.TicketState{Ticket: ref.Ticket}, ahead: waiting})
}

// ticket sends a ticket its place, wherever in a queue that is.
func (t *teller) ticket(ref fsm.TicketRef) {
	a := t.places.asked[ref]
	if a == nil {
		return
	}
	if name, ahead, waits := t.machine.QueuePosition(ref); waits {
		t.steps += min(ahead, placeNear)
		t.place(a, ref, name, ahead)
	}
}

// place sends a ticket its place at a lock, if that changed.
func (t *teller) place(a *asking, ref fsm.TicketRef, name string, ahead int) {
	if !a.box.hint() {
		return
	}
	by, known := t.blockers[name]
	if !known {
		by = inTheWay(t.machine, name)
		t.blockers[name] = by
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
	if closed, is := m.Closed(name); is {
		all = append(all, closed)
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
