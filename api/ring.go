package api

import (
	"strings"
	"sync"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// ringEvents is how many events of tickets and sessions a node remembers for those who watch: 8 MiB or so when
	// it is full, however many watch.
	ringEvents = 65_536
	// ringProgress: a watch that saw so many events of other prefixes pass is told how far it is, so
	// that it can come back there and need not list again.
	ringProgress = ringEvents / 4
	// ringStep is how many events a watch looks at before it lets others at the ring.
	ringStep = 1024
	// watchesMax bounds the watches of one node: each entry wakes all of them.
	watchesMax = 1024
)

// ring remembers the latest events of tickets and of sessions' ends of this node's machine, and wakes those who watch. A
// watch reads from the ring itself and has no memory of its own here: who is so slow that the ring
// turns once meanwhile is cut.
type ring struct {
	mu      sync.Mutex // guards what follows
	events  []event    // a ring once it is full: the oldest is at begin
	begin   int
	first   uint64 // the number of the oldest event; numbers count from 1 and never repeat
	gone    uint64 // events up to this index may be forgotten
	index   uint64 // of what was applied last
	watches map[*watch]struct{}
}

// event is what a watch may want of an fsm.Event.
type event struct {
	index  uint64
	ref    fsm.TicketRef
	token  uint64
	text   string
	label  string
	items  []fsm.Item // shared with the machine, never changed
	kind   fsm.EventKind
	reason fsm.Why
}

// watch is one reader of the ring. Only its reader uses next and index.
type watch struct {
	ring   *ring
	prefix string
	wake   chan struct{} // capacity 1: something was applied
	cut    chan struct{} // closed when what it has not read yet is forgotten

	next    uint64 // the number of the event that it reads next
	index   uint64 // told up to here
	skipped int    // events of other prefixes since it was told anything
	isCut   bool   // guarded by ring.mu
}

func newRing() *ring { return &ring{first: 1, watches: make(map[*watch]struct{})} }

// applied takes the events of an entry. It runs under the machine's lock.
func (r *ring) applied(a fsm.Applied) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index = a.Stamp.Index
	for _, e := range a.Events {
		switch e.Kind {
		case fsm.EvGranted, fsm.EvRefused, fsm.EvLost, fsm.EvReleased, fsm.EvDowngraded, fsm.EvEnded:
			r.add(event{
				index: e.Index, ref: e.TicketRef, token: e.Token, text: e.Text, label: e.Label, items: e.Items,
				kind: e.Kind, reason: e.Why,
			})
		}
	}
	for w := range r.watches {
		if w.next < r.first {
			r.cutOff(w)
			continue
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (r *ring) add(e event) {
	if len(r.events) < ringEvents {
		r.events = append(r.events, e)
		return
	}
	r.gone = r.events[r.begin].index
	r.events[r.begin] = e
	r.begin = (r.begin + 1) % ringEvents
	r.first++
}

// restored forgets everything: between what was applied before and this state nothing is told.
func (r *ring) restored(m *fsm.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first += uint64(len(r.events))
	r.events, r.begin = nil, 0
	r.index = m.Stamp().Index
	r.gone = r.index
	for w := range r.watches {
		r.cutOff(w)
	}
}

// cutOff ends a watch. The caller holds the lock.
func (r *ring) cutOff(w *watch) {
	w.isCut = true
	close(w.cut)
	delete(r.watches, w)
}

// watch begins to watch after index from, or from now on with 0.
func (r *ring) watch(prefix string, from uint64) (*watch, *failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &watch{ring: r, prefix: prefix, wake: make(chan struct{}, 1), cut: make(chan struct{}), index: from}
	switch {
	case len(r.watches) >= watchesMax:
		f := fail(zamokpb.Code_CODE_LIMIT, "not done: %d watch this node already; watch at another one", watchesMax)
		f.info.Field = "watches"
		return nil, f
	case from == 0:
		w.index, w.next = r.index, r.first+uint64(len(r.events))
	case from < r.gone:
		return nil, forgot(from, r.gone)
	default:
		w.next = r.first // what is not after from is skipped on the way
	}
	r.watches[w] = struct{}{}
	return w, nil
}

// forgot ends a watch that would have to leave something out.
func forgot(from, remembered uint64) *failure {
	return fail(zamokpb.Code_CODE_GONE, "what happened after index %d is not remembered here any more, only what happened after %d: "+
		"list again, and watch from the list's index", from, remembered)
}

// cutAt is what a watch that was cut is told. After a transfer a node begins anew with an older state, and
// comes to what it had told before: then nothing is forgotten.
func (w *watch) cutAt() *failure {
	w.ring.mu.Lock()
	defer w.ring.mu.Unlock()
	if w.index >= w.ring.gone {
		return fail(zamokpb.Code_CODE_STOPPING, "this node began anew; watch again, from the last index")
	}
	return forgot(w.index, w.ring.gone)
}

// end stops a watch.
func (w *watch) end() {
	w.ring.mu.Lock()
	defer w.ring.mu.Unlock()
	delete(w.ring.watches, w)
}

// read returns the events of the next index that has any under the prefix, with that index; or, with
// no events, how far the watch has come if that is worth telling. False: there is nothing to tell.
func (w *watch) read() (index uint64, events []event, some bool) {
	for more := true; more && !some; {
		index, events, some, more = w.step()
	}
	return index, events, some
}

// step is a part of read that keeps the ring, and with it the machine, for a short time only.
func (w *watch) step() (index uint64, events []event, some, more bool) {
	r := w.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.isCut || w.next < r.first {
		return 0, nil, false, false
	}
	for n, end := 0, r.first+uint64(len(r.events)); w.next < end; n++ {
		e := &r.events[(r.begin+int(w.next-r.first))%len(r.events)]
		switch {
		case len(events) > 0 && e.index != index:
			return w.tell(index), events, true, false
		case len(events) == 0 && n >= ringStep:
			return 0, nil, false, true
		case e.index > w.index && e.under(w.prefix):
			index = e.index
			events = append(events, *e)
		default:
			w.skipped++
		}
		w.next++
	}
	switch {
	case len(events) > 0: // all of one index come to the ring together
		return w.tell(index), events, true, false
	case w.skipped >= ringProgress && r.index > w.index:
		return w.tell(r.index), nil, true, false
	}
	return 0, nil, false, false
}

// tell notes that the watch is told everything up to index.
func (w *watch) tell(index uint64) uint64 {
	w.index, w.skipped = index, 0
	return index
}

// under tells whether the event is of a lock under the prefix. The end of a session has no name, so it is under
// the empty prefix only.
func (e *event) under(prefix string) bool {
	if e.kind == fsm.EvEnded {
		return prefix == ""
	}
	for _, it := range e.items {
		if strings.HasPrefix(it.Name, prefix) {
			return true
		}
	}
	return false
}
