package peer

import (
	"slices"
	"sync"
	"time"
)

const (
	// tripMemory is for how long a measurement counts.
	tripMemory = time.Minute
	// tripRank is which of the longest counts: one pause, or two, of a process or of the machine below it,
	// are an accident. What happens three times a minute is how the place is.
	tripRank = 3
)

// WorstRoundTrip is the third longest of what was measured within the last minute. The zero value is ready.
type WorstRoundTrip struct {
	mu    sync.Mutex // guards trips
	trips []trip     // those of the last minute that may come to count
}

type trip struct {
	at     time.Time
	took   time.Duration
	longer int // later ones that took at least as long; with tripRank of them this one never counts
}

// Add notes a measurement.
func (w *WorstRoundTrip) Add(now time.Time, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.trips {
		if took >= w.trips[i].took {
			w.trips[i].longer++
		}
	}
	w.trips = slices.DeleteFunc(w.trips, func(t trip) bool {
		return t.longer == tripRank || now.Sub(t.at) >= tripMemory
	})
	w.trips = append(w.trips, trip{at: now, took: took})
}

// Now returns the third longest; 0 = there were fewer.
func (w *WorstRoundTrip) Now(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := make([]time.Duration, tripRank)
	for _, t := range w.trips {
		if now.Sub(t.at) < tripMemory {
			longest = append(longest, t.took)
		}
	}
	slices.Sort(longest)
	return longest[len(longest)-tripRank]
}
