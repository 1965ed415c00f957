package push

import (
	"time"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// positionEvery is the least time between two positions that a ticket is sent, after the first
	// one; positionFirst, how long the first change after a rest waits for others.
	positionEvery = time.Second
	positionFirst = 20 * time.Millisecond
	// What is sent in one read of the state machine, during which nothing is applied: locks until
	// they have come to positionSteps (a lock counts positionLock, a waiter one, a holder one for
	// each lock it has), or positionRoundFar single tickets. There are at most positionRounds of
	// the first and positionRoundsFar of the second in a second; the rest waits for the next one.
	positionSteps     = 8192
	positionLock      = positionSteps / 256
	positionRounds    = 64
	positionRoundFar  = 128
	positionRoundsFar = 16
	// positionDirtyMax bounds the locks that are remembered to have changed. Of more, the waiters
	// are sent their positions when the queue changes again, or by chance.
	positionDirtyMax = 1 << 16
	// positionNear is how many at the head of each queue are sent their position each time; the
	// others in turn.
	positionNear = fsm.PositionExactMax + 1
	// positionBlockersMax is how many holders a position names, positionHoldersMax how many are
	// sent the number of waiters.
	positionBlockersMax = 4
	positionHoldersMax  = 64
)

// positionRequest is a waiting ticket whose client wants its positions, and what it was sent last.
type positionRequest struct {
	// wide: it waits for several locks, so which of them its position names depends on their
	// holders too, not only on the queue.
	wide  bool
	name  string // "": it was not sent its position yet
	ahead int
	by    uint64 // the token of the first blocker
}

// queueMoved records that the queue of a lock changed.
func (h *Hub) queueMoved(name string) {
	if len(h.dirty) < positionDirtyMax {
		h.dirty[name] = struct{}{}
	}
	signal(h.moved)
}

// holdersChanged records that the holders of locks changed, which positions name.
func (h *Hub) holdersChanged(m *fsm.Machine, items []fsm.Item) {
	for i := 0; i < len(items) && h.positions > 0; i++ {
		if lock, _ := m.Lock(items[i].Name); lock.Waiters > 0 {
			h.queueMoved(lock.Name)
		}
	}
}

// request begins to send a ticket that waits for so many locks its positions, after the first one.
func (h *Hub) request(q *Queue, ticket uint64, locks int) {
	h.cancelRequest(q, ticket)
	q.positions[ticket] = &positionRequest{wide: locks > 1}
	h.positions++
}

// cancelRequest sends a ticket no more positions.
func (h *Hub) cancelRequest(q *Queue, ticket uint64) {
	if q.positions[ticket] != nil {
		delete(q.positions, ticket)
		h.positions--
	}
}

// sendPositions sends their positions to waiters that want them, and to holders how many wait for
// them. False: no queue had changed. Where there is more than one call sends, the iteration of the
// maps picks some by chance.
func (h *Hub) sendPositions() bool {
	changed := false
	for more, round := true, 0; more && round < positionRounds; round++ {
		h.sendRound(func(r *positionRound) {
			for name := range h.dirty {
				if changed = true; r.steps >= positionSteps {
					break
				}
				delete(h.dirty, name)
				r.lock(name)
			}
			more = len(h.dirty) > 0
		})
	}
	for more, round := changed, 0; more && round < positionRoundsFar; round++ {
		h.sendRound(func(r *positionRound) {
			more = h.positions > positionRoundFar
			r.tickets()
		})
	}
	return changed
}

// positionRound sends positions during one read of the state machine. State machine and hub are
// locked.
type positionRound struct {
	*Hub
	machine *fsm.Machine
	steps   int
	// blockers of each lock: the same for all tickets that wait there.
	blockers map[string][]*zamokpb.Blocker
}

// sendRound makes a round.
func (h *Hub) sendRound(round func(*positionRound)) {
	h.node.View(func(m *fsm.Machine) {
		h.mu.Lock()
		defer h.mu.Unlock()
		round(&positionRound{Hub: h, machine: m, blockers: make(map[string][]*zamokpb.Blocker)})
	})
}

// lock sends to the first holders and the first waiters of a lock.
func (r *positionRound) lock(name string) {
	r.steps += positionLock
	sent := 0
	for ref := range r.machine.Holders(name) {
		if sent++; sent > positionHoldersMax {
			break
		}
		r.contention(ref)
	}
	if r.positions == 0 {
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

// contention sends a holder the number of waiters for its locks, if that changed.
func (r *positionRound) contention(ref fsm.TicketRef) {
	waiters, locks := r.machine.Contention(ref)
	r.steps += locks
	q, waiting := r.attached[ref.Session], uint32(waiters)
	if q == nil || !q.hasRoom() || q.waitersSent[ref.Ticket] == waiting {
		return
	}
	q.waitersSent[ref.Ticket] = waiting
	q.add(&zamokpb.ServerMessage{
		Message: &zamokpb.ServerMessage_Contended{Contended: &zamokpb.Contended{
			Ticket: ref.Ticket, Waiting: waiting,
		}}}, true)
}

// tickets sends their positions to some of the tickets that want them.
func (r *positionRound) tickets() {
	left := positionRoundFar
	for id, q := range r.attached {
		for ticket := range q.positions {
			if left--; left < 0 {
				return
			}
			r.ticket(fsm.TicketRef{Session: id, Ticket: ticket})
		}
	}
}

// ticket sends a ticket its position, wherever in a queue that is.
func (r *positionRound) ticket(ref fsm.TicketRef) {
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
func (r *positionRound) requestOf(ref fsm.TicketRef) (*Queue, *positionRequest) {
	q := r.attached[ref.Session]
	if q == nil {
		return nil, nil
	}
	return q, q.positions[ref.Ticket]
}

// position sends a ticket its position at a lock, if that changed. The first one is always sent.
func (r *positionRound) position(q *Queue, a *positionRequest, ref fsm.TicketRef, name string,
	ahead int) {
	if a.name != "" && !q.hasRoom() {
		return
	}
	by := r.blockersOf(name)
	now := positionRequest{wide: a.wide, name: name, ahead: ahead}
	if len(by) > 0 {
		now.by = by[0].Token
	}
	if *a == now {
		return
	}
	*a = now
	q.add(&zamokpb.ServerMessage{
		Message: &zamokpb.ServerMessage_Position{Position: &zamokpb.QueuePosition{
			Ticket: ref.Ticket, Name: name, Ahead: uint32(ahead), Blockers: by,
		}}}, true)
}

// blockersOf names what blocks a lock: a delay, and its first holders.
func (r *positionRound) blockersOf(name string) []*zamokpb.Blocker {
	if by, known := r.blockers[name]; known {
		return by
	}
	all := r.machine.LockBlockers(name)
	r.blockers[name] = wire.Blockers(all[:min(len(all), positionBlockersMax)])
	wire.Describe(r.machine, r.blockers[name])
	return r.blockers[name]
}
