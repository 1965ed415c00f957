package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// readMax is how far apart two clocks may be read that are read together.
const readMax = time.Millisecond

// most is how long a leader's clock may count while d passes, or how much passes while it counts d.
func (v *view) most(d time.Duration) time.Duration {
	return time.Duration(float64(d) * orElse(v.Plan.Rate, 1))
}

// sample is cluster time at an index. The entry that brought it there was stamped after from, if
// that is known, and before to.
type sample struct {
	index, term uint64
	time        time.Duration
	from, to    time.Duration
	fenced      bool // from is known
	who         string
}

func (v *view) samples() []sample {
	var all []sample
	for _, op := range v.ops {
		if op.Outcome == OK && op.Index != 0 && op.Time != 0 {
			all = append(all, sample{op.Index, op.Term, op.Time, op.Call, op.Return, true, op.Client})
		}
	}
	for i := range v.Seen {
		if s := &v.Seen[i]; s.Time != 0 {
			all = append(all, sample{s.Index, s.Term, s.Time, 0, s.At, false, s.Node})
		}
	}
	slices.SortStableFunc(all, func(a, b sample) int {
		return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.to, b.to))
	})
	return all
}

// clocks looks for cluster time that fell, or that grew by more than real time did.
func clocks(f *finder) {
	var early *sample // of the fenced ones so far, the one with the least cluster time for its moment
	all := f.samples()
	f.looked = len(all)
	for i := range all {
		s := &all[i]
		if i > 0 {
			last := &all[i-1]
			if s.time < last.time || s.index == last.index && s.time != last.time {
				f.wrong("cluster time was %v at index %d (%s), and is %v at index %d (%s)",
					last.time, last.index, last.who, s.time, s.index, s.who)
			}
			if s.term != 0 && last.term != 0 && (s.term < last.term || s.index == last.index && s.term != last.term) {
				f.wrong("the term was %d at index %d (%s), and is %d at index %d (%s)",
					last.term, last.index, last.who, s.term, s.index, s.who)
			}
		}
		if early != nil && s.index > early.index && s.time-early.time > f.most(s.to-early.from)+readMax {
			f.wrong("the cluster's clock is fast: from index %d (%s, called at %s) to index %d (%s, seen at %s) "+
				"it counted %v, and %v had passed at most",
				early.index, early.who, f.at(early.from), s.index, s.who, f.at(s.to), s.time-early.time, s.to-early.from)
		}
		if s.fenced && (early == nil || s.time-f.most(s.from) < early.time-f.most(early.from)) {
			early = s
		}
	}
}

// digests looks for nodes that came to different states at one index.
func digests(f *finder) {
	first := map[uint64]*Seen{}
	for i := range f.Seen {
		s := &f.Seen[i]
		if s.Digest == 0 {
			continue
		}
		f.looked++
		other := first[s.Index]
		if other == nil {
			first[s.Index] = s
			continue
		}
		if s.Digest != other.Digest {
			f.wrong("at index %d %s has the digest %x, and %s has %x: they hold different states",
				s.Index, other.Node, other.Digest, s.Node, s.Digest)
		}
	}
}

func lockNames(items []Item) string {
	names := ""
	for _, it := range items {
		names += fmt.Sprintf(" %q", it.Name)
	}
	return names
}
