package history

import (
	"cmp"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/fsm"
)

const (
	// beatEvery is how often each watch is sent its index, so that it can come back there and need
	// not list again. The beat is the same whatever happens, so it hides that there are events
	// which a watch may not see.
	beatEvery = 15 * time.Second
	// Run rests restRatio times as long as it worked, but for restMax at most: watches take a part
	// of one processor. What is applied meanwhile is sent in one frame.
	restRatio = 3
	restMax   = 100 * time.Millisecond
	// frameBytesMax bounds the events of several indexes in one frame, and the frames that watches
	// share.
	frameBytesMax = 64 << 10
	// keptMax and keptBytesMax bound the frames that a feed keeps for watches that are a little
	// behind, and those that all feeds keep beside the latest one of each.
	keptMax      = 16
	keptBytesMax = 16 << 20
	// indexBytesMax bounds the events of one index that a watch sends, and sendingBytesMax what all
	// watches are sending: a watch that needs more than half of what is left of that ends with
	// COMPACTED, as if the events had been forgotten.
	indexBytesMax   = 1 << 20
	sendingBytesMax = 64 << 20
	// step is how many events are looked at before the lock of the history is released.
	step = 256
)

// View returns what may be watched: the events of a lock if may is true of its name, with "" the
// ends of sessions. What decides that is rules, which can be compared. It is called without locks,
// since it may read files.
type View func() (rules any, may func(name string) bool)

// prefix is one that is watched.
type prefix struct {
	text string
	up   *prefix // the longest other one with which it begins
	// the number of the first event under it that its feeds were not given; 0: none
	first uint64
	feeds map[string]*feed // by who watches
}

// touchAll records that an event is for the feeds of all prefixes of its names. The end of a
// session has no name, so it is under the empty prefix only. The caller holds the lock.
func (h *History) touchAll(e *fsm.Event) {
	if len(h.prefixes) == 0 {
		return
	}
	if e.Kind == fsm.EvSessionEnded {
		h.touch("")
	}
	for i := range e.Items {
		h.touch(e.Items[i].Name)
	}
}

// touch costs a search, and nothing for what is touched already: all prefixes of a name are among
// the last one that is not behind the name in order, and those above it; and above one that is
// touched all are. The caller holds the lock.
func (h *History) touch(name string) {
	i := sort.Search(len(h.prefixes), func(i int) bool { return h.prefixes[i].text > name })
	if i == 0 {
		return
	}
	p, same := h.prefixes[i-1], 0
	for same < min(len(name), len(p.text)) && name[same] == p.text[same] {
		same++
	}
	for ; p != nil && p.first == 0; p = p.up {
		if len(p.text) <= same {
			p.first = h.end
			h.touched = append(h.touched, p)
		}
	}
}

// link sets what is above each prefix. The caller holds the lock.
func (h *History) link() {
	var up *prefix
	for _, p := range h.prefixes {
		for up != nil && !strings.HasPrefix(p.text, up.text) {
			up = up.up
		}
		p.up, up = up, p
	}
}

// feed reads for all watches of a prefix that may be sent the same.
type feed struct {
	under *prefix
	who   string
	view  View
	due   uint64 // the number of the event that it reads next; 0: there is none. Used by Run only

	// guards what follows, and next and seen of its watches; taken under the lock of the history
	mu      sync.Mutex
	given   uint64   // behind the last event that was put into a batch
	kept    []*batch // the latest ones, for watches that are a little behind
	taken   bool     // a watch has come as far as the last of them: the next is needed
	watches map[*Watch]struct{}
}

// batch is what a watch sends at once: the events of some indexes; or, without events, an index up
// to which there was none.
type batch struct {
	// numbers: nothing from after to from is for the feed; the watch continues at next
	after, from, next uint64
	index             uint64
	bytes             int // of the events
	rules             any // with which it was made
	frame             *zamokpb.WatchFrame

	encode  sync.Once
	message *emptypb.Empty // has the encoded frame as unknown fields
	err     error
}

// follows reports whether a watch that continues at a number misses nothing if it is sent the
// batch.
func (b *batch) follows(next uint64) bool { return b.after <= next && next <= b.from }

// keeps is how much a feed keeps with the batch.
func (b *batch) keeps() int64 {
	if b.isShared() {
		return int64(b.bytes)
	}
	return 0
}

// isBeat reports whether the batch is an index without events.
func (b *batch) isBeat() bool { return b.bytes == 0 }

// isShared reports whether the watches of a feed send the batch; else each reads for itself.
func (b *batch) isShared() bool { return b.bytes <= frameBytesMax }

// encoded is the message of the frame, which is encoded once for all streams.
func (b *batch) encoded() (proto.Message, error) {
	b.encode.Do(func() {
		var encoded []byte
		encoded, b.err = proto.Marshal(b.frame)
		b.message, b.frame = &emptypb.Empty{}, nil
		b.message.ProtoReflect().SetUnknown(encoded)
	})
	return b.message, b.err
}

