package api

import (
	"time"
	"unique"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// positionEvery is how often at most a ticket is told its place, or how many wait for it; positionFirst,
	// how long the first change after a rest is kept for company.
	positionEvery = time.Second
	positionFirst = 20 * time.Millisecond
	// What is sent in one read of the machine, during which nothing is applied: positionRound locks, or fewer
	// when they have come to positionSteps (a waiter counts one, a holder one for each lock it has), or
	// positionRoundFar single tickets. There are at most positionRounds of the first and positionRoundsFar of the
	// second in a second; what is left over waits for the next one.
	positionRound     = 256
	positionSteps     = 8192
	positionRounds    = 64
	positionRoundFar  = 128
	positionRoundsFar = 16
	// positionDirtyMax bounds the locks that are remembered to have moved, and the tickets that were not sent their
	// place yet. Of more, some are sent it when the queue moves again, or by chance.
	positionDirtyMax = 1 << 16
	// positionNear is how many at the head of each queue are sent their place at every turn; the others have turns of
	// their own.
	positionNear = fsm.PositionExactMax + 1
	// positionBlockersMax is how many holders a place names, positionHoldersMax how many are told.
	positionBlockersMax = 4
	positionHoldersMax  = 64
)

// positions is who wants to know what about queues. The hub's lock guards it.
type positions struct {
	asked map[fsm.TicketRef]*positionRequest
	fresh []fsm.TicketRef     // asked, and not sent their place since; some may have ended
	dirty map[string]struct{} // locks whose queue moved
	// wide counts, by name, the asking tickets that wait for other locks as well: which one is spoken
	// of changes with the holders too, not only with the queue.
	wide map[string]int
}

// positionRequest is a waiting ticket whose client wants to know its place.
type positionRequest struct {
	queue *sendQueue
	names []unique.Handle[string] // its locks, if they are several; many tickets share a name
	sent  bool
	name  string
	ahead int
	by    uint64 // the token of the first in the way
}

func newPositions() positions {
	return positions{asked: make(map[fsm.TicketRef]*positionRequest), dirty: make(map[string]struct{}), wide: make(map[string]int)}
}

// queueMoved notes that a queue moved; true: it is the first since all were looked at.
func (p *positions) queueMoved(name string) bool {
	if len(p.dirty) < positionDirtyMax {
		p.dirty[name] = struct{}{}
	}
	return len(p.dirty) == 1
}

// granted notes that the holders of locks changed.
func (p *positions) granted(items []fsm.Item) (wake bool) {
	if len(p.wide) == 0 {
		return false
	}
	for i := range items {
		if p.wide[items[i].Name] > 0 && p.queueMoved(items[i].Name) {
			wake = true
		}
	}
	return wake
}

// request has a waiting ticket told its place from now on.
func (p *positions) request(o *sendQueue, ticket uint64, names []string) (wake bool) {
	if o.ended {
		return false
	}
	p.cancel(o, ticket)
	if o.positionWanted == nil {
		o.positionWanted = make(map[uint64]struct{})
	}
	o.positionWanted[ticket] = struct{}{}
	a := &positionRequest{queue: o}
	if len(names) > 1 {
		a.names = make([]unique.Handle[string], len(names))
		for i, name := range names {
			a.names[i] = unique.Make(name)
			p.wide[a.names[i].Value()]++
		}
	}
	ref := fsm.TicketRef{Session: o.session, Ticket: ticket}
	p.asked[ref] = a
	if len(p.fresh) < positionDirtyMax {
		p.fresh = append(p.fresh, ref)
	}
	return p.queueMoved(names[0])
}

// cancel ends the telling of a ticket.
func (p *positions) cancel(o *sendQueue, ticket uint64) {
	if _, ok := o.positionWanted[ticket]; ok {
		delete(o.positionWanted, ticket)
		p.ticketEnded(fsm.TicketRef{Session: o.session, Ticket: ticket})
	}
}

func (p *positions) ticketEnded(ref fsm.TicketRef) {
	for _, handle := range p.asked[ref].names {
		name := handle.Value()
		if p.wide[name]--; p.wide[name] == 0 {
			delete(p.wide, name)
		}
	}
	delete(p.asked, ref)
}

// disconnected forgets whatever a stream asked.
func (p *positions) disconnected(o *sendQueue) {
	for ticket := range o.positionWanted {
		p.ticketEnded(fsm.TicketRef{Session: o.session, Ticket: ticket})
	}
	o.positionWanted = nil
}

