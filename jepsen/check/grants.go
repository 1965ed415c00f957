package check

import (
	"cmp"
	"slices"
)

// grant is one acquisition of one lock: when it can have been made, and when it can have ended.
type grant struct {
	Ref
	client       string
	item         Item
	token        uint64
	span               // when it was made
	end          span  // when it ended
	downgradedIn *span // when it was downgraded
	mayEndAtOnce bool  // it may have ended at once, for all that is known
	endUnknown   bool  // it may have ended at any time from end.from on

	boundedBy *grant // which other one keeps it from having been made before span.from
}

// grantsOf are all the grants of a lock that are known, by token: those that were answered, and of
// the others those that the log or a hold shows.
func (v *historyIndex) grantsOf(l *lockRecords) []grant {
	begin := v.Plan.Begin
	grants := make([]grant, 0, len(l.grants))
	for _, op := range l.grants {
		grants = append(grants, v.grant(l, op))
	}
	for _, ev := range l.events {
		t := v.tickets[ev.Ref]
		if ev.Kind != EvGranted || t.acquire != nil && t.acquire.Outcome == OK {
			continue
		}
		request := Op{Client: "an unknown client", Call: begin}
		if t.acquire != nil {
			request = *t.acquire
		}
		request.Ref, request.Items, request.Token, request.Return = ev.Ref, ev.Items,
			ev.Token, ev.At
		grants = append(grants, v.grant(l, &request))
	}
	for _, hold := range l.holds {
		if t := v.tickets[hold.Ref]; t != nil && (t.acquire == nil || t.acquire.Outcome != OK) &&
			t.granted == nil {
			request := Op{Client: hold.Client, Ref: hold.Ref, Items: hold.Items, Token: hold.Token,
				Call: begin, Return: hold.From}
			grants = append(grants, v.grant(l, &request))
		}
	}
	slices.SortStableFunc(grants, func(a, b grant) int {
		return cmp.Or(cmp.Compare(a.token, b.token), cmp.Compare(a.from, b.from))
	})
	v.extendByReads(l, grants)
	return grants
}

func (v *historyIndex) grant(l *lockRecords, op *Op) grant {
	g := grant{
		Ref: op.Ref, client: op.Client, item: itemFor(op.Items, l.name), token: op.Token,
		span: span{op.Call, op.Return}, mayEndAtOnce: true, endUnknown: true,
	}
	t := v.tickets[op.Ref]
	if t == nil {
		return g
	}
	if d := t.downgrade; d != nil && g.item.Mode == Exclusive {
		g.downgradedIn = &span{d.Call, d.Call} // unknown: at once is what permits most
		if d.Outcome == OK {
			g.downgradedIn.to = d.Return
		}
	}
	unlock, closed := t.unlock, v.session(op.Session).closed
	lost := t.hold != nil && t.hold.End == Lost
	if unlock != nil && (unlock.Outcome == Refused ||
		unlock.Outcome == Unknown && lost && t.hold.To <= unlock.Call) {
		unlock = nil // it gave nothing back, or came when the lock was lost already
	}
	hold := &Hold{Client: op.Client, Ref: op.Ref, Token: op.Token, Items: op.Items, From: op.Return}
	switch {
	case unlock != nil && unlock.Outcome == OK && !v.isExcused(hold, unlock.Return):
		g.end, g.mayEndAtOnce, g.endUnknown = span{unlock.Call, unlock.Return}, false, false
	case unlock == nil && closed != nil && closed.Outcome == OK && t.hold != nil &&
		t.hold.End == Unlocked &&
		!v.isExcused(hold, closed.Return):
		g.end, g.mayEndAtOnce, g.endUnknown = span{closed.Call, closed.Return}, false, false
	case unlock != nil && unlock.Outcome == Unknown && !v.isExcused(hold, v.end):
		g.end, g.mayEndAtOnce = span{unlock.Call, unlock.Call}, false
	}
	return g
}

// extendByReads gives those an end that may have ended at any time, but not before they were last
// seen. The earliest end is the one that permits most.
func (v *historyIndex) extendByReads(l *lockRecords, grants []grant) {
	byRef := make(map[Ref]int, len(grants))
	for i := range grants {
		byRef[grants[i].Ref] = i
	}
	for _, op := range l.reads {
		for _, ref := range op.shownHolders() {
			i, known := byRef[ref]
			if !known || !ref.known() {
				continue
			}
			g := &grants[i]
			if !g.endUnknown {
				continue
			}
			if g.mayEndAtOnce {
				g.mayEndAtOnce, g.end.from = false, g.from
			}
			g.end.to = max(g.end.to, op.Return)
		}
	}
}

// tightenBounds shortens the times in which grants can have been made and ended, by what their
// tokens say of their order; those with one token were made at one moment. It is what lets a
// history be cut into parts. If nothing is left of one, that is a violation.
func (f *checker) tightenBounds(name string, grants []grant) bool {
	var live []*grant // those that can't have ended yet
	var previous *grant
	for i := range grants {
		g := &grants[i]
		if previous != nil && previous.from > g.from {
			g.from, g.boundedBy = previous.from, cmp.Or(previous.boundedBy, previous)
		}
		for {
			live = slices.DeleteFunc(live, func(h *grant) bool { return h.end.from <= g.from })
			if len(live) == 0 || compatibleWithAll(live, g) {
				break
			}
			next := slices.MinFunc(live,
				func(a, b *grant) int { return cmp.Compare(a.end.from, b.end.from) })
			g.from, g.boundedBy = next.end.from, next
		}
		g.end.from = max(g.end.from, g.from)
		if previous = g; !g.mayEndAtOnce {
			live = append(live, g)
		}
	}
	exclusive, nextLatest := never, never // the latest moment of the next grant
	for i := len(grants) - 1; i >= 0; i-- {
		g := &grants[i]
		g.to = min(g.to, nextLatest)
		if g.from > g.to {
			f.reportBoundsConflict(name, g)
			return false
		}
		switch {
		case g.item.Mode == Exclusive && g.downgradedIn == nil:
			g.end.to = min(g.end.to, nextLatest)
		case g.item.Mode != Permits:
			g.end.to = min(g.end.to, exclusive)
		}
		g.end.to = max(g.end.to, g.end.from)
		if nextLatest = g.to; g.item.Mode == Exclusive {
			exclusive = g.to
		}
	}
	return true
}

func (f *checker) reportBoundsConflict(name string, g *grant) {
	reason := "was not requested before"
	if g.boundedBy == nil {
		f.violationf("lock %q: token %d was granted to %s, which called at %s, "+
			"and a greater one had been answered at %s",
			name, g.token, g.client, f.formatTime(g.from), f.formatTime(g.to))
		return
	}
	if g.boundedBy.end.from == g.from {
		reason = "was not released before"
	}
	f.violationf("lock %q: token %d (%v) was granted to %s by %s at the latest, and token %d "+
		"(%v) of %s %s %s",
		name, g.token, g.item, g.client, f.formatTime(g.to), g.boundedBy.token, g.boundedBy.item,
		g.boundedBy.client, reason, f.formatTime(g.from))
}

// compatibleWithAll reports whether a grant fits beside those that live.
func compatibleWithAll(live []*grant, g *grant) bool {
	permits := g.item.Permits
	for _, h := range live {
		item := h.item
		if h.downgradedIn != nil {
			item.Mode = Shared
		}
		if permits += item.Permits; !compatible(item, g.item) {
			return false
		}
	}
	return g.item.Mode != Permits || permits <= g.item.Limit
}
