package history

import (
	"context"
	"slices"
	"sort"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
)

// Watch sends what a feed reads. A watch that is behind reads for itself until it has caught up. It
// keeps no events of its own: it ends if it is so slow that an event is forgotten before it has
// read it.
type Watch struct {
	history *History
	feed    *feed
	wake    chan struct{} // capacity 1: the feed has a batch
	ctx     context.Context
	cancel  context.CancelCauseFunc // with why it can't continue
	index   uint64                  // everything up to here was read

	next uint64 // the number of the event that it reads next; see feed.mu
	seen *batch // of the feed, that it has sent or needs not
}

// Watch begins to watch after index from, or from now on with 0. The caller calls End. Watches of
// one prefix with the same who have the same view.
func (h *History) Watch(ctx context.Context, prefix string, from uint64, who string,
	view View) (*Watch, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from != 0 && from < h.compacted {
		return nil, compactedError(from, h.compacted)
	}
	w := &Watch{history: h, wake: make(chan struct{}, 1), index: from, next: h.end}
	if from == 0 {
		w.index = h.index
	} else {
		w.next -= uint64(sort.Search(int(h.end-h.first),
			func(n int) bool { return h.at(h.end-1-uint64(n)).Index <= from }))
	}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.feed = h.feedOf(prefix, who, view)
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.feed.watches[w] = struct{}{}
	if n := len(w.feed.kept); n > 0 && w.next >= w.feed.kept[n-1].next {
		w.seen = w.feed.kept[n-1]
	}
	return w, nil
}

// feedOf returns the feed for a watch. The caller holds the lock.
func (h *History) feedOf(text, who string, view View) *feed {
	i, found := slices.BinarySearchFunc(h.prefixes, text,
		func(p *prefix, text string) int { return strings.Compare(p.text, text) })
	if !found {
		h.prefixes = slices.Insert(h.prefixes, i,
			&prefix{text: text, feeds: make(map[string]*feed)})
		h.link()
		for _, below := range h.prefixes[i+1:] {
			if strings.HasPrefix(below.text, text) && below.first != 0 {
				h.touch(text) // what is above one that is touched is
				break
			}
		}
	}
	p := h.prefixes[i]
	if p.feeds[who] == nil {
		p.feeds[who] = &feed{under: p, who: who, view: view, given: h.end, taken: true,
			watches: make(map[*Watch]struct{})}
	}
	return p.feeds[who]
}

// Done is closed when the watch can't continue, or its context ended.
func (w *Watch) Done() <-chan struct{} { return w.ctx.Done() }

// Err is, once Done is closed, the reason.
func (w *Watch) Err() error { return context.Cause(w.ctx) }

// End stops a watch.
func (w *Watch) End() {
	w.cancel(nil)
	h, f := w.history, w.feed
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watches, w)
	if len(f.watches) > 0 || f.under.feeds[f.who] != f {
		return
	}
	for len(f.kept) > 0 {
		h.drop(f)
	}
	delete(f.under.feeds, f.who)
	if len(f.under.feeds) == 0 {
		h.prefixes = slices.DeleteFunc(h.prefixes, func(p *prefix) bool { return p == f.under })
		h.link()
	}
}

// Send sends encoded frames until it fails or the watch is done: first one with the index at which
// the watch begins.
func (w *Watch) Send(send func(message any) error) error {
	err := w.send(send, &batch{frame: &zamokpb.WatchFrame{Index: w.index}})
	for err == nil {
		if b := w.take(); b != nil {
			err = w.send(send, b)
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

// send sends a batch, if there is room for it beside what the other watches are sending.
func (w *Watch) send(send func(any) error, b *batch) error {
	message, err := b.encoded()
	if err != nil {
		return err
	}
	bytes := int64(proto.Size(message))
	used := w.history.sending.Add(bytes)
	defer w.history.sending.Add(-bytes)
	if 2*bytes > sendingBytesMax-used {
		return tooManyBytes(b)
	}
	return send(message)
}

// take returns what is to be sent next; nil: there is nothing yet, or the watch is done.
func (w *Watch) take() *batch {
	for w.ctx.Err() == nil {
		rules, may := w.feed.view()
		kept, from, end := w.look(rules)
		if kept != nil || from == end {
			return kept
		}
		if own := w.read(may, from, end); own != nil {
			return own
		}
	}
	return nil
}

// look returns the next batch that the feed keeps, or which events the watch has to read for itself
// before.
func (w *Watch) look(rules any) (kept *batch, from, end uint64) {
	f := w.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.kept, func(b *batch) bool {
		return b.next > w.next || b.isBeat() && b.next == w.next && b != w.seen
	})
	if i < 0 && w.next < f.given {
		return nil, w.next, f.given
	}
	if !f.taken && (i < 0 || i == len(f.kept)-1) {
		f.taken = true
		signal(w.history.wake)
	}
	if i < 0 {
		return nil, 0, 0
	}
	switch b := f.kept[i]; {
	case !b.follows(w.next):
		if w.next < b.after {
			return nil, w.next, b.after
		}
		return nil, w.next, b.next
	case b.isBeat() || b.isShared() && b.rules == rules:
		w.seen, w.next, w.index = b, b.next, b.index
		return b, 0, 0
	default:
		return nil, b.from, b.next
	}
}

// read reads for this watch alone, up to a number. Watches do that in turn, and rest as Run does.
// Nil: there is nothing.
func (w *Watch) read(may func(string) bool, from, end uint64) *batch {
	h, f := w.history, w.feed
	select {
	case h.reading <- struct{}{}:
		defer func() { <-h.reading }()
	case <-w.Done():
		return nil
	}
	begun := time.Now()
	b, err := h.collect(f.under.text, may, from, end)
	if err != nil {
		if err == errForgotten {
			_, compacted := h.forgotten()
			err = compactedError(w.index, compacted)
		}
		w.cancel(err)
		return nil
	}
	f.mu.Lock()
	w.next, w.index = b.next, max(w.index, b.index)
	f.mu.Unlock()
	_, _ = b.encoded() // it takes time as well; send reports the error
	rest := time.NewTimer(min(restRatio*time.Since(begun), restMax))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-w.Done():
	}
	if b.bytes == 0 {
		return nil
	}
	return b
}
