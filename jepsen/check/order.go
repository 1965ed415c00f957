package check

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"
)

// withLatestBefore yields each call with the highest-ranking one of those that had reached some
// point before it began; nil = none had. reached is when a call reached that point, 0 = never.
func withLatestBefore(calls []*Op, reached func(*Op) time.Duration,
	rank func(*Op) uint64) iter.Seq2[*Op, *Op] {
	sorted := func(when func(*Op) time.Duration) []*Op {
		return slices.SortedStableFunc(slices.Values(calls),
			func(a, b *Op) int { return cmp.Compare(when(a), when(b)) })
	}
	return func(yield func(op, highest *Op) bool) {
		before := slices.DeleteFunc(sorted(reached), func(op *Op) bool { return reached(op) == 0 })
		var highest *Op
		for _, op := range sorted(func(op *Op) time.Duration { return op.Call }) {
			for ; len(before) > 0 && reached(before[0]) < op.Call; before = before[1:] {
				if highest == nil || rank(before[0]) > rank(highest) {
					highest = before[0]
				}
			}
			if !yield(op, highest) {
				return
			}
		}
	}
}

// checkMonotonic looks for calls that began after another had been answered and took effect no
// later. What a call does takes an index of its own, above all that were returned before.
func checkMonotonic(f *checker) {
	calls := slices.DeleteFunc(slices.Clone(f.ops),
		func(op *Op) bool { return op.effectIndex() == 0 })
	for op, highest := range withLatestBefore(calls,
		func(op *Op) time.Duration { return op.Return }, (*Op).effectIndex) {
		f.examined++
		if highest != nil && highest.effectIndex() >= op.effectIndex() {
			f.violationf("it went back: %s; after %s", f.describeEffect(op),
				f.describeEffect(highest))
		}
	}
	f.checkUniqueTokens()
}

func (v *historyIndex) describeEffect(op *Op) string {
	unit, name := "index", ""
	if op.acquires() {
		unit = "token"
	}
	if len(op.Items) > 0 {
		name = fmt.Sprintf(" %q", op.Items[0].Name)
	}
	return fmt.Sprintf("%s%s of %s, called at %s and answered at %s with %s %d",
		op.Kind, name, op.Client, v.formatTime(op.Call), v.formatTime(op.Return), unit,
		op.effectIndex())
}

// effectIndex is the index at which a call took effect, 0 if it is not known.
func (op *Op) effectIndex() uint64 {
	switch {
	case op.Outcome != OK || op.Return == 0:
		return 0
	case op.acquires():
		return op.Token
	default:
		return op.Index
	}
}

// checkUniqueTokens looks for tokens that were granted twice, and for those of earlier runs.
func (f *checker) checkUniqueTokens() {
	for _, l := range f.locks {
		first := map[uint64]*Op{}
		for _, op := range l.grants {
			if op.Token <= f.Plan.TokensAbove {
				f.violationf(
					"lock %q: %s was granted token %d at %s, and earlier runs had come to %d",
					l.name, op.Client, op.Token, f.formatTime(op.Return), f.Plan.TokensAbove)
			}
			other := first[op.Token]
			if other == nil {
				first[op.Token] = op
				continue
			}
			if !compatible(itemFor(op.Items, l.name), itemFor(other.Items, l.name)) {
				f.violationf("lock %q: token %d was granted to %s (answered at %s) and to %s "+
					"(answered at %s)",
					l.name, op.Token, other.Client, f.formatTime(other.Return), op.Client,
					f.formatTime(op.Return))
			}
		}
	}
}

// checkFIFO looks for grants that overtook: a call that was known to wait before another one even
// began is granted no later than that other.
func checkFIFO(f *checker) {
	queued, token := func(op *Op) time.Duration { return op.Queued },
		func(op *Op) uint64 { return op.Token }
	for _, l := range f.locks {
		for op, last := range withLatestBefore(l.grants, queued, token) {
			if last == nil {
				continue
			}
			f.examined++
			if last.Token > op.Token {
				f.violationf("lock %q: %s overtook %s: %s called at %s and was granted token %d; "+
					"%s was known at %s to wait, and got token %d", l.name, op.Client, last.Client,
					op.Client, f.formatTime(op.Call), op.Token, last.Client,
					f.formatTime(last.Queued), last.Token)
			}
		}
	}
}

