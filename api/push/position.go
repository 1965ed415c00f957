package push

import (
	"time"
	"unique"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// positionEvery is the least time between two reports to a ticket; positionFirst, how long the first
	// change after a rest waits for others.
	positionEvery = time.Second
	positionFirst = 20 * time.Millisecond
	// What is sent in one read of the state machine, during which nothing is applied: positionRound locks, or
	// fewer when they have come to positionSteps (a waiter counts one, a holder one for each lock it has), or
	// positionRoundFar single tickets. There are at most positionRounds of the first and positionRoundsFar of
	// the second in a second; the rest waits for the next one.
	positionRound     = 256
	positionSteps     = 8192
	positionRounds    = 64
	positionRoundFar  = 128
	positionRoundsFar = 16
	// positionDirtyMax bounds the locks that are remembered to have changed, and the tickets that were not
	// sent their position yet. Of more, some are sent it when the queue changes again, or by chance.
	positionDirtyMax = 1 << 16
	// positionNear is how many at the head of each queue are sent their position each time; the others take
	// turns.
	positionNear = fsm.PositionExactMax + 1
	// positionBlockersMax is how many holders a position names, positionHoldersMax how many are sent the
	// contention.
	positionBlockersMax = 4
	positionHoldersMax  = 64
)

// positions has the waiting tickets whose clients asked for positions, and the locks whose queues changed.
// The hub's lock guards it.
type positions struct {
	asked map[fsm.TicketRef]*positionRequest
	fresh []fsm.TicketRef     // asked, and not sent their position since; some may have ended
	dirty map[string]struct{} // locks whose queue changed
	// wide counts, by name, the asking tickets that wait for other locks as well: which of its locks is
	// reported depends on the holders too, not only on the queue.
	wide map[string]int
}

// positionRequest is a waiting ticket whose client asked for its position, and what it was sent last.
type positionRequest struct {
	queue *Queue
	names []unique.Handle[string] // its locks, if they are several; many tickets share a name
	sent  sentPosition
}

type sentPosition struct {
	name  string // "": none yet
	ahead int
	by    uint64 // the token of the first blocker
}

func newPositions() positions {
	return positions{asked: make(map[fsm.TicketRef]*positionRequest), dirty: make(map[string]struct{}), wide: make(map[string]int)}
}

// queueMoved notes that the queue of a lock changed.
func (h *Hub) queueMoved(name string) {
	if dirty := h.positions.dirty; len(dirty) < positionDirtyMax {
		dirty[name] = struct{}{}
	}
	signal(h.moved)
}

// holdersChanged notes that the holders of locks changed.
func (h *Hub) holdersChanged(items []fsm.Item) {
	if len(h.positions.wide) == 0 {
		return
	}
	for i := range items {
		if h.positions.wide[items[i].Name] > 0 {
			h.queueMoved(items[i].Name)
		}
	}
}

// request reports the positions of a waiting ticket from now on.
func (h *Hub) request(q *Queue, ticket uint64, names []string) {
	p := &h.positions
	p.cancel(q, ticket)
	if q.positionWanted == nil {
		q.positionWanted = make(map[uint64]struct{})
	}
	q.positionWanted[ticket] = struct{}{}
	a := &positionRequest{queue: q}
	if len(names) > 1 {
		a.names = make([]unique.Handle[string], len(names))
		for i, name := range names {
			a.names[i] = unique.Make(name)
			p.wide[a.names[i].Value()]++
		}
	}
	ref := fsm.TicketRef{Session: q.Session, Ticket: ticket}
	p.asked[ref] = a
	if len(p.fresh) < positionDirtyMax {
		p.fresh = append(p.fresh, ref)
	}
	h.queueMoved(names[0])
}

// cancel ends the reports to a ticket.
func (p *positions) cancel(q *Queue, ticket uint64) {
	if _, ok := q.positionWanted[ticket]; !ok {
		return
	}
	delete(q.positionWanted, ticket)
	ref := fsm.TicketRef{Session: q.Session, Ticket: ticket}
	for _, handle := range p.asked[ref].names {
		name := handle.Value()
		if p.wide[name]--; p.wide[name] == 0 {
			delete(p.wide, name)
		}
	}
	delete(p.asked, ref)
}

// streamEnded ends the reports to all tickets of a stream.
func (p *positions) streamEnded(q *Queue) {
	for ticket := range q.positionWanted {
		p.cancel(q, ticket)
	}
}

