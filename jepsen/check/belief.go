package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// piece is a time in which a client believed in one lock, and was promised to be right.
type piece struct {
	*Hold
	item Item
	from time.Duration
	to   time.Duration
}

func (p *piece) tell(v *view) string {
	return fmt.Sprintf("%s in %v (token %d, ticket %s) from %s to %s",
		p.Client, p.item, p.Token, p.Ref, v.at(p.from), v.at(p.to))
}

// believed are the pieces of one lock, in order of their beginning. A hold is cut where it was
// downgraded, and ends where an operator ended it; what a pause covers is left out.
func (v *view) believed(l *lock) []piece {
	var all []piece
	for _, b := range l.holds {
		if s := v.sessions[b.Session]; s != nil && s.Disconnect {
			continue
		}
		item := itemOf(b.Items, l.name)
		to := b.To
		if to == 0 {
			to = max(b.From, orElse(v.died[b.Client], v.end))
		}
		to = min(to, v.forcedAt(b))
		if d := b.Downgraded; d != 0 && item.Mode == Exclusive {
			shared := Item{Name: l.name, Mode: Shared}
			all = v.without(all, piece{Hold: b, item: shared, from: max(d, b.From), to: to})
			to = min(to, d)
		}
		all = v.without(all, piece{Hold: b, item: item, from: b.From, to: to})
	}
	slices.SortStableFunc(all, func(a, b piece) int { return cmp.Compare(a.from, b.from) })
	return all
}

// without adds what is left of a piece beside the times in which nothing is promised to its client.
func (v *view) without(all []piece, p piece) []piece {
	for _, s := range v.voids[p.Client] {
		if s.to <= p.from || s.from >= p.to {
			continue
		}
		// What lies before is asked again, against the other times; what lies behind goes on here.
		before := p
		before.to = s.from
		all = v.without(all, before)
		p.from = s.to
	}
	if p.from < p.to {
		all = append(all, p)
	}
	return all
}

// beliefs looks for clients that believed at one moment in what excludes each other.
func beliefs(f *finder) {
	for _, name := range f.names {
		var live []piece
		for _, p := range f.believed(f.locks[name]) {
			f.looked++
			live = slices.DeleteFunc(live, func(q piece) bool { return q.to <= p.from })
			permits := p.item.Permits
			for i := range live {
				q := &live[i]
				if permits += q.item.Permits; q.Hold == p.Hold || fits(q.item, p.item) {
					continue
				}
				f.wrong("lock %q: two believed in it at once for %v: %s, and %s",
					name, min(p.to, q.to)-p.from, q.tell(f.view), p.tell(f.view))
			}
			if of := p.item.Of; p.item.Mode == Permits && permits > of {
				f.wrong("lock %q: from %s on there was belief in %d of %d permits; the last was %s",
					name, f.at(p.from), permits, of, p.tell(f.view))
			}
			live = append(live, p)
		}
	}
}

// toldFirst looks for grants that were made while somebody still believed in the grant before. An
// event was never seen before it happened, so who believed longer than that was told too late.
func toldFirst(f *finder) {
	for _, name := range f.names {
		l := f.locks[name]
		grants := slices.DeleteFunc(slices.Clone(l.events), func(ev *Event) bool { return ev.Happened != EvGranted })
		slices.SortStableFunc(grants, func(a, b *Event) int { return cmp.Compare(a.At, b.At) })
		pieces, next := f.believed(l), 0
		var live []piece
		for _, g := range grants {
			for ; next < len(pieces) && pieces[next].from <= g.At; next++ {
				live = append(live, pieces[next])
			}
			live = slices.DeleteFunc(live, func(p piece) bool { return p.to <= g.At })
			f.looked++
			for i := range live {
				p := &live[i]
				if p.Token >= g.Token || p.Ref == g.Ref || fits(p.item, itemOf(g.Items, name)) {
					continue
				}
				f.wrong("lock %q: ticket %s was granted token %d at %s (as %s saw it), and another still believed in "+
					"the lock: %s; that belief ended %v too late",
					name, g.Ref, g.Token, f.at(g.At), orElse(g.Node, "a node"), p.tell(f.view), p.to-g.At)
			}
		}
	}
}
