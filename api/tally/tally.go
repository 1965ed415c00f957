package tally

import (
	"sync"
	"time"
)

// Count is how often something was added under a key, with the first and the last value.
type Count[V any] struct {
	N           int
	First, Last V
}

// Tally counts. It is safe for concurrent use.
type Tally[K comparable, V any] struct {
	every  time.Duration
	most   int
	report func(K, Count[V])

	reporting sync.Mutex // held during reports; taken before mu

	mu      sync.Mutex // guards what follows
	counts  map[K]*Count[V]
	keys    []K         // of counts, in the order in which they came
	timer   *time.Timer // runs while there are counts
	stopped bool
}

// New makes a tally. The counts of at most so many keys, beside those for the rest, are reported once the first of them is so
// old; then counting starts over.
func New[K comparable, V any](every time.Duration, most int, report func(K, Count[V])) *Tally[K, V] {
	return &Tally[K, V]{every: every, most: most, report: report, counts: make(map[K]*Count[V])}
}

// Add counts something under a key, or under the key for the rest if there are too many.
func (t *Tally[K, V]) Add(key, rest K, value V) {
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

// flush reports the counts. Add does not wait for the reports.
func (t *Tally[K, V]) flush() {
	t.reporting.Lock()
	defer t.reporting.Unlock()
	t.mu.Lock()
	counts, keys := t.counts, t.keys
	t.counts, t.keys, t.timer = make(map[K]*Count[V]), nil, nil
	t.mu.Unlock()
	for _, key := range keys {
		t.report(key, *counts[key])
	}
}

// Stop reports the counts at once. Nothing is counted or reported after it returns.
func (t *Tally[K, V]) Stop() {
	t.mu.Lock()
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop() // if it fires all the same, it finds nothing or is waited for
	}
	t.mu.Unlock()
	t.flush()
}
