package history

import (
	"strings"
	"sync"
	"sync/atomic"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// eventsMax and bytesMax bound the events that a node remembers: so many if they are small, fewer if they
	// are large. A typical one, of one lock, takes some 300 bytes, the largest 40 KiB.
	eventsMax = 65_536
	bytesMax  = 32 << 20
	// progressEvents and progressBytes: a watch that saw so many events of other prefixes pass is sent its
	// index, so that it can come back there and need not list again.
	progressEvents = eventsMax / 4
	progressBytes  = bytesMax / 4
	// step is how many events a watch looks at before it releases the lock of the history.
	step = 1024
	// batchBytesMax bounds the events of one index that a watch sends, and sendingBytesMax what all watches
	// are sending: a watch that needs more than half of what is left of that ends with COMPACTED, as if the
	// events had been forgotten.
	batchBytesMax   = 1 << 20
	sendingBytesMax = 64 << 20
	// watchesMax bounds the watches of one node: each entry wakes all of them.
	watchesMax = 1024
)

// History has the latest events, and wakes the watches. A watch reads from it and has no memory of its own
// here: one that is so slow that an event is forgotten before it was read is cut.
type History struct {
	sending atomic.Int64 // the bytes of all batches that are being sent

	mu        sync.RWMutex // guards what follows
	events    []fsm.Event  // a ring: count of them, the oldest at begin
	begin     int
	count     int
	bytes     int
	first     uint64 // the number of the oldest event; numbers count from 1 and never repeat
	compacted uint64 // events up to this index may be forgotten
	index     uint64 // of what was applied last
	watches   map[*Watch]struct{}
}

// New returns an empty history.
func New() *History { return &History{first: 1, watches: make(map[*Watch]struct{})} }

// eventBytes and itemBytes are about what an event and one of its items take, beside their texts.
const (
	eventBytes = 256
	itemBytes  = 96
)

// size is what the event keeps from being collected. Its texts may be shared with the state machine.
func size(e *fsm.Event) int {
	n := eventBytes + len(e.Text) + len(e.Label)
	for i := range e.Items {
		n += itemBytes + len(e.Items[i].Name)
	}
	return n
}

// Applied takes the events of an entry. It runs under the state machine's lock.
func (h *History) Applied(a fsm.Applied) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.index = a.Stamp.Index
	for i := range a.Events {
		if kindOf(&a.Events[i]) != zamokpb.EventKind_EVENT_UNSPECIFIED {
			h.add(a.Events[i])
		}
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
	for h.count == eventsMax || h.count > 0 && h.bytes+bytes > bytesMax {
		oldest := h.at(h.first)
		h.compacted, h.bytes = oldest.Index, h.bytes-size(oldest)
		*oldest = fsm.Event{}
		h.begin = (h.begin + 1) % len(h.events)
		h.first++
		h.count--
	}
	if h.count == len(h.events) {
		grown := make([]fsm.Event, min(max(64, 2*h.count), eventsMax))
		copy(grown[copy(grown, h.events[h.begin:]):], h.events[:h.begin])
		h.events, h.begin = grown, 0
	}
	h.count++
	h.bytes += bytes
	*h.at(h.end() - 1) = e
}

// at is the event with a number, end the number of the next one. The caller holds the lock.
func (h *History) at(number uint64) *fsm.Event {
	return &h.events[(h.begin+int(number-h.first))%len(h.events)]
}

func (h *History) end() uint64 { return h.first + uint64(h.count) }

// Restored forgets everything: the events between what was applied before and this state are not known.
func (h *History) Restored(m *fsm.Machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.first = h.end()
	h.events, h.begin, h.count, h.bytes = nil, 0, 0, 0
	h.index = m.Stamp().Index
	h.compacted = h.index
	for w := range h.watches {
		h.cut(w)
	}
}

// cut ends a watch. The caller holds the lock.
func (h *History) cut(w *Watch) {
	close(w.done)
	delete(h.watches, w)
}

// Reserve takes room for a batch that is to be sent; Release gives it back.
func (h *History) Reserve(b Batch) error {
	if used := h.sending.Add(int64(b.bytes)); 2*int64(b.bytes) > sendingBytesMax-used {
		h.Release(b)
		return tooManyBytes(b)
	}
	return nil
}

// Release gives back the room of a batch that was sent, or will not be.
func (h *History) Release(b Batch) { h.sending.Add(-int64(b.bytes)) }

// tooManyBytes ends a watch that would have to send more at once than may be sent.
func tooManyBytes(b Batch) error {
	return wire.Errorf(zamokpb.Code_CODE_COMPACTED, "what happened at index %d takes %d bytes or more; at most %d are sent at once, and fewer "+
		"while other watches do not read: list again, and watch from the list's index", b.index, b.bytes, batchBytesMax)
}

// compactedError ends a watch that would have to leave something out.
func compactedError(from, remembered uint64) error {
	return wire.Errorf(zamokpb.Code_CODE_COMPACTED, "what happened after index %d is not remembered here any more, only what happened after %d: "+
		"list again, and watch from the list's index", from, remembered)
}

// under reports whether the event is of a lock under the prefix. The end of a session has no name, so it is
// under the empty prefix only.
func under(e *fsm.Event, prefix string) bool {
	if e.Kind == fsm.EvSessionEnded {
		return prefix == ""
	}
	for i := range e.Items {
		if strings.HasPrefix(e.Items[i].Name, prefix) {
			return true
		}
	}
	return false
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
