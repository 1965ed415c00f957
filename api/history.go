package api

import (
	"strings"
	"sync"
	"sync/atomic"

	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// historyEvents and historyBytesMax bound the events of tickets and sessions that a node remembers for those who watch,
	// however many watch: so many if they are small, fewer if they are large. A typical one, of one lock, takes
	// some 200 bytes, the largest 40 KiB.
	historyEvents   = 65_536
	historyBytesMax = 32 << 20
	// historyProgress and historyProgressBytes: a watch that saw so many events of other prefixes pass is sent its index,
	// so that it can come back there and need not list again.
	historyProgress      = historyEvents / 4
	historyProgressBytes = historyBytesMax / 4
	// historyStep is how many events a watch looks at before it lets others at the ring.
	historyStep = 1024
	// watchFrameBytesMax bounds the events of one index that a watch sends, and watchesBytesMax what all watches
	// are sending: one that needs more than half of what is left of that ends with GONE, as if the ring had turned.
	watchFrameBytesMax = 1 << 20
	watchesBytesMax    = 64 << 20
	// watchesMax bounds the watches of one node: each entry wakes all of them.
	watchesMax = 1024
)

// history remembers the latest events of tickets and of sessions' ends of this node's machine, and wakes those who watch. A
// watch reads from the ring itself and has no memory of its own here: who is so slow that the ring
// turns once meanwhile is cut.
type history struct {
	publishing atomic.Int64 // the bytes of all frames that are being sent

	mu        sync.RWMutex // guards what follows
	events    []event      // count of them, the oldest at begin, go round
	begin     int
	count     int
	bytes     int
	first     uint64 // the number of the oldest event; numbers count from 1 and never repeat
	compacted uint64 // events up to this index may be forgotten
	index     uint64 // of what was applied last
	watches   map[*watch]struct{}
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
	reason fsm.Reason
}

// eventBytes and eventItemBytes are about what an event and one of its items take, beside their texts.
const (
	eventBytes     = 176
	eventItemBytes = 96
)

// size is what the event keeps from being collected. Its texts may be shared with the machine.
func (e *event) size() int {
	n := eventBytes + len(e.text) + len(e.label)
	for i := range e.items {
		n += eventItemBytes + len(e.items[i].Name)
	}
	return n
}

// watch is one reader of the ring. Only its reader uses next, index and skipped, and with the ring's lock.
type watch struct {
	history *history
	prefix  string
	wake    chan struct{} // capacity 1: something was applied
	cut     chan struct{} // closed when what it has not read yet is forgotten

	next    uint64   // the number of the event that it reads next
	index   uint64   // told up to here
	skipped int      // events of other prefixes since it was told anything
	passed  int      // their bytes
	failed  *failure // why it can't continue
	isCut   bool     // guarded by history.mu
}

func newHistory() *history { return &history{first: 1, watches: make(map[*watch]struct{})} }

