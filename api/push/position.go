package push

import (
	"time"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// positionEvery is the least time between two reports to a ticket, after the first one; positionFirst, how
	// long the first change after a rest waits for others.
	positionEvery = time.Second
	positionFirst = 20 * time.Millisecond
	// What is sent in one read of the state machine, during which nothing is applied: locks until they have come to
	// positionSteps (a lock counts positionLock, a waiter one, a holder one for each lock it has), or
	// positionRoundFar single tickets. There are at most positionRounds of the first and positionRoundsFar of
	// the second in a second; the rest waits for the next one.
	positionSteps     = 8192
	positionLock      = positionSteps / 256
	positionRounds    = 64
	positionRoundFar  = 128
	positionRoundsFar = 16
	// positionDirtyMax bounds the locks that are remembered to have changed. Of more, the waiters are sent their
	// positions when the queue changes again, or by chance.
	positionDirtyMax = 1 << 16
	// positionNear is how many at the head of each queue are sent their position each time; the others take
	// turns.
	positionNear = fsm.PositionExactMax + 1
	// positionBlockersMax is how many holders a position names, positionHoldersMax how many are sent the
	// contention.
	positionBlockersMax = 4
	positionHoldersMax  = 64
)

// positionRequest is a waiting ticket whose client asked for its position, and what it was sent last.
type positionRequest struct {
	// wide: it waits for several locks, so which of them is reported depends on their holders too, not only on the queue.
	wide  bool
	name  string // "": it was not sent its position yet
	ahead int
	by    uint64 // the token of the first blocker
}

// queueMoved notes that the queue of a lock changed.
func (h *Hub) queueMoved(name string) {
	if len(h.dirty) < positionDirtyMax {
		h.dirty[name] = struct{}{}
	}
	signal(h.moved)
}

// holdersChanged notes that the holders of locks changed, which positions name.
func (h *Hub) holdersChanged(m *fsm.Machine, items []fsm.Item) {
	for i := 0; i < len(items) && h.asked > 0; i++ {
		if lock, _ := m.Lock(items[i].Name); lock.Waiters > 0 {
			h.queueMoved(lock.Name)
		}
	}
}

// request reports the positions of a ticket that waits for so many locks, after the first one.
func (h *Hub) request(q *Queue, ticket uint64, locks int) {
	h.cancelRequest(q, ticket)
	q.asked[ticket] = &positionRequest{wide: locks > 1}
	h.asked++
}

// cancelRequest ends the reports to a ticket.
func (h *Hub) cancelRequest(q *Queue, ticket uint64) {
	if q.asked[ticket] != nil {
		delete(q.asked, ticket)
		h.asked--
	}
}

// sendPositions sends their positions to waiters that asked, and to holders how many wait for them. False: no
// queue had changed. Where there is more than one call sends, the iteration of the maps picks some by chance.
func (h *Hub) sendPositions() bool {
	changed := false
	for more, round := true, 0; more && round < positionRounds; round++ {
		h.report(func(r *reporter) {
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
		h.report(func(r *reporter) {
			more = h.asked > positionRoundFar
			r.tickets()
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
	r.steps += positionLock
	sent := 0
	for ref := range r.machine.Holders(name) {
		if sent++; sent > positionHoldersMax {
			break
		}
		r.contended(ref)
	}
	if r.asked == 0 {
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
	q.contended[ref.Ticket] = waiting
	q.add(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Contended{Contended: &zamokpb.Contended{
		Ticket: ref.Ticket, Waiting: waiting,
	}}}, true)
}

// tickets reports to some of the tickets that asked.
func (r *reporter) tickets() {
	left := positionRoundFar
	for id, q := range r.attached {
		for ticket := range q.asked {
			if left--; left < 0 {
				return
			}
			r.ticket(fsm.TicketRef{Session: id, Ticket: ticket})
		}
	}
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

// position sends a ticket its position at a lock, if that changed. The first one is always sent.
func (r *reporter) position(q *Queue, a *positionRequest, ref fsm.TicketRef, name string, ahead int) {
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
	q.add(&zamokpb.ServerMessage{Message: &zamokpb.ServerMessage_Position{Position: &zamokpb.QueuePosition{
		Ticket: ref.Ticket, Name: name, Ahead: uint32(ahead), Blockers: by,
	}}}, true)
}

// blockersOf names what blocks a lock: a delay, and its first holders.
func (r *reporter) blockersOf(name string) []*zamokpb.Blocker {
	if by, known := r.blockers[name]; known {
		return by
	}
	all := r.machine.LockBlockers(name)
	r.blockers[name] = wire.Blockers(all[:min(len(all), positionBlockersMax)])
	wire.Describe(r.machine, r.blockers[name])
	return r.blockers[name]
}
