package history

import (
	"context"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

const (
	// eventsMax and bytesMax bound the events that a node remembers: so many if they are small, fewer if they
	// are large. A typical one, of one lock, takes some 300 bytes, the largest 40 KiB.
	eventsMax = 65_536
	bytesMax  = 32 << 20
	// progressBytes: a watch that saw so much of other prefixes pass is sent its index, so that it can come back there
	// and need not list again. An event counts as no less than its share of the history.
	progressBytes = bytesMax / 4
	shareBytes    = bytesMax / eventsMax
	// step is how many events a watch looks at before it releases the lock of the history.
	step = 1024
	// batchBytesMax bounds the events of one index that a watch sends, and sendingBytesMax what all watches
	// are sending: a watch that needs more than half of what is left of that ends with COMPACTED, as if the
	// events had been forgotten.
	batchBytesMax   = 1 << 20
	sendingBytesMax = 64 << 20
)

// History has the latest events, and wakes the watches. A watch reads from it and has no memory of its own
// here: one that is so slow that an event is forgotten before it was read is cut.
type History struct {
	sending atomic.Int64 // the bytes of all batches that are being sent

	mu        sync.RWMutex // guards what follows
	events    []fsm.Event  // a ring: event number n is at n modulo its length
	first     uint64       // the number of the oldest event; numbers count from 1 and never repeat
	end       uint64       // the number of the next event
	bytes     int
	compacted uint64 // events up to this index may be forgotten
	index     uint64 // of what was applied last
	watches   map[*Watch]struct{}
	// times are rising by index and time. The state machine keeps indexes only, and people are shown for how long a ticket
	// has held or waited. It knows what this node saw applied, and nothing from before the snapshot with which it began.
	times []appliedTime
}

// New returns an empty history.
func New() *History { return &History{first: 1, end: 1, watches: make(map[*Watch]struct{})} }

// eventBytes and itemBytes are about what an event and one of its items take, beside their texts.
const (
	eventBytes = 256
	itemBytes  = 96
)

// size is what the event keeps from being collected. Its texts may be shared with the state machine.
func size(e *fsm.Event) int {
	n := eventBytes + len(e.Text) + len(e.Label) + len(e.Identity)
	for i := range e.Items {
		n += itemBytes + len(e.Items[i].Name)
	}
	return n
}

// Applied takes the events of an entry. It runs under the state machine's lock.
func (h *History) Applied(a fsm.Applied) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.Stamp.Index <= h.index { // it was applied before: see Restored
		return
	}
	h.index = a.Stamp.Index
	for i := range a.Events {
		if kindOf(&a.Events[i]) != zamokpb.EventKind_EVENT_UNSPECIFIED {
			h.add(a.Events[i])
		}
	}
	if n := len(h.times); n == 0 || a.Time.Sub(h.times[n-1].time) >= timesStep {
		if n == timesMax {
			h.thin(a.Time)
		}
		h.times = append(h.times, appliedTime{a.Index, a.Time})
	}
	for w := range h.watches {
		if w.next < h.first {
			h.cut(w)
			continue
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (h *History) add(e fsm.Event) {
	bytes := size(&e)
	for h.end-h.first == eventsMax || h.end > h.first && h.bytes+bytes > bytesMax {
		oldest := h.at(h.first)
		h.compacted, h.bytes = oldest.Index, h.bytes-size(oldest)
		*oldest = fsm.Event{}
		h.first++
	}
	if count := int(h.end - h.first); count == len(h.events) {
		grown := make([]fsm.Event, min(max(64, 2*count), eventsMax))
		for n := h.first; n < h.end; n++ {
			grown[n%uint64(len(grown))] = *h.at(n)
		}
		h.events = grown
	}
	*h.at(h.end) = e
	h.end++
	h.bytes += bytes
}

// at is where the event with a number is kept. The caller holds the lock.
func (h *History) at(number uint64) *fsm.Event { return &h.events[number%uint64(len(h.events))] }

// Restored forgets everything if the state is a later one: the events in between are not known. A node that
// begins anew with an earlier state, as it does when it opens Raft again, applies the same entries once more,
// and nothing is forgotten.
func (h *History) Restored(m *fsm.Machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.Stamp().Index <= h.index {
		for n := h.first; n < h.end; n++ { // the items lie beside pointers into the machine that is not used any more
			h.at(n).Items = slices.Clone(h.at(n).Items)
		}
		return
	}
	h.events, h.first, h.bytes = nil, h.end, 0
	h.index = m.Stamp().Index
	h.compacted = h.index
	h.times = append(slices.Grow(h.times[:0], 1), appliedTime{h.index, m.Time()})
	for w := range h.watches {
		h.cut(w)
	}
}

// cut ends a watch: what it has not read yet is forgotten. The caller holds the lock.
func (h *History) cut(w *Watch) {
	w.cancel(compactedError(w.index, h.compacted))
	delete(h.watches, w)
}

// tooManyBytes ends a watch that would have to send more at once than may be sent.
func tooManyBytes(b batch) error {
	return wire.Errorf(zamokpb.Code_CODE_COMPACTED, "what happened at index %d takes %d bytes or more; at most %d are sent at once, and fewer "+
		"while other watches do not read: list again, and watch from the list's index", b.index, b.bytes, batchBytesMax)
}

// compactedError ends a watch that would have to leave something out.
func compactedError(from, remembered uint64) error {
	return wire.Errorf(zamokpb.Code_CODE_COMPACTED, "what happened after index %d is not remembered here any more, only what happened after %d: "+
		"list again, and watch from the list's index", from, remembered)
}

// Filter reports whether a watch may receive the events of a lock, and with "" the ends of sessions. Hidden events do not count
// as progress either, so that a watch does not reveal that an event occurred.
type Filter func(name string) bool

// wants reports whether an event is to be sent: it is of a lock under the prefix. The end of a session has no name, so it
// is under the empty prefix only.
func (w *Watch) wants(e *fsm.Event, may Filter) bool {
	if e.Kind == fsm.EvSessionEnded {
		return w.prefix == "" && may("")
	}
	return slices.ContainsFunc(e.Items, func(it fsm.Item) bool { return strings.HasPrefix(it.Name, w.prefix) && may(it.Name) })
}

// kinds are the kinds of events on the wire. Watches are not sent others.
var kinds = map[fsm.EventKind]zamokpb.EventKind{
	fsm.EvGranted: zamokpb.EventKind_EVENT_GRANTED, fsm.EvRefused: zamokpb.EventKind_EVENT_REFUSED,
	fsm.EvLost: zamokpb.EventKind_EVENT_LOST, fsm.EvReleased: zamokpb.EventKind_EVENT_RELEASED,
	fsm.EvDowngraded: zamokpb.EventKind_EVENT_DOWNGRADED, fsm.EvSessionEnded: zamokpb.EventKind_EVENT_ENDED,
}

// kindOf is the kind of an event on the wire; unspecified: watches are not sent it.
func kindOf(e *fsm.Event) zamokpb.EventKind {
	if e.Kind == fsm.EvReleased && e.Token == 0 {
		return zamokpb.EventKind_EVENT_CANCELLED
	}
	return kinds[e.Kind]
}

// Watch is one reader of the history. Only its reader uses next, index and passed, and with the history's
// lock.
type Watch struct {
	history *History
	prefix  string
	filter  func() Filter // the one in force
	wake    chan struct{} // capacity 1: something was applied
	ctx     context.Context
	cancel  context.CancelCauseFunc // with why it can't continue

	next   uint64 // the number of the event that it reads next
	index  uint64 // everything up to here was read
	passed int    // bytes of events that were skipped since it read one
}

// Watch begins to watch after index from, or from now on with 0. The caller calls End. filter is called for each step.
func (h *History) Watch(ctx context.Context, prefix string, from uint64, filter func() Filter) (*Watch, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &Watch{history: h, prefix: prefix, filter: filter, wake: make(chan struct{}, 1), index: from}
	switch {
	case from == 0:
		w.index, w.next = h.index, h.end
	case from < h.compacted:
		return nil, compactedError(from, h.compacted)
	default:
		w.next = h.first // what is not after from is skipped on the way
	}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	h.watches[w] = struct{}{}
	return w, nil
}

// Reached reports whether everything up to an index was applied here.
func (h *History) Reached(index uint64) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.index >= index
}

// Await waits until everything up to an index was applied here, and reports whether that came before ctx ended.
func (h *History) Await(ctx context.Context, index uint64) bool {
	w, err := h.Watch(ctx, "", 0, nil)
	if err != nil {
		return false
	}
	defer w.End()
	for !h.Reached(index) {
		select {
		case <-w.wake:
		case <-w.Done(): // also when a later state replaced the events
			return h.Reached(index)
		}
	}
	return true
}

// Done is closed when the watch can't continue, or its context ended.
func (w *Watch) Done() <-chan struct{} { return w.ctx.Done() }

// Err is, once Done is closed, the reason.
func (w *Watch) Err() error { return context.Cause(w.ctx) }

// End stops a watch.
func (w *Watch) End() {
	w.cancel(nil)
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	delete(w.history.watches, w)
}

// batch is what a watch sends next: the events of one index under its prefix; or, without events, an index up
// to which there was none.
type batch struct {
	index  uint64
	events []fsm.Event
	bytes  int // of the events
}

// Send sends frames until it fails or the watch is done: first an empty one with the index at which the watch begins.
func (w *Watch) Send(send func(*zamokpb.WatchFrame) error) error {
	err := w.sendBatch(batch{index: w.index}, send)
	for err == nil {
		if next, some := w.read(); some {
			err = w.sendBatch(next, send)
			continue
		}
		select {
		case <-w.wake:
		case <-w.Done():
			return w.Err()
		}
	}
	return err
}

// sendBatch sends a batch, if there is room for it beside what the other watches are sending.
func (w *Watch) sendBatch(b batch, send func(*zamokpb.WatchFrame) error) error {
	bytes := int64(b.bytes)
	used := w.history.sending.Add(bytes)
	defer w.history.sending.Add(-bytes)
	if 2*bytes > sendingBytesMax-used {
		return tooManyBytes(b)
	}
	return send(w.frame(b))
}

// read returns what is to be sent next. False: there is nothing yet.
func (w *Watch) read() (b batch, some bool) {
	for more := true; more; {
		b, some, more = w.step(w.filter()) // without the lock, since the filter may read files
	}
	return b, some
}

// step is a part of read that holds the lock of the history, and with it the state machine, for a short time
// only. Other watches may read meanwhile: an entry waits for the reads under way, not for all watches.
func (w *Watch) step(may Filter) (b batch, some, more bool) {
	h := w.history
	h.mu.RLock()
	defer h.mu.RUnlock()
	if w.ctx.Err() != nil || w.next < h.first {
		return b, false, false
	}
	for n := 0; w.next < h.end; n++ {
		e := h.at(w.next)
		switch {
		case len(b.events) > 0 && e.Index != b.index:
			return w.readUpTo(b), true, false
		case len(b.events) == 0 && n >= step:
			return b, false, true
		case e.Index > w.index && w.wants(e, may):
			b.index = e.Index
			b.events = append(b.events, *e)
			if b.bytes += size(e); b.bytes > batchBytesMax {
				w.cancel(tooManyBytes(b))
				return b, false, false
			}
		default:
			w.passed += max(size(e), shareBytes)
		}
		w.next++
	}
	switch {
	case len(b.events) > 0: // all events of one index are added at once
		return w.readUpTo(b), true, false
	case w.passed >= progressBytes && h.index > w.index:
		return w.readUpTo(batch{index: h.index}), true, false
	}
	return b, false, false
}

// readUpTo notes that everything up to the index of the batch is read.
func (w *Watch) readUpTo(b batch) batch {
	w.index, w.passed = b.index, 0
	return b
}

// frame is the message for a batch. An acquisition of several locks is sent with those under the prefix only.
func (w *Watch) frame(b batch) *zamokpb.WatchFrame {
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

const (
	// timesStep is the least distance of the latest records.
	timesStep = clock.Second / 10
	// timesMax is how many records there are at most: 64 KiB. When there are as many, those are dropped
	// without which an age is still known to one part in timesPart: at most 3500 are left after ten years.
	timesMax  = 4096
	timesPart = 100
)

// appliedTime: indexes from this one up to that of the next record were applied at time or little later.
type appliedTime struct {
	index uint64
	time  clock.Time
}

// thin drops records that are close together for their age; never the first and the last.
func (h *History) thin(now clock.Time) {
	kept := h.times[:1]
	for i, m := range h.times[1 : len(h.times)-1] {
		next := h.times[i+2]
		if next.time.Sub(kept[len(kept)-1].time) > now.Sub(next.time)/timesPart {
			kept = append(kept, m)
		}
	}
	h.times = append(kept, h.times[len(h.times)-1])
}

// At returns when an index was applied; 0: that is not known.
func (h *History) At(index uint64) clock.Time {
	h.mu.RLock()
	defer h.mu.RUnlock()
	i := sort.Search(len(h.times), func(i int) bool { return h.times[i].index > index })
	if i == 0 || index == 0 {
		return 0
	}
	return max(h.times[i-1].time, 1) // 0 would mean unknown
}
