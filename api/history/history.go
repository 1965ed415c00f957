package history

import (
	"context"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

const (
	// eventsMax and bytesMax bound the events that a node remembers: so many if they are small,
	// fewer if they are large. A typical one, of one lock, takes some 300 bytes, the largest 40
	// KiB.
	eventsMax = 65_536
	bytesMax  = 32 << 20
	// awaitEvery is how often Await looks.
	awaitEvery = 10 * time.Millisecond
)

// History has the latest events, and what reads them for watches.
type History struct {
	sending atomic.Int64  // the bytes of all frames that are being sent
	kept    atomic.Int64  // the bytes of all frames that feeds keep
	reading chan struct{} // capacity 1: full while a watch reads for itself
	wake    chan struct{} // capacity 1: something is touched, or due
	due     []*feed       // that have something to read; used by Run only

	mu        sync.RWMutex // guards what follows
	events    []fsm.Event  // a ring: event number n is at n modulo its length
	first     uint64       // the number of the oldest event; numbers count from 1 and never repeat
	end       uint64       // the number of the next event
	bytes     int
	compacted uint64    // events up to this index may be forgotten
	index     uint64    // of what was applied last
	prefixes  []*prefix // that are watched, in order
	touched   []*prefix // with a first event
	// times are rising by index and time. The state machine keeps indexes only, and people are
	// shown for how long a ticket has held or waited. It knows what this node saw applied, and
	// nothing from before the snapshot with which it began.
	times []appliedTime
}

// New returns an empty history.
func New() *History {
	return &History{first: 1, end: 1, reading: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// eventBytes and itemBytes are about what an event and one of its items take, beside their texts.
const (
	eventBytes = 256
	itemBytes  = 96
)

// size is what the event keeps from being collected. Its texts may be shared with the state
// machine.
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
			h.touchAll(&a.Events[i])
			h.add(a.Events[i])
		}
	}
	if n := len(h.times); n == 0 || a.Time.Sub(h.times[n-1].time) >= timesStep {
		if n == timesMax {
			h.thin(a.Time)
		}
		h.times = append(h.times, appliedTime{a.Index, a.Time})
	}
	if len(h.touched) > 0 {
		signal(h.wake)
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

// Restored forgets everything if the state is a later one: the events in between are not known. A
// node that begins anew with an earlier state, as it does when it opens Raft again, applies the
// same entries once more, and nothing is forgotten.
func (h *History) Restored(m *fsm.Machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.Stamp().Index <= h.index {
		// the items lie beside pointers into the machine that is not used any more
		for n := h.first; n < h.end; n++ {
			h.at(n).Items = slices.Clone(h.at(n).Items)
		}
		return
	}
	h.events, h.first, h.bytes = nil, h.end, 0
	h.index = m.Stamp().Index
	h.compacted = h.index
	h.times = append(slices.Grow(h.times[:0], 1), appliedTime{h.index, m.Time()})
	for _, p := range h.prefixes {
		for _, f := range p.feeds {
			f.cut(h.end+1, h.compacted)
		}
	}
}

// Reached reports whether everything up to an index was applied here.
func (h *History) Reached(index uint64) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.index >= index
}

// Await waits until everything up to an index was applied here, and reports whether that came
// before ctx ended.
func (h *History) Await(ctx context.Context, index uint64) bool {
	look := time.NewTicker(awaitEvery) // so that nobody has to be woken under the lock
	defer look.Stop()
	for !h.Reached(index) {
		select {
		case <-look.C:
		case <-ctx.Done():
			return h.Reached(index)
		}
	}
	return true
}

const (
	// timesStep is the least distance of the latest records.
	timesStep = clock.Second / 10
	// timesMax is how many records there are at most: 64 KiB. When there are as many, those are
	// dropped without which an age is still known to one part in timesPart: at most 3500 are left
	// after ten years.
	timesMax  = 4096
	timesPart = 100
)

// appliedTime: indexes from this one up to that of the next record were applied at time or little
// later.
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
