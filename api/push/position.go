package push

import (
	"time"

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

// positions has the locks whose queues changed, and how many waiting tickets asked for their positions. The hub's
// lock guards it.
type positions struct {
	asked int                 // the sum of all Queue.asked
	wide  int                 // those of them that wait for several locks
	fresh []fsm.TicketRef     // asked, and not sent their position since; some may have ended
	dirty map[string]struct{} // locks whose queue changed
}

// positionRequest is a waiting ticket whose client asked for its position, and what it was sent last.
type positionRequest struct {
	// wide: it waits for several locks, so which of them is reported depends on their holders too, not only on the queue.
	wide bool
	sent sentPosition
}

type sentPosition struct {
	name  string // "": none yet
	ahead int
	by    uint64 // the token of the first blocker
}

func newPositions() positions { return positions{dirty: make(map[string]struct{})} }

// queueMoved notes that the queue of a lock changed.
func (h *Hub) queueMoved(name string) {
	if dirty := h.positions.dirty; len(dirty) < positionDirtyMax {
		dirty[name] = struct{}{}
	}
	signal(h.moved)
}

// holdersChanged notes that the holders of locks changed.
func (h *Hub) holdersChanged(m *fsm.Machine, items []fsm.Item) {
	for i := 0; i < len(items) && h.positions.wide > 0; i++ {
		for range m.Waiters(items[i].Name) {
			h.queueMoved(items[i].Name)
			break
		}
	}
}

// request reports the positions of a waiting ticket from now on.
func (h *Hub) request(q *Queue, ticket uint64, names []string) {
	p := &h.positions
	p.cancel(q, ticket)
	if q.asked == nil {
		q.asked = make(map[uint64]*positionRequest)
	}
	q.asked[ticket] = &positionRequest{wide: len(names) > 1}
	if p.asked++; len(names) > 1 {
		p.wide++
	}
	if len(p.fresh) < positionDirtyMax {
		p.fresh = append(p.fresh, fsm.TicketRef{Session: q.Session, Ticket: ticket})
	}
	h.queueMoved(names[0])
}

// cancel ends the reports to a ticket.
func (p *positions) cancel(q *Queue, ticket uint64) {
	if request := q.asked[ticket]; request != nil {
		delete(q.asked, ticket)
		if p.asked--; request.wide {
			p.wide--
		}
	}
}

// streamEnded ends the reports to all tickets of a stream.
func (p *positions) streamEnded(q *Queue) {
	for ticket := range q.asked {
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
// than that, the iteration of the maps picks some by chance.
func (h *Hub) takeAsked(most int) []fsm.TicketRef {
	p := &h.positions
	n := min(len(p.fresh), most)
	refs := append(make([]fsm.TicketRef, 0, most), p.fresh[:n]...)
	if p.fresh = p.fresh[n:]; len(p.fresh) == 0 {
		p.fresh = nil
	}
	for id, q := range h.attached {
		for ticket := range q.asked {
			if len(refs) == most {
				return refs
			}
			refs = append(refs, fsm.TicketRef{Session: id, Ticket: ticket})
		}
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
		refs := h.takeAsked(positionRoundFar)
		more = len(h.positions.fresh) > 0 || h.positions.asked > positionRoundFar
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
	if r.positions.asked == 0 {
		return
	}
	ahead := 0
	for ref := range r.machine.Waiters(name) {
		if ahead == positionNear {
			break
		}
		r.steps++
		q, a := r.requestOf(ref)
		switch {
		case a == nil:
		case !a.wide || r.machine.BlockedLock(ref) == name:
			r.position(q, a, ref, name, ahead)
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
	q, a := r.requestOf(ref)
	if a == nil {
		return
	}
	if name, ahead, waits := r.machine.QueuePosition(ref); waits {
		r.steps += min(ahead, positionNear)
		r.position(q, a, ref, name, ahead)
	}
}

// requestOf is the request of a ticket for its positions, or nil, and its stream's queue.
func (r *reporter) requestOf(ref fsm.TicketRef) (*Queue, *positionRequest) {
	q := r.attached[ref.Session]
	if q == nil {
		return nil, nil
	}
	return q, q.asked[ref.Ticket]
}

// position sends a ticket its position at a lock, if that changed.
func (r *reporter) position(q *Queue, a *positionRequest, ref fsm.TicketRef, name string, ahead int) {
	if !q.hasRoom() {
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
	q.add(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Position{Position: &zamokpb.QueuePosition{
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
