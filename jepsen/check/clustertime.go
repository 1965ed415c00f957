package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// readErrorMax is how far apart two clocks may be read that are read together.
const readErrorMax = time.Millisecond

// maxElapsed is how long a leader's clock may count while d passes, or how much passes while it counts d.
func (v *historyIndex) maxElapsed(d time.Duration) time.Duration {
	return time.Duration(float64(d) * cmp.Or(v.Plan.ClockRate, 1))
}

// sample is cluster time at an index. The entry that brought it there was stamped after from, if
// that is known, and before to.
type sample struct {
	index, term uint64
	time        time.Duration
	from, to    time.Duration
	hasFrom     bool // from is known
	source      string
}

func (v *historyIndex) samples() []sample {
	var all []sample
	for _, op := range v.ops {
		if op.Outcome == OK && op.Index != 0 && op.Time != 0 {
			all = append(all, sample{op.Index, op.Term, op.Time, op.Call, op.Return, true, op.Client})
		}
	}
	for i := range v.NodeStates {
		if s := &v.NodeStates[i]; s.Time != 0 {
			all = append(all, sample{s.Index, s.Term, s.Time, 0, s.At, false, s.Node})
		}
	}
	slices.SortStableFunc(all, func(a, b sample) int {
		return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.to, b.to))
	})
	return all
}

// checkClusterTime looks for cluster time that fell, or that grew by more than real time did.
func checkClusterTime(f *checker) {
	var slowest *sample // of the fenced ones so far, the one with the least cluster time for its moment
	all := f.samples()
	f.examined = len(all)
	for i := range all {
		s := &all[i]
		if i > 0 {
			last := &all[i-1]
			if s.time < last.time || s.index == last.index && s.time != last.time {
				f.violationf("cluster time was %v at index %d (%s), and is %v at index %d (%s)",
					last.time, last.index, last.source, s.time, s.index, s.source)
			}
			if s.term != 0 && last.term != 0 && (s.term < last.term || s.index == last.index && s.term != last.term) {
				f.violationf("the term was %d at index %d (%s), and is %d at index %d (%s)",
					last.term, last.index, last.source, s.term, s.index, s.source)
			}
		}
		if slowest != nil && s.index > slowest.index && s.time-slowest.time > f.maxElapsed(s.to-slowest.from)+readErrorMax {
			f.violationf("the cluster's clock is fast: from index %d (%s, called at %s) to index %d (%s, seen at %s) "+
				"it counted %v, and %v had passed at most",
				slowest.index, slowest.source, f.formatTime(slowest.from), s.index, s.source, f.formatTime(s.to), s.time-slowest.time, s.to-slowest.from)
		}
		if s.hasFrom && (slowest == nil || s.time-f.maxElapsed(s.from) < slowest.time-f.maxElapsed(slowest.from)) {
			slowest = s
		}
	}
}

// checkDigests looks for nodes that came to different states at one index.
func checkDigests(f *checker) {
	first := map[uint64]*NodeState{}
	for i := range f.NodeStates {
		s := &f.NodeStates[i]
		if s.Digest == 0 {
			continue
		}
		f.examined++
		other := first[s.Index]
		if other == nil {
			first[s.Index] = s
			continue
		}
		if s.Digest != other.Digest {
			f.violationf("at index %d %s has the digest %x, and %s has %x: they hold different states",
				s.Index, other.Node, other.Digest, s.Node, s.Digest)
		}
	}
}

func formatNames(items []Item) string {
	names := ""
	for _, it := range items {
		names += fmt.Sprintf(" %q", it.Name)
	}
	return names
}