// readErrorMax is how far apart two clocks may be read that are read together.
const readErrorMax = time.Millisecond

// maxElapsed is how long a leader's clock may count while d passes, or how much passes while it
// counts d.
func (v *historyIndex) maxElapsed(d time.Duration) time.Duration {
	return time.Duration(float64(d) * cmp.Or(v.Plan.ClockRate, 1))
}

// sample is cluster time at an index. The entry that brought it there was stamped after from,
// unless that is 0 and not known, and before to.
type sample struct {
	index, term uint64
	time        time.Duration
	from, to    time.Duration
	source      string
}

func (v *historyIndex) samples() []sample {
	var all []sample
	for _, op := range v.ops {
		if op.Outcome == OK && op.Index != 0 && op.Time != 0 {
			all = append(all, sample{op.Index, op.Term, op.Time, op.Call, op.Return, op.Client})
		}
	}
	for i := range v.NodeStates {
		if s := &v.NodeStates[i]; s.Time != 0 {
			all = append(all, sample{s.Index, s.Term, s.Time, 0, s.At, s.Node})
		}
	}
	slices.SortStableFunc(all, func(a, b sample) int {
		return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.to, b.to))
	})
	return all
}

// checkClusterTime looks for cluster time that fell, or that grew by more than real time did.
func checkClusterTime(f *checker) {
	// of the samples with a lower bound so far, the one with the least cluster time
	var slowest *sample
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
			if s.term != 0 && last.term != 0 &&
				(s.term < last.term || s.index == last.index && s.term != last.term) {
				f.violationf("the term was %d at index %d (%s), and is %d at index %d (%s)",
					last.term, last.index, last.source, s.term, s.index, s.source)
			}
		}
		if slowest != nil && s.index > slowest.index &&
			s.time-slowest.time > f.maxElapsed(s.to-slowest.from)+readErrorMax {
			f.violationf("the cluster's clock is fast: from index %d (%s, called at %s) to index "+
				"%d (%s, seen at %s) it counted %v, and %v had passed at most",
				slowest.index, slowest.source, f.formatTime(slowest.from), s.index, s.source,
				f.formatTime(s.to), s.time-slowest.time, s.to-slowest.from)
		}
		if s.from != 0 && (slowest == nil ||
			s.time-f.maxElapsed(s.from) < slowest.time-f.maxElapsed(slowest.from)) {
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
			f.violationf(
				"at index %d %s has the digest %x, and %s has %x: they hold different states",
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

// checkLogExclusion replays the grants and ends of every lock, and checks that its holders fit
// together and that tokens rise. A session ends once, with all that it holds.
func checkLogExclusion(f *checker) {
	for _, pair := range f.conflicts {
		a, b := pair[0], pair[1]
		f.violationf("at index %d, ticket %s %s: %s has token %d, %q, items %v, and %s has token "+
			"%d, %q, items %v",
			a.Index, a.Ref, a.Kind,
			cmp.Or(a.Node, "one node"), a.Token, a.Reason, a.Items,
			cmp.Or(b.Node, "another"), b.Token, b.Reason, b.Items)
	}
	for _, ev := range f.events {
		if first := f.session(ev.Session).loggedEnd; ev.Kind == EvEnded && ev.Index != 0 &&
			ev != first {
			f.violationf("session %d ended twice: at index %d, and at index %d", ev.Session,
				first.Index, ev.Index)
		}
	}
	for _, l := range f.locks {
		token := uint64(0) // the greatest
		for ev, holders := range l.replay() {
			if ev.Kind != EvGranted {
				continue
			}
			f.examined++
			f.checkGrant(l.name, holders, token, ev)
			token = max(token, ev.Token)
			over, ended := f.session(ev.Session).loggedEnd, f.tickets[ev.Ref].ended
			switch {
			case over == nil:
			case over.Index < ev.Index:
				f.violationf("lock %q: ticket %s was granted token %d at index %d, and its "+
					"session had ended at index %d",
					l.name, ev.Ref, ev.Token, ev.Index, over.Index)
			case f.Plan.CompleteEvents && (ended == nil || ended.Index > over.Index):
				f.violationf(
					"lock %q: ticket %s with token %d was not ended with its session at index %d",
					l.name, ev.Ref, ev.Token, over.Index)
			}
		}
	}
}

// checkGrant looks at one grant, with the holders and the greatest token before it.
func (f *checker) checkGrant(name string, holders map[Ref]Item, token uint64, ev *Event) {
	item := itemFor(ev.Items, name)
	if ev.Token != ev.Index {
		f.violationf(
			"lock %q: ticket %s was granted at index %d with token %d, which is not that index",
			name, ev.Ref, ev.Index, ev.Token)
	}
	if item.Mode == Exclusive && ev.Token <= token {
		f.violationf("lock %q: the token went from %d to %d", name, token, ev.Token)
	}
	permits := item.Permits
	for _, other := range slices.SortedFunc(maps.Keys(holders), compareRefs) {
		held := holders[other]
		if permits += held.Permits; !compatible(held, item) {
			f.violationf(
				"lock %q: ticket %s was granted it (%v) at index %d, while %s held it (%v)",
				name, ev.Ref, item, ev.Index, other, held)
		}
	}
	if item.Mode == Permits && permits > item.Limit {
		f.violationf("lock %q: from index %d on %d of %d permits are out, the last for ticket %s",
			name, ev.Index, permits, item.Limit, ev.Ref)
	}
}

// replay yields the events of a lock, each with the holders before it; at last an event beyond all
// indexes.
func (l *lockRecords) replay() iter.Seq2[*Event, map[Ref]Item] {
	return func(yield func(*Event, map[Ref]Item) bool) {
		holders := map[Ref]Item{}
		for _, ev := range append(slices.Clip(l.events), &Event{Index: math.MaxUint64}) {
			if !yield(ev, holders) {
				return
			}
			switch held, ok := holders[ev.Ref]; {
			case ev.Kind == EvGranted:
				holders[ev.Ref] = itemFor(ev.Items, l.name)
			case ev.Kind == EvLost || ev.Kind == EvReleased:
				delete(holders, ev.Ref)
			case ev.Kind == EvDowngraded && ok && held.Mode == Exclusive:
				holders[ev.Ref] = Item{Name: l.name, Mode: Shared}
			}
		}
	}
}

func compareRefs(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Ticket, b.Ticket))
}