// takeDirty returns some of the locks that changed.
func (p *positions) takeDirty() []string {
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

// takeAsked returns tickets that asked: first those that were never sent their position, then any. Of more
// than that, the iteration of the map picks some by chance.
func (p *positions) takeAsked(most int) []fsm.TicketRef {
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

// sendPositions sends their positions to waiters that asked, and to holders how many wait for them. False: no
// queue had changed.
func (h *Hub) sendPositions() bool {
	changed := false
	for range positionRounds {
		h.mu.Lock()
		names := h.positions.takeDirty()
		h.mu.Unlock()
		if len(names) == 0 {
			break
		}
		changed = true
		h.report(func(r *reporter) {
			for _, name := range names {
				if r.steps < positionSteps {
					r.lock(name)
				} else {
					h.positions.dirty[name] = struct{}{}
				}
			}
		})
	}
	for more, round := changed, 0; more && round < positionRoundsFar; round++ {
		h.mu.Lock()
		refs := h.positions.takeAsked(positionRoundFar)
		more = len(h.positions.fresh) > 0 || len(h.positions.asked) > positionRoundFar
		h.mu.Unlock()
		h.report(func(r *reporter) {
			for _, ref := range refs {
				r.ticket(ref)
			}
		})
	}
	return changed
}

// reporter sends positions during one read of the state machine. State machine and hub are locked.
type reporter struct {
	*Hub
	machine *fsm.Machine
	steps   int
	// blockers of each lock: the same for all tickets that wait there.
	blockers map[string][]*zamokpb.Blocker
}

func (h *Hub) report(round func(*reporter)) {
	h.node.View(func(m *fsm.Machine) {
		h.mu.Lock()
		defer h.mu.Unlock()
		round(&reporter{Hub: h, machine: m, blockers: make(map[string][]*zamokpb.Blocker)})
	})
}

// lock reports to the first holders and the first waiters of a lock.
func (r *reporter) lock(name string) {
	sent := 0
	for ref := range r.machine.Holders(name) {
		if sent++; sent > positionHoldersMax {
			break
		}
		r.contended(ref)
	}
	if len(r.positions.asked) == 0 {
		return
	}
	ahead := 0
	for ref := range r.machine.Waiters(name) {
		if ahead == positionNear {
			break
		}
		r.steps++
		a := r.positions.asked[ref]
		switch {
		case a == nil:
		case a.names == nil || r.machine.BlockedLock(ref) == name:
			r.position(a, ref, name, ahead)
		case ahead == 0: // this lock is open to it: it waits for another one now
			r.ticket(ref)
		}
		ahead++
	}
}

// contended sends a holder the number of waiters for its locks, if that changed.
func (r *reporter) contended(ref fsm.TicketRef) {
	waiters, locks := r.machine.Contention(ref)
	r.steps += locks
	q, waiting := r.attached[ref.Session], uint32(waiters)
	if q == nil || !q.hasRoom() || q.contended[ref.Ticket] == waiting {
		return
	}
	if q.contended == nil {
		q.contended = make(map[uint64]uint32)
	}
	q.contended[ref.Ticket] = waiting
	q.add(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Contended{Contended: &zamokpb.Contended{
		Ticket: ref.Ticket, Waiting: waiting,
	}}})
}

// ticket sends a ticket its position, wherever in a queue that is.
func (r *reporter) ticket(ref fsm.TicketRef) {
	a := r.positions.asked[ref]
	if a == nil {
		return
	}
	if name, ahead, waits := r.machine.QueuePosition(ref); waits {
		r.steps += min(ahead, positionNear)
		r.position(a, ref, name, ahead)
	}
}

// position sends a ticket its position at a lock, if that changed.
func (r *reporter) position(a *positionRequest, ref fsm.TicketRef, name string, ahead int) {
	if !a.queue.hasRoom() {
		return
	}
	by, known := r.blockers[name]
	if !known {
		by = blockersOf(r.machine, name)
		r.blockers[name] = by
	}
	now := sentPosition{name: name, ahead: ahead}
	if len(by) > 0 {
		now.by = by[0].Token
	}
	if a.sent == now {
		return
	}
	a.sent = now
	a.queue.add(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Position{Position: &zamokpb.QueuePosition{
		Ticket: ref.Ticket, Name: name, Ahead: uint32(ahead), Blockers: by,
	}}})
}

// blockersOf names what blocks a lock: a delay, and its first holders.
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
	blockers := wire.Blockers(all)
	wire.Describe(m, blockers)
	return blockers
}