// Run reads for the watches until stopping is closed.
func (h *History) Run(stopping <-chan struct{}) {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		select {
		case <-h.wake:
		case <-beat.C:
			h.beat()
		case <-stopping:
			return
		}
		begun := time.Now()
		h.deliver()
		rest := time.NewTimer(min(restRatio*time.Since(begun), restMax))
		select {
		case <-rest.C:
		case <-stopping:
			rest.Stop()
			return
		}
	}
}

// deliver gives the feeds what was applied, to each up to one frame.
func (h *History) deliver() {
	h.mu.Lock()
	for _, p := range h.touched {
		for _, f := range p.feeds {
			if f.due == 0 {
				f.due = p.first
				h.due = append(h.due, f)
			}
		}
		p.first = 0
	}
	clear(h.touched)
	h.touched = h.touched[:0]
	end := h.end
	h.mu.Unlock()
	h.due = slices.DeleteFunc(h.due, func(f *feed) bool { return !h.feed(f, end) })
}

// feed gives a feed up to one frame of the events before end, and reports whether there are more.
// The next one is read once a watch has come so far, which wakes Run.
func (h *History) feed(f *feed, end uint64) (more bool) {
	f.mu.Lock()
	taken, watched := f.taken, len(f.watches) > 0
	if !watched { // one that comes before the feed is gone reads for itself
		f.given = end
	}
	f.mu.Unlock()
	first, compacted := h.forgotten()
	switch {
	case !watched:
		f.due = 0
		return false
	case !taken && f.due >= first:
		return true
	}
	rules, may := f.view()
	b, err := h.collect(f.under.text, may, f.due, end)
	switch {
	case err == errForgotten: // it comes here too late
		first, compacted = h.forgotten()
		f.cut(first, compacted)
		b.next = min(first, end)
	case b.bytes > 0:
		if err != nil { // each watch finds that for itself
			b.next = end
		}
		if !b.isShared() {
			b.frame = nil
		}
		b.rules = rules
		h.put(f, b, first, compacted)
	}
	if f.due = b.next; f.due < end {
		signal(h.wake)
		return true
	}
	f.due = 0
	return false
}

// forgotten is up to where events are forgotten.
func (h *History) forgotten() (first, compacted uint64) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.first, h.compacted
}

// beat sends each watch the index up to which it has all of its events.
func (h *History) beat() {
	h.mu.RLock()
	var feeds []*feed
	var beats []*batch
	for _, p := range h.prefixes {
		for _, f := range p.feeds {
			at, index := cmp.Or(f.due, p.first, h.end), h.index
			if at < h.first { // deliver cuts its watches
				continue
			}
			if at < h.end {
				index = h.at(at).Index - 1
			}
			feeds = append(feeds, f)
			beats = append(beats, &batch{from: at, next: at, index: index,
				frame: &zamokpb.WatchFrame{Index: index}})
		}
	}
	first, compacted := h.first, h.compacted
	h.mu.RUnlock()
	for i, f := range feeds {
		h.put(f, beats[i], first, compacted)
	}
}

// put wakes the watches to send a batch. A watch behind the batches that are kept reads for itself.
// It ends if its events are forgotten.
func (h *History) put(f *feed, b *batch, first, compacted uint64) {
	f.mu.Lock()
	b.after = f.given
	if n := len(f.kept); n > 0 && f.kept[n-1].isBeat() {
		f.kept = f.kept[:n-1]
	}
	if !b.isBeat() {
		f.given, f.taken = b.next, false
		for len(f.kept) == keptMax || len(f.kept) > 0 && h.kept.Load() > keptBytesMax {
			h.drop(f)
		}
	}
	woken := slices.Collect(maps.Keys(f.watches))
	if len(woken) == 0 {
		f.mu.Unlock()
		return
	}
	f.kept = append(f.kept, b)
	h.kept.Add(b.keeps())
	after := f.kept[0].after
	f.mu.Unlock()
	f.cut(min(first, after), compacted)
	for _, w := range woken {
		signal(w.wake)
		runtime.Gosched() // calls go first
	}
}

// drop drops the oldest batch that a feed keeps. A watch that was to send it reads for itself, from
// there. The caller holds the lock of the feed.
func (h *History) drop(f *feed) {
	old := f.kept[0]
	f.kept = slices.Delete(f.kept, 0, 1)
	h.kept.Add(-old.keeps())
	for w := range f.watches {
		if old.follows(w.next) {
			w.next = old.from
		}
	}
}

