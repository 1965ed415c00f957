package api

import "zamok/fsm"

// waiter is a unary call that waits until a ticket is granted or gone.
type waiter struct {
	ref      fsm.TicketRef
	end      chan waitResult // capacity 1
	repeated bool            // a later call asked for the same ticket; guarded by the hub's lock
}

// waitResult is what a unary call waited for: a ticket that was granted or is gone, at index; or why
// it can't be waited for here any more.
type waitResult struct {
	state   fsm.TicketState
	index   uint64
	failure *failure
}

// addWaiter registers a call, before its Acquire is submitted: the event comes before the answer. unawait
// follows.
func (h *hub) addWaiter(ref fsm.TicketRef) *waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &waiter{ref: ref, end: make(chan waitResult, 1)}
	for _, earlier := range h.waiting[ref] {
		earlier.repeated = true
	}
	h.waiting[ref] = append(h.waiting[ref], w)
	return w
}

// repeated reports whether the ticket is a later call's: its client gave this one up and asked again, perhaps
// before this node noticed.
func (h *hub) repeated(w *waiter) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.repeated
}

func (h *hub) cancelWait(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.waiting[w.ref]
	for i := range list {
		if list[i] == w {
			list = append(list[:i], list[i+1:]...)
			break
		}
	}
	h.waiting[w.ref] = list
	if len(list) == 0 {
		delete(h.waiting, w.ref)
	}
}

// resolve ends the waits for a ticket. The caller holds the lock.
func (h *hub) resolve(ref fsm.TicketRef, end waitResult) {
	for _, w := range h.waiting[ref] {
		w.end <- end
	}
	delete(h.waiting, ref)
}
