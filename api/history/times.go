package history

import (
	"slices"
	"sort"
	"sync"

	"zamok/clock"
	"zamok/fsm"
)

const (
	// timesStep is the least distance of the latest records.
	timesStep = clock.Second / 10
	// timesMax is how many records there are at most: 64 KiB. When there are as many, those are dropped
	// without which an age is still known to one part in timesPart: at most 3500 are left after ten years.
	timesMax  = 4096
	timesPart = 100
)

// Times records at what cluster time an index was applied, so that people can be shown for how long a ticket
// has held or waited: the state machine keeps indexes only. It knows what this node saw applied, and nothing
// from before the snapshot with which it began. The zero value is ready for use.
type Times struct {
	mu    sync.Mutex
	times []appliedTime // rising by index and time
}

// appliedTime: indexes from this one up to that of the next record were applied at time or little later.
type appliedTime struct {
	index uint64
	time  clock.Time
}

// Applied records an entry. It runs under the state machine's lock.
func (l *Times) Applied(a fsm.Applied) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.times); n > 0 && a.Time.Sub(l.times[n-1].time) < timesStep {
		return
	}
	if len(l.times) == timesMax {
		l.thin(a.Time)
	}
	l.times = append(l.times, appliedTime{a.Index, a.Time})
}

// thin drops records that are close together for their age; never the first and the last.
func (l *Times) thin(now clock.Time) {
	kept := l.times[:1]
	for i, m := range l.times[1 : len(l.times)-1] {
		next := l.times[i+2]
		if next.time.Sub(kept[len(kept)-1].time) > now.Sub(next.time)/timesPart {
			kept = append(kept, m)
		}
	}
	l.times = append(kept, l.times[len(l.times)-1])
}

// Restored starts over at a state whose past is not known.
func (l *Times) Restored(m *fsm.Machine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(slices.Grow(l.times[:0], 1), appliedTime{m.Stamp().Index, m.Time()})
}

// At returns when an index was applied; 0: that is not known.
func (l *Times) At(index uint64) clock.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := sort.Search(len(l.times), func(i int) bool { return l.times[i].index > index })
	if i == 0 || index == 0 {
		return 0
	}
	return max(l.times[i-1].time, 1) // 0 would mean unknown
}