// cut ends the watches that have not read the events up to a number, which are forgotten now.
func (f *feed) cut(before, compacted uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watches {
		if w.next < before {
			w.cancel(compactedError(w.index, compacted))
			delete(f.watches, w)
		}
	}
}

// errForgotten: the events that were to be read are forgotten.
var errForgotten = errors.New("forgotten")

// collect reads the events under a prefix, from a number up to end, that one frame takes: those of
// as many indexes as have frameBytesMax together, or of one that has more.
func (h *History) collect(prefix string, may func(string) bool, from, end uint64) (*batch, error) {
	b := &batch{from: from, next: from, frame: &zamokpb.WatchFrame{}}
	var whole batch // b, without the events of the last index
	before := 0     // how many events that has
	for b.next < end {
		events, numbers, next := h.page(prefix, b.next, end)
		if next == b.next {
			return b, errForgotten
		}
		for i := range events {
			e := &events[i]
			sent := lockEvent(e, prefix, may)
			if sent == nil {
				continue
			}
			if e.Index != b.index {
				whole.next, whole.index, whole.bytes, before = numbers[i], b.index, b.bytes,
					len(b.frame.Events)
			}
			b.index, b.bytes = e.Index, b.bytes+size(e)
			b.frame.Index, b.frame.Events = e.Index, append(b.frame.Events, sent)
			switch {
			case before > 0 && b.bytes > frameBytesMax:
				b.next, b.index, b.bytes = whole.next, whole.index, whole.bytes
				b.frame.Index, b.frame.Events = b.index, b.frame.Events[:before]
				return b, nil
			case b.bytes > indexBytesMax:
				return b, tooManyBytes(b)
			}
		}
		b.next = next
	}
	return b, nil
}

// page collects what is under a prefix of the next events, with their numbers. It returns the
// number of the event behind them: the same if they are forgotten.
func (h *History) page(prefix string,
	from, end uint64) (events []fsm.Event, numbers []uint64, next uint64) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if from < h.first {
		return nil, nil, from
	}
	for next = from; next < min(end, from+step); next++ {
		e := h.at(next)
		if prefix == "" || slices.ContainsFunc(e.Items,
			func(it fsm.Item) bool { return strings.HasPrefix(it.Name, prefix) }) {
			events, numbers = append(events, *e), append(numbers, next)
		}
	}
	return events, numbers, next
}

// lockEvent is the message for an event, with those of its locks that are under the prefix and may
// be seen. Nil: there are none.
func lockEvent(e *fsm.Event, prefix string, may func(string) bool) *zamokpb.LockEvent {
	sent := &zamokpb.LockEvent{
		Index: e.Index, Kind: kindOf(e), Session: uint64(e.Session), Ticket: e.Ticket,
		Token: e.Token, Reason: zamokpb.Reason(e.Reason), Text: e.Text, Label: e.Label,
	}
	var items []fsm.Item
	for _, it := range e.Items {
		if strings.HasPrefix(it.Name, prefix) && may(it.Name) {
			items = append(items, it)
		}
	}
	if sent.Items = wire.Items(items); len(items) > 0 ||
		e.Kind == fsm.EvSessionEnded && prefix == "" && may("") {
		return sent
	}
	return nil
}

// kinds are the kinds of events on the wire. Watches are not sent others.
var kinds = map[fsm.EventKind]zamokpb.EventKind{
	fsm.EvGranted: zamokpb.EventKind_EVENT_GRANTED, fsm.EvRefused: zamokpb.EventKind_EVENT_REFUSED,
	fsm.EvLost: zamokpb.EventKind_EVENT_LOST, fsm.EvReleased: zamokpb.EventKind_EVENT_RELEASED,
	fsm.EvDowngraded:   zamokpb.EventKind_EVENT_DOWNGRADED,
	fsm.EvSessionEnded: zamokpb.EventKind_EVENT_ENDED,
}

// kindOf is the kind of an event on the wire; unspecified: watches are not sent it.
func kindOf(e *fsm.Event) zamokpb.EventKind {
	if e.Kind == fsm.EvReleased && e.Token == 0 {
		return zamokpb.EventKind_EVENT_CANCELLED
	}
	return kinds[e.Kind]
}

// tooManyBytes ends a watch whose next index has more bytes than may be sent at once.
func tooManyBytes(b *batch) error {
	return wire.Errorf(zamokpb.Code_CODE_COMPACTED,
		"what happened at index %d takes %d bytes or more; at most %d are sent at once, and "+
			"fewer while other watches do not read: list again, and watch from the list's index",
		b.index, b.bytes, indexBytesMax)
}

// compactedError ends a watch that would omit events.
func compactedError(from, remembered uint64) error {
	return wire.Errorf(zamokpb.Code_CODE_COMPACTED,
		"what happened after index %d is not remembered here any more, only what happened after "+
			"%d: list again, and watch from the list's index", from, remembered)
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
