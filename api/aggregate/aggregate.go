package aggregate

import (
	"sync"
	"time"
)

// Count is how many events were added under a key, with the first and the last value.
type Count[V any] struct {
	N           int
	First, Last V
}

// Counter counts events. It is safe for concurrent use.
type Counter[K comparable, V any] struct {
	every time.Duration
	most  int
	emit  func(K, Count[V])

	emitting sync.Mutex // held while counts are emitted; taken before mu

	mu      sync.Mutex // guards what follows
	counts  map[K]*Count[V]
	keys    []K         // of counts, in the order in which they came
	timer   *time.Timer // runs while there are counts
	stopped bool
}

// New makes a counter. The counts of at most so many keys, beside those for the rest, are emitted
// once the first of them is so old; then counting starts over.
func New[K comparable, V any](every time.Duration, most int,
	emit func(K, Count[V])) *Counter[K, V] {
	return &Counter[K, V]{every: every, most: most, emit: emit, counts: make(map[K]*Count[V])}
}

// Add counts something under a key, or under the key for the rest if there are too many.
func (t *Counter[K, V]) Add(key, rest K, value V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	if t.counts[key] == nil && len(t.counts) >= t.most {
		key = rest
	}
	c := t.counts[key]
	if c == nil {
		c = &Count[V]{First: value}
		t.counts[key] = c
		t.keys = append(t.keys, key)
	}
	c.N++
	c.Last = value
	if t.timer == nil {
		t.timer = time.AfterFunc(t.every, t.flush)
	}
}

// flush emits the counts. Add does not wait for that.
func (t *Counter[K, V]) flush() {
	t.emitting.Lock()
	defer t.emitting.Unlock()
	t.mu.Lock()
	counts, keys := t.counts, t.keys
	t.counts, t.keys, t.timer = make(map[K]*Count[V]), nil, nil
	t.mu.Unlock()
	for _, key := range keys {
		t.emit(key, *counts[key])
	}
}

// Stop emits the counts at once. Nothing is counted or emitted after it returns.
func (t *Counter[K, V]) Stop() {
	t.mu.Lock()
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop() // if it fires all the same, it finds nothing or is waited for
	}
	t.mu.Unlock()
	t.flush()
}
