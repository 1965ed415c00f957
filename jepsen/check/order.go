package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// point is a call that told the index at which it took effect.
type point struct {
	op    *Op
	index uint64
}

func (p point) tell(v *view) string {
	what := "index"
	if p.op.Token == p.index {
		what = "token"
	}
	name := ""
	if len(p.op.Items) > 0 {
		name = fmt.Sprintf(" %q", p.op.Items[0].Name)
	}
	return fmt.Sprintf("%s%s of %s, called at %s and answered at %s with %s %d",
		p.op.Kind, name, p.op.Client, v.at(p.op.Call), v.at(p.op.Return), what, p.index)
}

// rising looks for calls that began after another had been answered and took effect no later. What a
// call makes happen takes an index of its own, so it is above all that was ever told before.
func rising(f *finder) {
	var calls []point
	for _, op := range f.ops {
		if index := op.effect(); index != 0 {
			calls = append(calls, point{op, index})
		}
	}
	answers := slices.Clone(calls)
	slices.SortStableFunc(calls, func(a, b point) int { return cmp.Compare(a.op.Call, b.op.Call) })
	slices.SortStableFunc(answers, func(a, b point) int { return cmp.Compare(a.op.Return, b.op.Return) })
	var top point // of what was answered before
	next := 0
	for _, p := range calls {
		f.looked++
		for ; next < len(answers) && answers[next].op.Return < p.op.Call; next++ {
			if answers[next].index > top.index {
				top = answers[next]
			}
		}
		if top.index >= p.index {
			f.wrong("it went back: %s; after %s", p.tell(f.view), top.tell(f.view))
		}
	}
	f.unique()
}

// effect is the index at which a call took effect, 0 if it is not known.
func (op *Op) effect() uint64 {
	switch {
	case op.Outcome != OK || op.Return == 0:
		return 0
	case op.acquires():
		return op.Token
	default:
		return op.Index
	}
}

// unique looks for tokens that were granted twice, and for those of earlier runs.
func (f *finder) unique() {
	for _, name := range f.names {
		first := map[uint64]*Op{}
		for _, op := range f.locks[name].grants {
			if op.Token <= f.Plan.Above {
				f.wrong("lock %q: %s was granted token %d at %s, and earlier runs had come to %d",
					name, op.Client, op.Token, f.at(op.Return), f.Plan.Above)
			}
			other := first[op.Token]
			if other == nil {
				first[op.Token] = op
				continue
			}
			if !fits(itemOf(op.Items, name), itemOf(other.Items, name)) {
				f.wrong("lock %q: token %d was granted to %s (answered at %s) and to %s (answered at %s)",
					name, op.Token, other.Client, f.at(other.Return), op.Client, f.at(op.Return))
			}
		}
	}
}

// fifo looks for grants that overtook: whoever had been told that it waits before another even
// asked is granted no later than that other.
func fifo(f *finder) {
	for _, name := range f.names {
		calls := slices.Clone(f.locks[name].grants)
		queued := slices.DeleteFunc(slices.Clone(calls), func(op *Op) bool { return op.Queued == 0 })
		byTime := func(when func(*Op) time.Duration) func(a, b *Op) int {
			return func(a, b *Op) int { return cmp.Compare(when(a), when(b)) }
		}
		slices.SortStableFunc(calls, byTime(func(op *Op) time.Duration { return op.Call }))
		slices.SortStableFunc(queued, byTime(func(op *Op) time.Duration { return op.Queued }))
		var last *Op // of those that waited by then, the one that was granted last
		next := 0
		for _, op := range calls {
			for ; next < len(queued) && queued[next].Queued < op.Call; next++ {
				if last == nil || queued[next].Token > last.Token {
					last = queued[next]
				}
			}
			if last == nil {
				continue
			}
			f.looked++
			if last.Token > op.Token {
				f.wrong("lock %q: %s overtook %s: %s asked at %s and was granted token %d; "+
					"%s had been told at %s that it waits, and got token %d", name, op.Client, last.Client,
					op.Client, f.at(op.Call), op.Token, last.Client, f.at(last.Queued), last.Token)
			}
		}
	}
}