// take returns some of the locks that moved.
func (p *positions) take() []string {
	names := make([]string, 0, min(len(p.dirty), positionRound))
	for name := range p.dirty {
		if len(names) == positionRound {
			break
		}
		names = append(names, name)
		delete(p.dirty, name)
	}
	return names
}

// some returns tickets that asked: first those that were never sent their place, then any. Of more than that, a map
// picks some by chance.
func (p *positions) some(most int) []fsm.TicketRef {
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

// sendPositions tells those who asked where they stand, and holders how many wait for them. False: nothing
// had moved.
func (h *hub) sendPositions() bool {
	moved := false
	for range positionRounds {
		h.mu.Lock()
		names := h.positions.take()
		h.mu.Unlock()
		if len(names) == 0 {
			break
		}
		moved = true
		h.reporter(func(t *reporter) {
			for _, name := range names {
				if t.steps < positionSteps {
					t.lock(name)
				} else {
					h.positions.dirty[name] = struct{}{}
				}
			}
		})
	}
	if !moved {
		return false
	}
	for range positionRoundsFar {
		h.mu.Lock()
		refs := h.positions.some(positionRoundFar)
		more := len(h.positions.fresh) > 0 || len(h.positions.asked) > positionRoundFar
		h.mu.Unlock()
		h.reporter(func(t *reporter) {
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

// reporter sends places during one read of the machine. Machine and hub are locked.
type reporter struct {
	*hub
	machine *fsm.Machine
	steps   int
	// blockers of each lock: the same for all tickets that wait there.
	blockers map[string][]*zamokpb.Blocker
}

func (h *hub) reporter(tell func(*reporter)) {
	h.node.View(func(m *fsm.Machine) {
		h.mu.Lock()
		defer h.mu.Unlock()
		tell(&reporter{hub: h, machine: m, blockers: make(map[string][]*zamokpb.Blocker)})
		h.wakeTouched()
	})
}

// lock sends their news to the first holders and the first waiters of a lock.
func (t *reporter) lock(name string) {
	sent := 0
	for ref := range t.machine.Holders(name) {
		if sent++; sent > positionHoldersMax {
			break
		}
		t.contended(ref)
	}
	if len(t.positions.asked) == 0 {
		return
	}
	ahead := 0
	for ref := range t.machine.Waiters(name) {
		if ahead == positionNear {
			break
		}
		t.steps++
		a := t.positions.asked[ref]
		switch {
		case a == nil:
		case a.names == nil || t.machine.BlockedLock(ref) == name:
			t.position(a, ref, name, ahead)
		case ahead == 0: // this lock is open to it: it waits for another one now
			t.ticket(ref)
		}
		ahead++
	}
}

// contended sends a holder the number of waiters for its locks, if that changed.
func (t *reporter) contended(ref fsm.TicketRef) {
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
	o.enqueue(message{kind: messageContended, state: fsm.TicketState{Ticket: ref.Ticket}, ahead: waiting})
}

// ticket sends a ticket its place, wherever in a queue that is.
func (t *reporter) ticket(ref fsm.TicketRef) {
	a := t.positions.asked[ref]
	if a == nil {
		return
	}
	if name, ahead, waits := t.machine.QueuePosition(ref); waits {
		t.steps += min(ahead, positionNear)
		t.position(a, ref, name, ahead)
	}
}

// position sends a ticket its place at a lock, if that changed.
func (t *reporter) position(a *positionRequest, ref fsm.TicketRef, name string, ahead int) {
	if !a.queue.hint() {
		return
	}
	by, known := t.blockers[name]
	if !known {
		by = blockersOf(t.machine, name)
		t.blockers[name] = by
	}
	first := uint64(0)
	if len(by) > 0 {
		first = by[0].Token
	}
	if a.sent && a.name == name && a.ahead == ahead && a.by == first {
		return
	}
	a.sent, a.name, a.ahead, a.by = true, name, ahead, first
	a.queue.enqueue(message{
		kind: messagePosition, state: fsm.TicketState{Ticket: ref.Ticket}, text: name, ahead: uint32(ahead), blockers: by,
	})
}

// blockersOf names what a lock is closed by: a delay, and its first holders.
func blockersOf(m *fsm.Machine, name string) []*zamokpb.Blocker {
	var all []fsm.Blocker
	if closed, is := m.ClosedBy(name); is {
		all = append(all, closed)
	}
	for ref := range m.Holders(name) {
		if len(all) == positionBlockersMax {
			break
		}
		t, _ := m.Ticket(ref)
		all = append(all, fsm.Blocker{Name: name, By: fsm.ByHolder, TicketRef: ref, Token: t.Token, Owner: t.Owner})
	}
	blockers := toBlockers(all)
	describe(m, blockers)
	return blockers
}
