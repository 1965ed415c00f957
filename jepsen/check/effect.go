package check

import "time"

// effects holds what callers were told against what the log shows: what was done is there, what was
// refused is not, and nothing is there that nobody asked for.
func effects(f *finder) {
	for _, op := range f.ops {
		t := f.tickets[op.Ref]
		if t == nil || !op.acquires() && op.Kind != OpUnlock {
			continue
		}
		f.looked++
		switch {
		case op.Kind == OpUnlock:
			if op.Outcome == OK && f.Plan.Audit && t.granted != nil && t.gone == nil {
				f.wrong("%s was told at %s that ticket %s is released, and the log has no end of it",
					op.Client, f.at(op.Return), op.Ref)
			}
		case op.Outcome == Refused && t.granted != nil:
			f.wrong("%s was refused ticket %s at %s (%s), and the log grants it with token %d at index %d",
				op.Client, op.Ref, f.at(op.Return), orElse(op.Error, "no reason"), t.granted.Token, t.granted.Index)
		case op.Outcome == Refused && t.hold != nil:
			f.wrong("%s was refused ticket %s at %s, and believed in it from %s on",
				op.Client, op.Ref, f.at(op.Return), f.at(t.hold.From))
		case op.Outcome == OK && t.granted == nil && f.Plan.Audit:
			f.wrong("%s was granted ticket %s with token %d at %s, and the log has no such grant",
				op.Client, op.Ref, op.Token, f.at(op.Return))
		case op.Outcome == OK && t.granted != nil && t.granted.Token != op.Token:
			f.wrong("%s was granted ticket %s with token %d at %s, and the log has token %d",
				op.Client, op.Ref, op.Token, f.at(op.Return), t.granted.Token)
		}
	}
	f.unended()
	f.unasked()
}

// unended looks for sessions whose end was confirmed to an operator or to their client, and that the log does not
// end.
func (f *finder) unended() {
	if !f.Plan.Audit {
		return
	}
	ended := map[uint64]bool{}
	for _, ev := range f.events {
		ended[ev.Session] = ended[ev.Session] || ev.Happened == EvEnded
	}
	for _, op := range f.ops {
		if op.Kind != OpExpire && op.Kind != OpClose || op.Outcome != OK {
			continue
		}
		f.looked++
		if !ended[op.Session] {
			f.wrong("%s was told at %s that session %d is over, and the log has no end of it", op.Client, f.at(op.Return), op.Session)
		}
	}
}

// unasked looks for grants that belong to no call, and counts the calls that nobody knows the end of.
// A call that never learned its ticket may own any grant of its locks that nobody else does.
func (f *finder) unasked() {
	for _, name := range f.names {
		l := f.locks[name]
		first := never // beginning of the first call without a ticket
		for _, op := range l.unknown {
			if !op.Ref.known() {
				first = min(first, op.Call)
			}
		}
		for _, ev := range l.events {
			t := f.tickets[ev.Ref]
			if ev.Happened != EvGranted || t.acquire != nil || t.hold != nil {
				continue
			}
			if ev.At < first {
				f.wrong("lock %q: ticket %s was granted token %d at %s (index %d), and nobody had asked for it",
					name, ev.Ref, ev.Token, f.at(ev.At), ev.Index)
			}
		}
	}
	for _, op := range f.ops {
		if op.acquires() && op.Outcome == Unknown && (!op.Ref.known() || !f.Plan.Audit) {
			f.report.Unresolved++
		}
	}
}

// waits looks for calls that took longer, once all faults had ended, than the plan allows.
func waits(f *finder) {
	if f.Plan.Drain == 0 {
		return
	}
	for _, op := range f.ops {
		since := max(op.Call, f.Plan.Healed)
		due := since + f.Plan.Drain
		if op.Return != 0 && op.Return <= f.Plan.Healed {
			continue
		}
		f.looked++
		switch {
		case op.Return == 0 && f.died[op.Client] == 0 && f.end > due:
			f.wrong("%s waits for ever: its %s%s, called at %s, had not come back at %s, %v after the healing",
				op.Client, op.Kind, lockNames(op.Items), f.at(op.Call), f.at(f.end), f.end-f.Plan.Healed)
		case op.Return > due && !f.pausedIn(op.Client, since, op.Return):
			f.wrong("%s waited too long: its %s%s, called at %s, came back at %s; all had healed at %s, "+
				"and %v were allowed from then on",
				op.Client, op.Kind, lockNames(op.Items), f.at(op.Call), f.at(op.Return), f.at(f.Plan.Healed), f.Plan.Drain)
		}
	}
}

func (v *view) pausedIn(client string, from, to time.Duration) bool {
	for _, s := range v.voids[client] {
		if s.from < to && s.to > from {
			return true
		}
	}
	return false
}
