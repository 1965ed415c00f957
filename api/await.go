package api

import "zamok/fsm"

// awaited is a unary call that waits until a ticket is granted or gone.
type awaited struct {
	ref      fsm.TicketRef
	end      chan awaitedEnd // capacity 1
	repeated bool            // a later call asked for the same ticket; guarded by the hub's lock
}

// awaitedEnd is what a unary call waited for: a ticket that was granted or is gone, at index; or why
// it can't be waited for here any more.
type awaitedEnd struct {
	state   fsm.TicketState
	index   uint64
	failure *failure
}

// await registers a call, before its Acquire is submitted: the event comes before the answer. unawait
// follows.
func (h *hub) await(ref fsm.TicketRef) *awaited {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &awaited{ref: ref, end: make(chan awaitedEnd, 1)}
	for _, earlier := range h.awaited[ref] {
		earlier.repeated = true
	}
	h.awaited[ref] = append(h.awaited[ref], w)
	return w
}

// repeated tells whether the ticket is a later call's: its client gave this one up and asked again, perhaps
// before this node noticed.
func (h *hub) repeated(w *awaited) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.repeated
}

func (h *hub) unawait(w *awaited) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.awaited[w.ref]
	for i := range list {
		if list[i] == w {
			list = append(list[:i], list[i+1:]...)
			break
		}
	}
	h.awaited[w.ref] = list
	if len(list) == 0 {
		delete(h.awaited, w.ref)
	}
}

// resolve ends the waits for a ticket. The caller holds the lock.
func (h *hub) resolve(ref fsm.TicketRef, end awaitedEnd) {
	for _, w := range h.awaited[ref] {
		w.end <- end
	}
	delete(h.awaited, ref)
}
