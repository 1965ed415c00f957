package peer

import (
	"sync"
	"time"
)

const (
	// A measurement is remembered for a minute, less up to a spell.
	spellCount, spellLength = 6, 10 * time.Second
	// spellRank is which of the longest counts: one pause, or two, of a process or of the machine below it,
	// are an accident. What happens three times a minute is how the place is.
	spellRank = 3
)

// WorstRoundTrip is the third longest of what was measured within the last minute. The zero value is ready.
type WorstRoundTrip struct {
	mu     sync.Mutex // guards what follows
	first  time.Time  // the first measurement
	spells [spellCount]struct {
		number  time.Duration            // of spells since the first measurement
		longest [spellRank]time.Duration // in falling order
	}
}

// Add notes a measurement.
func (w *WorstRoundTrip) Add(now time.Time, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first.IsZero() {
		w.first = now
	}
	number := max(now.Sub(w.first), 0) / spellLength
	spell := &w.spells[number%spellCount]
	if spell.number != number {
		spell.number, spell.longest = number, [spellRank]time.Duration{}
	}
	insert(&spell.longest, took)
}

// Now returns the third longest; 0 = there were fewer.
func (w *WorstRoundTrip) Now(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var longest [spellRank]time.Duration
	for i := range w.spells {
		if w.spells[i].number+spellCount <= now.Sub(w.first)/spellLength {
			continue
		}
		for _, took := range w.spells[i].longest {
			insert(&longest, took)
		}
	}
	return longest[spellRank-1]
}

// insert puts a measurement in its place, if it is among the longest.
func insert(longest *[spellRank]time.Duration, took time.Duration) {
	for i := range longest {
		if took > longest[i] {
			longest[i], took = took, longest[i]
		}
	}
}
