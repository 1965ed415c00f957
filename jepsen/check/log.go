package check

import (
	"cmp"
	"slices"
)

// checkLogExclusion replays the grants and ends of every lock, and sees that its holders fit together and
// that tokens rise. A session ends once, with all that it holds.
func checkLogExclusion(f *checker) {
	for _, pair := range f.conflicts {
		a, b := pair[0], pair[1]
		f.violationf("at index %d, ticket %s %s: %s has token %d, %q, items %v, and %s has token %d, %q, items %v",
			a.Index, a.Ref, a.Kind,
			cmp.Or(a.Node, "one node"), a.Token, a.Reason, a.Items,
			cmp.Or(b.Node, "another"), b.Token, b.Reason, b.Items)
	}
	sessionEnds := map[uint64]uint64{} // index at which a session ended
	for _, ev := range f.events {
		if ev.Kind != EvEnded || ev.Index == 0 {
			continue
		}
		if first, ended := sessionEnds[ev.Session]; ended {
			f.violationf("session %d ended twice: at index %d, and at index %d", ev.Session, first, ev.Index)
			continue
		}
		sessionEnds[ev.Session] = ev.Index
	}
	for _, name := range f.lockNames {
		r := lockReplay{holders: map[Ref]Item{}}
		for _, ev := range f.locks[name].events {
			if ev.Kind == EvGranted {
				f.examined++
				f.checkGrant(name, &r, ev)
				end, over := sessionEnds[ev.Session]
				ended := f.tickets[ev.Ref].ended
				switch {
				case over && end < ev.Index:
					f.violationf("lock %q: ticket %s was granted token %d at index %d, and its session had ended at index %d",
						name, ev.Ref, ev.Token, ev.Index, end)
				case over && f.Plan.CompleteEvents && (ended == nil || ended.Index > end):
					f.violationf("lock %q: ticket %s with token %d was not ended with its session at index %d",
						name, ev.Ref, ev.Token, end)
				}
			}
			r.apply(name, ev)
		}
	}
}

// checkGrant looks at one grant, before it is applied.
func (f *checker) checkGrant(name string, r *lockReplay, ev *Event) {
	item := itemFor(ev.Items, name)
	if ev.Token != ev.Index {
		f.violationf("lock %q: ticket %s was granted at index %d with token %d, which is not that index",
			name, ev.Ref, ev.Index, ev.Token)
	}
	if item.Mode == Exclusive && ev.Token <= r.token {
		f.violationf("lock %q: the token went from %d to %d", name, r.token, ev.Token)
	}
	permits := item.Permits
	for other, held := range r.holders {
		if permits += held.Permits; !compatible(held, item) {
			f.violationf("lock %q: ticket %s was granted it (%v) at index %d, while %s held it (%v)",
				name, ev.Ref, item, ev.Index, other, held)
		}
	}
	if item.Mode == Permits && permits > item.Limit {
		f.violationf("lock %q: from index %d on %d of %d permits are out, the last for ticket %s",
			name, ev.Index, permits, item.Limit, ev.Ref)
	}
}

// lockReplay is what the events of one lock add up to.
type lockReplay struct {
	holders map[Ref]Item
	token   uint64 // the greatest
}

func (r *lockReplay) apply(name string, ev *Event) {
	switch ev.Kind {
	case EvGranted:
		r.holders[ev.Ref] = itemFor(ev.Items, name)
		r.token = max(r.token, ev.Token)
	case EvLost, EvReleased:
		delete(r.holders, ev.Ref)
	case EvDowngraded:
		if held, ok := r.holders[ev.Ref]; ok && held.Mode == Exclusive {
			r.holders[ev.Ref] = Item{Name: name, Mode: Shared}
		}
	}
}

// checkReads holds what was read against the log up to the index that the answer named. That needs all of
// the log.
func checkReads(f *checker) {
	if !f.Plan.CompleteEvents {
		return
	}
	for _, name := range f.lockNames {
		l := f.locks[name]
		byIndex := slices.DeleteFunc(slices.Clone(l.reads), func(op *Op) bool { return op.Index == 0 })
		slices.SortStableFunc(byIndex, func(a, b *Op) int { return cmp.Compare(a.Index, b.Index) })
		r, next := lockReplay{holders: map[Ref]Item{}}, 0
		for _, op := range byIndex {
			for ; next < len(l.events) && l.events[next].Index <= op.Index; next++ {
				r.apply(name, l.events[next])
			}
			f.examined++
			f.checkRead(name, &r, op)
		}
	}
}

// checkRead looks at one answer, when the events up to its index have been applied.
func (f *checker) checkRead(name string, r *lockReplay, op *Op) {
	if op.Kind == OpCheck {
		held := false
		for ref := range r.holders {
			held = held || f.tickets[ref].granted.Token == op.Token && (ref == op.Ref || !op.Ref.known())
		}
		if held != op.Held {
			f.violationf("lock %q: check of token %d (ticket %s) by %s at %s was answered held=%v at index %d, "+
				"where the log says %v",
				name, op.Token, op.Ref, op.Client, f.formatTime(op.Call), op.Held, op.Index, held)
		}
		return
	}
	same := len(op.Holders) == len(r.holders)
	for _, ref := range op.Holders {
		_, ok := r.holders[ref]
		same = same && ok
	}
	if !same {
		var held []Ref
		for ref := range r.holders {
			held = append(held, ref)
		}
		slices.SortFunc(held, func(a, b Ref) int {
			return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Ticket, b.Ticket))
		})
		f.violationf("lock %q: get by %s at %s shows the holders %v at index %d, where the log has %v",
			name, op.Client, f.formatTime(op.Call), op.Holders, op.Index, held)
	}
}
