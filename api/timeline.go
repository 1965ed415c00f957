package api

import (
	"slices"
	"sort"
	"sync"

	"zamok/clock"
	"zamok/fsm"
)

const (
	// timelineStep is how far apart the latest marks are at least.
	timelineStep = clock.Second / 10
	// timelineMarks is how many there are at most: 64 KiB. When there are as many, those go without
	// which an age is still known to one part in timelinePart: at most 3500 are left after ten years.
	timelineMarks = 4096
	timelinePart  = 100
)

// timeline knows at what cluster time an index was applied, so that people can be told for how long
// somebody has held or waited: the machine itself keeps indexes only, which order but do not last.
// It knows what this node saw applied, and nothing from before the snapshot that it began with.
type timeline struct {
	mu    sync.Mutex
	marks []mark // rising by index and time
}

// mark: indexes from this one on, up to the next mark's, were applied at time or little later.
type mark struct {
	index uint64
	time  clock.Time
}

// applied notes an entry. It runs under the machine's lock.
func (l *timeline) applied(a fsm.Applied) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.marks); n > 0 && a.Time.Sub(l.marks[n-1].time) < timelineStep {
		return
	}
	if len(l.marks) == timelineMarks {
		l.thin(a.Time)
	}
	l.marks = append(l.marks, mark{a.Index, a.Time})
}

// thin drops marks that are close together for their age; never the first and the last.
func (l *timeline) thin(now clock.Time) {
	kept := l.marks[:1]
	for i, m := range l.marks[1 : len(l.marks)-1] {
		next := l.marks[i+2]
		if next.time.Sub(kept[len(kept)-1].time) > now.Sub(next.time)/timelinePart {
			kept = append(kept, m)
		}
	}
	l.marks = append(kept, l.marks[len(l.marks)-1])
}

// restored begins anew at a state whose past is not known.
func (l *timeline) restored(m *fsm.Machine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks = append(slices.Grow(l.marks[:0], 1), mark{m.Stamp().Index, m.Time()})
}

// at returns when an index was applied; 0: that is not known.
func (l *timeline) at(index uint64) clock.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := sort.Search(len(l.marks), func(i int) bool { return l.marks[i].index > index })
	if i == 0 || index == 0 {
		return 0
	}
	return max(l.marks[i-1].time, 1) // 0 says that it is not known
}