// checkReads compares what was read with the log up to the index of the answer. It needs a complete
// log.
func checkReads(f *checker) {
	if !f.Plan.CompleteEvents {
		return
	}
	for _, l := range f.locks {
		reads := slices.SortedStableFunc(slices.Values(l.reads),
			func(a, b *Op) int { return cmp.Compare(a.Index, b.Index) })
		reads = slices.DeleteFunc(reads, func(op *Op) bool { return op.Index == 0 })
		for ev, holders := range l.replay() {
			for ; len(reads) > 0 && reads[0].Index < ev.Index; reads = reads[1:] {
				f.examined++
				f.checkRead(l.name, holders, reads[0])
			}
		}
	}
}

// checkRead compares one answer with the holders at its index.
func (f *checker) checkRead(name string, holders map[Ref]Item, op *Op) {
	if op.Kind == OpCheck {
		held := false
		for ref := range holders {
			held = held || f.tickets[ref].granted.Token == op.Token &&
				(ref == op.Ref || !op.Ref.known())
		}
		if held != op.Held {
			f.violationf("lock %q: check of token %d (ticket %s) by %s at %s was answered "+
				"held=%v at index %d, where the log says %v",
				name, op.Token, op.Ref, op.Client, f.formatTime(op.Call), op.Held, op.Index, held)
		}
		return
	}
	held := slices.SortedFunc(maps.Keys(holders), compareRefs)
	if shown := slices.SortedFunc(slices.Values(op.Holders),
		compareRefs); !slices.Equal(shown, held) {
		f.violationf(
			"lock %q: get by %s at %s shows the holders %v at index %d, where the log has %v",
			name, op.Client, f.formatTime(op.Call), op.Holders, op.Index, held)
	}
}
