package check

import (
	"cmp"
	"slices"
)

// excludes replays the grants and ends of every lock, and sees that who holds it fits together and
// that tokens rise.
func excludes(f *finder) {
	for _, two := range f.disputed {
		a, b := two[0], two[1]
		f.wrong("at index %d, ticket %s %s: %s has token %d, %q, items %v, and %s has token %d, %q, items %v",
			a.Index, a.Ref, a.Happened,
			orElse(a.Node, "one node"), a.Token, a.Why, a.Items, orElse(b.Node, "another"), b.Token, b.Why, b.Items)
	}
	over := map[uint64]uint64{} // index at which a session ended
	for _, ev := range f.events {
		if ev.Happened == EvEnded && ev.Index != 0 {
			over[ev.Session] = ev.Index
		}
	}
	for _, name := range f.names {
		r := replay{holders: map[Ref]Item{}}
		for _, ev := range f.locks[name].events {
			if ev.Happened == EvGranted {
				f.looked++
				f.granted(name, &r, ev)
				if end, ok := over[ev.Session]; ok && end < ev.Index {
					f.wrong("lock %q: ticket %s was granted token %d at index %d, and its session had ended at index %d",
						name, ev.Ref, ev.Token, ev.Index, end)
				}
			}
			r.apply(name, ev)
		}
	}
}

// granted looks at one grant, before it is applied.
func (f *finder) granted(name string, r *replay, ev *Event) {
	item := itemOf(ev.Items, name)
	if ev.Token != ev.Index {
		f.wrong("lock %q: ticket %s was granted at index %d with token %d, which is not that index",
			name, ev.Ref, ev.Index, ev.Token)
	}
	if item.Mode == Exclusive && ev.Token <= r.token {
		f.wrong("lock %q: the token went from %d to %d", name, r.token, ev.Token)
	}
	permits := item.Permits
	for other, held := range r.holders {
		if permits += held.Permits; !fits(held, item) {
			f.wrong("lock %q: ticket %s was granted it (%v) at index %d, while %s held it (%v)",
				name, ev.Ref, item, ev.Index, other, held)
		}
	}
	if item.Mode == Permits && permits > item.Of {
		f.wrong("lock %q: from index %d on %d of %d permits are out, the last for ticket %s",
			name, ev.Index, permits, item.Of, ev.Ref)
	}
}

// replay is what the events of one lock add up to.
type replay struct {
	holders map[Ref]Item
	token   uint64 // the greatest
}

func (r *replay) apply(name string, ev *Event) {
	switch ev.Happened {
	case EvGranted:
		r.holders[ev.Ref] = itemOf(ev.Items, name)
		r.token = max(r.token, ev.Token)
	case EvLost, EvReleased:
		delete(r.holders, ev.Ref)
	case EvDowngraded:
		if held, ok := r.holders[ev.Ref]; ok && held.Mode == Exclusive {
			r.holders[ev.Ref] = Item{Name: name, Mode: Shared}
		}
	}
}

// reads holds what was read against the log up to the index that the answer named. That needs all of
// the log.
func reads(f *finder) {
	if !f.Plan.Audit {
		return
	}
	for _, name := range f.names {
		l := f.locks[name]
		byIndex := slices.DeleteFunc(slices.Clone(l.reads), func(op *Op) bool { return op.Index == 0 })
		slices.SortStableFunc(byIndex, func(a, b *Op) int { return cmp.Compare(a.Index, b.Index) })
		r, next := replay{holders: map[Ref]Item{}}, 0
		for _, op := range byIndex {
			for ; next < len(l.events) && l.events[next].Index <= op.Index; next++ {
				r.apply(name, l.events[next])
			}
			f.looked++
			f.read(name, &r, op)
		}
	}
}

// read looks at one answer, when the events up to its index have been applied.
func (f *finder) read(name string, r *replay, op *Op) {
	if op.Kind == OpCheck {
		held := false
		for ref := range r.holders {
			held = held || f.tickets[ref].granted.Token == op.Token && (ref == op.Ref || !op.Ref.known())
		}
		if held != op.Held {
			f.wrong("lock %q: check of token %d (ticket %s) by %s at %s was answered held=%v at index %d, "+
				"where the log says %v",
				name, op.Token, op.Ref, op.Client, f.at(op.Call), op.Held, op.Index, held)
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
		f.wrong("lock %q: get by %s at %s shows the holders %v at index %d, where the log has %v",
			name, op.Client, f.at(op.Call), op.Holders, op.Index, held)
	}
}
