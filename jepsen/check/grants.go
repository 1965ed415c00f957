package check

import (
	"cmp"
	"slices"
)

// grant is one acquisition of one lock: when it can have been made, and when it can have ended.
type grant struct {
	Ref
	client  string
	item    Item
	token   uint64
	span          // when it was made
	end     span  // when it ended
	share   *span // when it was downgraded
	passing bool  // it may have ended at once, for all that is known
	open    bool  // it may have ended at any time from end.from on

	after *grant // which other one keeps it from having been made before span.from
}

// grantsOf are all the grants of a lock that are known, by token: those that were answered, and of
// those that were not the ones that the log or a belief shows.
func (v *view) grantsOf(l *lock) []grant {
	begin := v.Plan.Begin
	grants := make([]grant, 0, len(l.grants))
	for _, op := range l.grants {
		grants = append(grants, v.grant(l, op))
	}
	for _, ev := range l.events {
		t := v.tickets[ev.Ref]
		if ev.Happened != EvGranted || t.acquire != nil && t.acquire.Outcome == OK {
			continue
		}
		asked := Op{Client: "somebody", Call: begin}
		if t.acquire != nil {
			asked = *t.acquire
		}
		asked.Ref, asked.Items, asked.Token, asked.Return = ev.Ref, ev.Items, ev.Token, ev.At
		grants = append(grants, v.grant(l, &asked))
	}
	for _, b := range l.holds {
		if t := v.tickets[b.Ref]; t != nil && (t.acquire == nil || t.acquire.Outcome != OK) && t.granted == nil {
			asked := Op{Client: b.Client, Ref: b.Ref, Items: b.Items, Token: b.Token, Call: begin, Return: b.From}
			grants = append(grants, v.grant(l, &asked))
		}
	}
	slices.SortStableFunc(grants, func(a, b grant) int {
		return cmp.Or(cmp.Compare(a.token, b.token), cmp.Compare(a.from, b.from))
	})
	v.shown(l, grants)
	return grants
}

func (v *view) grant(l *lock, op *Op) grant {
	g := grant{
		Ref: op.Ref, client: op.Client, item: itemOf(op.Items, l.name), token: op.Token,
		span: span{op.Call, op.Return}, passing: true, open: true,
	}
	t := v.tickets[op.Ref]
	if t == nil {
		return g
	}
	if d := t.downgrade; d != nil && g.item.Mode == Exclusive {
		g.share = &span{d.Call, d.Call} // unknown: at once is what permits most
		if d.Outcome == OK {
			g.share.to = d.Return
		}
	}
	unlock, closed := t.unlock, v.closed[op.Session]
	lost := t.hold != nil && t.hold.How == Lost
	if unlock != nil && (unlock.Outcome == Refused || unlock.Outcome == Unknown && lost && t.hold.To <= unlock.Call) {
		unlock = nil // it gave nothing back, or came when the lock was lost already
	}
	belief := &Hold{Client: op.Client, Ref: op.Ref, Token: op.Token, Items: op.Items, From: op.Return}
	switch {
	case unlock != nil && unlock.Outcome == OK && !v.excused(belief, unlock.Return):
		g.end, g.passing, g.open = span{unlock.Call, unlock.Return}, false, false
	case unlock == nil && closed != nil && closed.Outcome == OK && t.hold != nil && t.hold.How == Unlocked &&
		!v.excused(belief, closed.Return):
		g.end, g.passing, g.open = span{closed.Call, closed.Return}, false, false
	case unlock != nil && unlock.Outcome == Unknown && !v.excused(belief, v.end):
		g.end, g.passing = span{unlock.Call, unlock.Call}, false
	}
	return g
}

// shown gives those an end that may have ended at any time, but not before they were last seen.
// The earliest end is the one that permits most.
func (v *view) shown(l *lock, grants []grant) {
	byRef := make(map[Ref]int, len(grants))
	for i := range grants {
		byRef[grants[i].Ref] = i
	}
	for _, op := range l.reads {
		for _, ref := range op.shown() {
			i, known := byRef[ref]
			if !known || !ref.known() {
				continue
			}
			g := &grants[i]
			if !g.open {
				continue
			}
			if g.passing {
				g.passing, g.end.from = false, g.from
			}
			g.end.to = max(g.end.to, op.Return)
		}
	}
}

// narrow shortens the times in which grants can have been made and ended, by what their tokens say of
// their order; those with one token were made at one moment. It is what lets a history be cut into
// parts. If nothing is left of one, that is told.
func (f *finder) narrow(name string, grants []grant) bool {
	var live []*grant // those that can't have ended yet
	var floor *grant
	for i := range grants {
		g := &grants[i]
		if floor != nil && floor.from > g.from {
			g.from, g.after = floor.from, orElse(floor.after, floor)
		}
		for {
			live = slices.DeleteFunc(live, func(h *grant) bool { return h.end.from <= g.from })
			if len(live) == 0 || beside(live, g) {
				break
			}
			next := slices.MinFunc(live, func(a, b *grant) int { return cmp.Compare(a.end.from, b.end.from) })
			g.from, g.after = next.end.from, next
		}
		g.end.from = max(g.end.from, g.from)
		if floor = g; !g.passing {
			live = append(live, g)
		}
	}
	exclusive, later := never, never // the latest moment of the next grant
	for i := len(grants) - 1; i >= 0; i-- {
		g := &grants[i]
		g.to = min(g.to, later)
		if g.from > g.to {
			f.tellNarrow(name, g)
			return false
		}
		switch {
		case g.item.Mode == Exclusive && g.share == nil:
			g.end.to = min(g.end.to, later)
		case g.item.Mode != Permits:
			g.end.to = min(g.end.to, exclusive)
		}
		g.end.to = max(g.end.to, g.end.from)
		if later = g.to; g.item.Mode == Exclusive {
			exclusive = g.to
		}
	}
	return true
}

func (f *finder) tellNarrow(name string, g *grant) {
	why := "was not asked for before"
	if g.after == nil {
		f.wrong("lock %q: token %d was granted to %s, who asked at %s, and a greater one had been told at %s",
			name, g.token, g.client, f.at(g.from), f.at(g.to))
		return
	}
	if g.after.end.from == g.from {
		why = "was not given back before"
	}
	f.wrong("lock %q: token %d (%v) was granted to %s by %s at the latest, and token %d (%v) of %s %s %s",
		name, g.token, g.item, g.client, f.at(g.to), g.after.token, g.after.item, g.after.client, why, f.at(g.from))
}

// beside says whether a grant fits beside those that live.
func beside(live []*grant, g *grant) bool {
	permits := g.item.Permits
	for _, h := range live {
		item := h.item
		if h.share != nil {
			item.Mode = Shared
		}
		if permits += item.Permits; !fits(item, g.item) {
			return false
		}
	}
	return g.item.Mode != Permits || permits <= g.item.Of
}
