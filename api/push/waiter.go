package push

import (
	"slices"

	"zamok/api/wire"
	"zamok/fsm"
)

// Waiter is a unary call that waits until a ticket is granted or ended.
type Waiter struct {
	Ref      fsm.TicketRef
	hub      *Hub
	done     chan Waited // capacity 1
	repeated bool        // a later call asked for the same ticket; guarded by the hub's lock
}

// Waited is what a call waited for: a ticket that was granted or ended, or why it can't be waited for here
// any more.
type Waited struct {
	State fsm.TicketState
	Err   *wire.Error
}

// Await registers a call, before its Acquire is proposed: the event comes before the answer. Cancel follows.
func (h *Hub) Await(ref fsm.TicketRef) *Waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, earlier := range h.waiting[ref] {
		earlier.repeated = true
	}
	w := &Waiter{Ref: ref, hub: h, done: make(chan Waited, 1)}
	h.waiting[ref] = append(h.waiting[ref], w)
	return w
}

// Done receives the end of the wait.
func (w *Waiter) Done() <-chan Waited { return w.done }

// Repeated reports whether the ticket belongs to a later call: its client gave this one up and asked again,
// perhaps before this node noticed.
func (w *Waiter) Repeated() bool {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return w.repeated
}

// Cancel ends the wait without a result.
func (w *Waiter) Cancel() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	list := slices.DeleteFunc(w.hub.waiting[w.Ref], func(other *Waiter) bool { return other == w })
	if w.hub.waiting[w.Ref] = list; len(list) == 0 {
		delete(w.hub.waiting, w.Ref)
	}
}

// resolve ends the waits for a ticket. The caller holds the lock.
func (h *Hub) resolve(ref fsm.TicketRef, end Waited) {
	for _, w := range h.waiting[ref] {
		w.done <- end
	}
	delete(h.waiting, ref)
}
