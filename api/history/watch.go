package history

import (
	"strings"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

// Watch is one reader of the history. Only its reader uses next, index and skipped, and with the history's
// lock.
type Watch struct {
	history *History
	prefix  string
	wake    chan struct{} // capacity 1: something was applied
	done    chan struct{} // closed when what it has not read yet is forgotten

	next    uint64 // the number of the event that it reads next
	index   uint64 // everything up to here was read
	skipped int    // events of other prefixes since it read one
	passed  int    // their bytes
	failed  error  // why it can't continue
}

// Watch begins to watch after index from, or from now on with 0. End follows.
func (h *History) Watch(prefix string, from uint64) (*Watch, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &Watch{history: h, prefix: prefix, wake: make(chan struct{}, 1), done: make(chan struct{}), index: from}
	switch {
	case len(h.watches) >= watchesMax:
		e := wire.Errorf(zamokpb.Code_CODE_LIMIT_EXCEEDED, "not done: %d watch this node already; watch at another one", watchesMax)
		e.Info.Field = "watches"
		return nil, e
	case from == 0:
		w.index, w.next = h.index, h.end()
	case from < h.compacted:
		return nil, compactedError(from, h.compacted)
	default:
		w.next = h.first // what is not after from is skipped on the way
	}
	h.watches[w] = struct{}{}
	return w, nil
}

// Wake has a value when something was applied since the last Read.
func (w *Watch) Wake() <-chan struct{} { return w.wake }

// Done is closed when the watch was cut: what it has not read yet is forgotten.
func (w *Watch) Done() <-chan struct{} { return w.done }

// Err is the reason of a cut. After a transfer a node may start over with an older state and see the same
// events again: then nothing is forgotten.
func (w *Watch) Err() error {
	w.history.mu.RLock()
	defer w.history.mu.RUnlock()
	if w.index >= w.history.compacted {
		return wire.Errorf(zamokpb.Code_CODE_STOPPING, "this node began anew; watch again, from the last index")
	}
	return compactedError(w.index, w.history.compacted)
}

// End stops a watch.
func (w *Watch) End() {
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	delete(w.history.watches, w)
}

// Batch is what a watch sends next: the events of one index under its prefix; or, without events, an index up
// to which there was none.
type Batch struct {
	index  uint64
	events []fsm.Event
	bytes  int // of the events
}

// Start is the empty batch with the index at which the watch begins.
func (w *Watch) Start() Batch { return Batch{index: w.index} }

// Read returns what is to be sent next. False: there is nothing yet.
func (w *Watch) Read() (b Batch, some bool, err error) {
	for more := true; more && !some; {
		b, some, more = w.step()
	}
	return b, some, w.failed
}

// step is a part of Read that holds the lock of the history, and with it the state machine, for a short time
// only. Other watches may read meanwhile: an entry waits for the reads under way, not for all watches.
func (w *Watch) step() (b Batch, some, more bool) {
	h := w.history
	h.mu.RLock()
	defer h.mu.RUnlock()
	if _, live := h.watches[w]; !live || w.next < h.first {
		return b, false, false
	}
	for n, end := 0, h.end(); w.next < end; n++ {
		e := h.at(w.next)
		switch {
		case len(b.events) > 0 && e.Index != b.index:
			return w.readUpTo(b), true, false
		case len(b.events) == 0 && n >= step:
			return b, false, true
		case e.Index > w.index && under(e, w.prefix):
			b.index = e.Index
			b.events = append(b.events, *e)
			if b.bytes += size(e); b.bytes > batchBytesMax {
				w.failed = tooManyBytes(b)
				return b, false, false
			}
		default:
			w.skipped++
			w.passed += size(e)
		}
		w.next++
	}
	switch {
	case len(b.events) > 0: // all events of one index are added at once
		return w.readUpTo(b), true, false
	case (w.skipped >= progressEvents || w.passed >= progressBytes) && h.index > w.index:
		return w.readUpTo(Batch{index: h.index}), true, false
	}
	return b, false, false
}

// readUpTo notes that everything up to the index of the batch is read.
func (w *Watch) readUpTo(b Batch) Batch {
	w.index, w.skipped, w.passed = b.index, 0, 0
	return b
}

// Frame is the message for a batch. An acquisition of several locks is sent with those under the prefix only.
func (w *Watch) Frame(b Batch) *zamokpb.WatchFrame {
	frame := &zamokpb.WatchFrame{Index: b.index}
	for i := range b.events {
		e := &b.events[i]
		sent := &zamokpb.LockEvent{
			Kind: kindOf(e), Session: uint64(e.Session), Ticket: e.Ticket,
			Token: e.Token, Reason: zamokpb.Reason(e.Reason), Text: e.Text, Label: e.Label,
		}
		for _, it := range wire.Items(e.Items) {
			if strings.HasPrefix(it.Name, w.prefix) {
				sent.Items = append(sent.Items, it)
			}
		}
		frame.Events = append(frame.Events, sent)
	}
	return frame
}