// applied takes the events of an entry. It runs under the machine's lock.
func (r *history) applied(a fsm.Applied) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index = a.Stamp.Index
	for _, e := range a.Events {
		switch e.Kind {
		case fsm.EvGranted, fsm.EvRefused, fsm.EvLost, fsm.EvReleased, fsm.EvDowngraded, fsm.EvSessionEnded:
			r.add(event{
				index: e.Index, ref: e.TicketRef, token: e.Token, text: e.Text, label: e.Label, items: e.Items,
				kind: e.Kind, reason: e.Reason,
			})
		}
	}
	for w := range r.watches {
		if w.next < r.first {
			r.cutWatch(w)
			continue
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (r *history) add(e event) {
	size := e.size()
	for r.count == historyEvents || r.count > 0 && r.bytes+size > historyBytesMax {
		oldest := r.at(r.first)
		r.compacted, r.bytes = oldest.index, r.bytes-oldest.size()
		*oldest = event{}
		r.begin = (r.begin + 1) % len(r.events)
		r.first++
		r.count--
	}
	if r.count == len(r.events) {
		grown := make([]event, min(max(64, 2*r.count), historyEvents))
		copy(grown[copy(grown, r.events[r.begin:]):], r.events[:r.begin])
		r.events, r.begin = grown, 0
	}
	r.count++
	r.bytes += size
	*r.at(r.end() - 1) = e
}

// at is the event with a number, end the number of the next one. The caller holds the lock.
func (r *history) at(number uint64) *event {
	return &r.events[(r.begin+int(number-r.first))%len(r.events)]
}

func (r *history) end() uint64 { return r.first + uint64(r.count) }

// restored forgets everything: between what was applied before and this state nothing is told.
func (r *history) restored(m *fsm.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first = r.end()
	r.events, r.begin, r.count, r.bytes = nil, 0, 0, 0
	r.index = m.Stamp().Index
	r.compacted = r.index
	for w := range r.watches {
		r.cutWatch(w)
	}
}

// cutWatch ends a watch. The caller holds the lock.
func (r *history) cutWatch(w *watch) {
	w.isCut = true
	close(w.cut)
	delete(r.watches, w)
}

// watch begins to watch after index from, or from now on with 0.
func (r *history) watch(prefix string, from uint64) (*watch, *failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &watch{history: r, prefix: prefix, wake: make(chan struct{}, 1), cut: make(chan struct{}), index: from}
	switch {
	case len(r.watches) >= watchesMax:
		f := fail(zamokpb.Code_CODE_LIMIT_EXCEEDED, "not done: %d watch this node already; watch at another one", watchesMax)
		f.info.Field = "watches"
		return nil, f
	case from == 0:
		w.index, w.next = r.index, r.end()
	case from < r.compacted:
		return nil, compactedError(from, r.compacted)
	default:
		w.next = r.first // what is not after from is skipped on the way
	}
	r.watches[w] = struct{}{}
	return w, nil
}

// tooManyBytes ends a watch that would have to send more at once than may be sent.
func tooManyBytes(f found) *failure {
	return fail(zamokpb.Code_CODE_COMPACTED, "what happened at index %d takes %d bytes or more; at most %d are sent at once, and fewer "+
		"while other watches do not read: list again, and watch from the list's index", f.index, f.bytes, watchFrameBytesMax)
}

// send takes room for what is to be sent; false: there is too little, and nothing was taken. sent gives it back.
func (r *history) send(f found) bool {
	if used := r.publishing.Add(int64(f.bytes)); 2*int64(f.bytes) > watchesBytesMax-used {
		r.sent(f)
		return false
	}
	return true
}

func (r *history) sent(f found) { r.publishing.Add(-int64(f.bytes)) }

// compactedError ends a watch that would have to leave something out.
func compactedError(from, remembered uint64) *failure {
	return fail(zamokpb.Code_CODE_COMPACTED, "what happened after index %d is not remembered here any more, only what happened after %d: "+
		"list again, and watch from the list's index", from, remembered)
}

// cutAt is what a watch that was cut is told. After a transfer a node starts over with an older state, and
// comes to what it had told before: then nothing is forgotten.
func (w *watch) cutAt() *failure {
	w.history.mu.RLock()
	defer w.history.mu.RUnlock()
	if w.index >= w.history.compacted {
		return fail(zamokpb.Code_CODE_STOPPING, "this node began anew; watch again, from the last index")
	}
	return compactedError(w.index, w.history.compacted)
}

// end stops a watch.
func (w *watch) end() {
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	delete(w.history.watches, w)
}

// found is what a watch is to send next: the events of an index under its prefix; or, with no events, an index up to
// which there was none.
type found struct {
	index  uint64
	events []event
	bytes  int // of the events
}

// read returns what is to be sent next. False: there is nothing, or the watch failed.
func (w *watch) read() (f found, some bool) {
	for more := true; more && !some; {
		f, some, more = w.step()
	}
	return f, some
}

// step is a part of read that keeps the ring, and with it the machine, for a short time only. Others may read beside
// it: an entry that is applied waits for the reads under way, not for all watches.
func (w *watch) step() (f found, some, more bool) {
	r := w.history
	r.mu.RLock()
	defer r.mu.RUnlock()
	if w.isCut || w.next < r.first {
		return f, false, false
	}
	for n, end := 0, r.end(); w.next < end; n++ {
		e := r.at(w.next)
		switch {
		case len(f.events) > 0 && e.index != f.index:
			return w.skip(f), true, false
		case len(f.events) == 0 && n >= historyStep:
			return f, false, true
		case e.index > w.index && e.under(w.prefix):
			f.index = e.index
			f.events = append(f.events, *e)
			if f.bytes += e.size(); f.bytes > watchFrameBytesMax {
				w.failed = tooManyBytes(f)
				return f, false, false
			}
		default:
			w.skipped++
			w.passed += e.size()
		}
		w.next++
	}
	switch {
	case len(f.events) > 0: // all of one index come to the ring together
		return w.skip(f), true, false
	case (w.skipped >= historyProgress || w.passed >= historyProgressBytes) && r.index > w.index:
		return w.skip(found{index: r.index}), true, false
	}
	return f, false, false
}

// skip notes that everything up to an index is sent.
func (w *watch) skip(f found) found {
	w.index, w.skipped, w.passed = f.index, 0, 0
	return f
}

// under reports whether the event is of a lock under the prefix. The end of a session has no name, so it is under
// the empty prefix only.
func (e *event) under(prefix string) bool {
	if e.kind == fsm.EvSessionEnded {
		return prefix == ""
	}
	for _, it := range e.items {
		if strings.HasPrefix(it.Name, prefix) {
			return true
		}
	}
	return false
}
