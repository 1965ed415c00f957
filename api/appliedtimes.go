package api

import (
	"slices"
	"sort"
	"sync"

	"zamok/clock"
	"zamok/fsm"
)

const (
	// appliedTimesStep is how far apart the latest marks are at least.
	appliedTimesStep = clock.Second / 10
	// appliedTimesMax is how many there are at most: 64 KiB. When there are as many, those go without
	// which an age is still known to one part in appliedTimesPart: at most 3500 are left after ten years.
	appliedTimesMax  = 4096
	appliedTimesPart = 100
)

// appliedTimes records at what cluster time an index was applied, so that people can be shown for how long
// somebody has held or waited: the machine itself keeps indexes only, which order but do not last.
// It knows what this node saw applied, and nothing from before the snapshot that it began with.
type appliedTimes struct {
	mu    sync.Mutex
	times []appliedTime // rising by index and time
}

// appliedTime: indexes from this one on, up to the next mark's, were applied at time or little later.
type appliedTime struct {
	index uint64
	time  clock.Time
}

// applied notes an entry. It runs under the machine's lock.
func (l *appliedTimes) applied(a fsm.Applied) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.times); n > 0 && a.Time.Sub(l.times[n-1].time) < appliedTimesStep {
		return
	}
	if len(l.times) == appliedTimesMax {
		l.thin(a.Time)
	}
	l.times = append(l.times, appliedTime{a.Index, a.Time})
}

// thin drops marks that are close together for their age; never the first and the last.
func (l *appliedTimes) thin(now clock.Time) {
	kept := l.times[:1]
	for i, m := range l.times[1 : len(l.times)-1] {
		next := l.times[i+2]
		if next.time.Sub(kept[len(kept)-1].time) > now.Sub(next.time)/appliedTimesPart {
			kept = append(kept, m)
		}
	}
	l.times = append(kept, l.times[len(l.times)-1])
}

// restored starts over at a state whose past is not known.
func (l *appliedTimes) restored(m *fsm.Machine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(slices.Grow(l.times[:0], 1), appliedTime{m.Stamp().Index, m.Time()})
}

// at returns when an index was applied; 0: that is not known.
func (l *appliedTimes) at(index uint64) clock.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := sort.Search(len(l.times), func(i int) bool { return l.times[i].index > index })
	if i == 0 || index == 0 {
		return 0
	}
	return max(l.times[i-1].time, 1) // 0 says that it is not known
}
