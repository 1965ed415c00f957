package check

import "fmt"

// once sees that a ticket goes its way one time: asked for, granted, gone.
func once(f *finder) {
	asked := map[Ref]*Op{}
	for _, op := range f.ops {
		if !op.acquires() || op.Outcome != OK || !op.Ref.known() {
			continue
		}
		f.looked++
		if other := asked[op.Ref]; other != nil {
			f.wrong("ticket %s was granted to two calls: of %s, answered at %s with token %d, "+
				"and of %s, answered at %s with token %d",
				op.Ref, other.Client, f.at(other.Return), other.Token, op.Client, f.at(op.Return), op.Token)
		}
		asked[op.Ref] = op
	}
	for _, ev := range f.events {
		t := f.tickets[ev.Ref]
		if t == nil {
			continue
		}
		f.looked++
		switch ev.Happened {
		case EvGranted:
			if t.granted != ev {
				f.wrong("ticket %s was granted twice: token %d at index %d, and token %d at index %d",
					ev.Ref, t.granted.Token, t.granted.Index, ev.Token, ev.Index)
			}
			if t.gone != nil && t.gone.Index < ev.Index {
				f.wrong("ticket %s was granted token %d at index %d, after it had been %s at index %d",
					ev.Ref, ev.Token, ev.Index, t.gone.Happened, t.gone.Index)
			}
		case EvLost, EvReleased, EvRefused:
			if t.gone != ev {
				f.wrong("ticket %s ended twice: %s at index %d, and %s at index %d",
					ev.Ref, t.gone.Happened, t.gone.Index, ev.Happened, ev.Index)
			}
		}
	}
	f.ghosts()
}

// ghosts looks for reads that show as a holder who had been refused, or whose release was answered.
func (f *finder) ghosts() {
	for _, name := range f.names {
		for _, op := range f.locks[name].reads {
			for _, ref := range op.shown() {
				t := f.tickets[ref]
				if t == nil {
					continue
				}
				what := fmt.Sprintf("lock %q: %s of %s, called at %s, shows ticket %s as a holder",
					name, op.Kind, op.Client, f.at(op.Call), ref)
				if t.unlock != nil && t.unlock.Outcome == OK && t.unlock.Return < op.Call {
					f.wrong("%s, and its release had been answered at %s", what, f.at(t.unlock.Return))
				}
				if t.acquire != nil && t.acquire.Outcome == Refused {
					f.wrong("%s, which was refused at %s", what, f.at(t.acquire.Return))
				}
			}
		}
	}
}

// shown are the tickets that a read shows as holders.
func (op *Op) shown() []Ref {
	if op.Kind == OpCheck && op.Held {
		return []Ref{op.Ref}
	}
	return op.Holders
}
