package check

import (
	"cmp"
	"fmt"
)

// checkOutcomes compares the outcomes of calls with the log: it has what was done, it does not have
// what was refused, and each of its grants has a request.
func checkOutcomes(f *checker) {
	for _, op := range f.ops {
		t := f.tickets[op.Ref]
		if t == nil || !op.acquires() && op.Kind != OpUnlock {
			continue
		}
		f.examined++
		switch {
		case op.Kind == OpUnlock:
			if op.Outcome == OK && f.Plan.CompleteEvents && t.granted != nil && t.ended == nil {
				f.violationf("%s was answered at %s that ticket %s is released, and the log has "+
					"no end of it",
					op.Client, f.formatTime(op.Return), op.Ref)
			}
		case op.Outcome == Refused && t.granted != nil:
			f.violationf("%s was refused ticket %s at %s (%s), and the log grants it with token "+
				"%d at index %d",
				op.Client, op.Ref, f.formatTime(op.Return),
				cmp.Or(op.Error, "no reason"), t.granted.Token, t.granted.Index)
		case op.Outcome == Refused && t.hold != nil:
			f.violationf("%s was refused ticket %s at %s, and held it from %s on",
				op.Client, op.Ref, f.formatTime(op.Return), f.formatTime(t.hold.From))
		case op.Outcome == OK && t.granted == nil && f.Plan.CompleteEvents:
			f.violationf(
				"%s was granted ticket %s with token %d at %s, and the log has no such grant",
				op.Client, op.Ref, op.Token, f.formatTime(op.Return))
		case op.Outcome == OK && t.granted != nil && t.granted.Token != op.Token:
			f.violationf("%s was granted ticket %s with token %d at %s, and the log has token %d",
				op.Client, op.Ref, op.Token, f.formatTime(op.Return), t.granted.Token)
		}
	}
	f.reportUnendedSessions()
	f.reportUnrequestedGrants()
}

// reportUnendedSessions looks for sessions whose end was confirmed to an operator or to their
// client, but that have no end in the log.
func (f *checker) reportUnendedSessions() {
	if !f.Plan.CompleteEvents {
		return
	}
	for _, op := range f.ops {
		if op.Kind != OpExpireSession && op.Kind != OpClose || op.Outcome != OK {
			continue
		}
		f.examined++
		if f.session(op.Session).seenEnd == nil {
			f.violationf(
				"%s was answered at %s that session %d is over, and the log has no end of it",
				op.Client, f.formatTime(op.Return), op.Session)
		}
	}
}

// reportUnrequestedGrants looks for grants that belong to no call, and counts the calls of unknown
// outcome. A call that never learned its ticket may own any grant of its locks that is left over by
// other calls.
func (f *checker) reportUnrequestedGrants() {
	for _, l := range f.locks {
		first := never // beginning of the first call without a ticket
		for _, op := range l.unknown {
			if !op.Ref.known() {
				first = min(first, op.Call)
			}
		}
		for _, ev := range l.events {
			t := f.tickets[ev.Ref]
			if ev.Kind != EvGranted || t.acquire != nil || t.hold != nil {
				continue
			}
			if ev.At < first {
				f.violationf("lock %q: ticket %s was granted token %d at %s (index %d), "+
					"and no call had requested it",
					l.name, ev.Ref, ev.Token, f.formatTime(ev.At), ev.Index)
			}
		}
	}
	for _, op := range f.ops {
		if op.acquires() && op.Outcome == Unknown && (!op.Ref.known() || !f.Plan.CompleteEvents) {
			f.report.Unresolved++
		}
	}
}

// AddUnansweredGrants adds a call of unknown outcome for each grant that no answer names. A client
// that learns of a grant after its end, or of the end of its session, requests the locks again with
// another ticket; and it cancels what its caller gave up. So each such grant belongs to a call of
// its client for the same locks that was in progress, or whose outcome is unknown. A grant that
// belongs to no call is reported as one that nobody requested.
func (h *History) AddUnansweredGrants() {
	owner := map[uint64]string{}
	for _, ev := range h.Events { // also of sessions that ended before they were listed
		if ev.Kind == EvEnded && ev.Client != "" {
			owner[ev.Session] = ev.Client
		}
	}
	for _, s := range h.Sessions {
		owner[s.Session] = s.Client
	}
	named := map[Ref]bool{}
	calls := map[string][]*Op{}
	for i := range h.Ops {
		if op := &h.Ops[i]; op.acquires() {
			named[op.Ref] = true
			key := op.Client + fmt.Sprint(op.Items)
			calls[key] = append(calls[key], op)
		}
	}
	var added []Op
	for _, ev := range h.Events {
		client := owner[ev.Session]
		if ev.Kind != EvGranted || named[ev.Ref] || client == "" {
			continue
		}
		var of *Op
		for _, op := range calls[client+fmt.Sprint(ev.Items)] {
			grantedLater := op.Outcome == OK && op.Token > ev.Token // with another ticket
			if op.Call >= ev.At || op.Outcome != Unknown && op.Return < ev.At && !grantedLater {
				continue
			}
			if grantedLater {
				op.Queued = 0 // that may have been the place of the first ticket
			}
			if of == nil || op.Call < of.Call {
				of = op // the event may be late, so the earliest is possible if any is
			}
		}
		if of != nil {
			named[ev.Ref] = true
			added = append(added, Op{Client: of.Client, Kind: of.Kind, Ref: ev.Ref, Items: of.Items,
				Call:   of.Call,
				Return: of.Return, Outcome: Unknown})
		}
	}
	h.Ops = append(h.Ops, added...)
}

// checkCompletion looks for calls that took longer, once all faults had ended, than the plan
// allows.
func checkCompletion(f *checker) {
	if f.Plan.Drain == 0 {
		return
	}
	for _, op := range f.ops {
		since := max(op.Call, f.Plan.Healed)
		due := since + f.Plan.Drain
		if op.Return != 0 && op.Return <= f.Plan.Healed {
			continue
		}
		f.examined++
		switch {
		case op.Return == 0 && f.diedAt[op.Client] == 0 && f.end > due:
			f.violationf("%s waits without end: its %s%s, called at %s, had not come back at %s, "+
				"%v after the healing",
				op.Client, op.Kind, formatNames(op.Items), f.formatTime(op.Call),
				f.formatTime(f.end), f.end-f.Plan.Healed)
		case op.Return > due && !f.pausedDuring(op.Client, since, op.Return):
			f.violationf("%s waited too long: its %s%s, called at %s, came back at %s; all had "+
				"healed at %s, and %v were allowed from then on",
				op.Client, op.Kind, formatNames(op.Items), f.formatTime(op.Call),
				f.formatTime(op.Return), f.formatTime(f.Plan.Healed), f.Plan.Drain)
		}
	}
}

// checkExactlyOnce checks that each ticket is requested, granted and ended at most once, in this
// order.
func checkExactlyOnce(f *checker) {
	granted := map[Ref]*Op{}
	for _, op := range f.ops {
		if !op.acquires() || op.Outcome != OK || !op.Ref.known() {
			continue
		}
		f.examined++
		if other := granted[op.Ref]; other != nil {
			f.violationf("ticket %s was granted to two calls: of %s, answered at %s with token "+
				"%d, and of %s, answered at %s with token %d",
				op.Ref, other.Client, f.formatTime(other.Return), other.Token, op.Client,
				f.formatTime(op.Return), op.Token)
		}
		granted[op.Ref] = op
	}
	for _, ev := range f.events {
		t := f.tickets[ev.Ref]
		if t == nil {
			continue
		}
		f.examined++
		switch ev.Kind {
		case EvGranted:
			if t.granted != ev {
				f.violationf(
					"ticket %s was granted twice: token %d at index %d, and token %d at index %d",
					ev.Ref, t.granted.Token, t.granted.Index, ev.Token, ev.Index)
			}
			if t.ended != nil && t.ended.Index < ev.Index {
				f.violationf(
					"ticket %s was granted token %d at index %d, after it had been %s at index %d",
					ev.Ref, ev.Token, ev.Index, t.ended.Kind, t.ended.Index)
			}
		case EvLost, EvReleased, EvRefused:
			if t.ended != ev {
				f.violationf("ticket %s ended twice: %s at index %d, and %s at index %d",
					ev.Ref, t.ended.Kind, t.ended.Index, ev.Kind, ev.Index)
			}
			token := uint64(0)
			if t.granted != nil {
				token = t.granted.Token
			}
			if ev.Token != token && (token != 0 || f.Plan.CompleteEvents) {
				f.violationf(
					"ticket %s was %s with token %d at index %d, and had been granted token %d",
					ev.Ref, ev.Kind, ev.Token, ev.Index, token)
			}
		}
	}
	f.reportStaleReads()
}

// reportStaleReads looks for reads that show a holder whose request was refused or whose release
// was answered.
func (f *checker) reportStaleReads() {
	for _, l := range f.locks {
		for _, op := range l.reads {
			for _, ref := range op.shownHolders() {
				t := f.tickets[ref]
				if t == nil {
					continue
				}
				subject := fmt.Sprintf(
					"lock %q: %s of %s, called at %s, shows ticket %s as a holder",
					l.name, op.Kind, op.Client, f.formatTime(op.Call), ref)
				if t.unlock != nil && t.unlock.Outcome == OK && t.unlock.Return < op.Call {
					f.violationf("%s, and its release had been answered at %s", subject,
						f.formatTime(t.unlock.Return))
				}
				if t.acquire != nil && t.acquire.Outcome == Refused {
					f.violationf("%s, which was refused at %s", subject,
						f.formatTime(t.acquire.Return))
				}
			}
		}
	}
}

// shownHolders are the tickets that a read shows as holders.
func (op *Op) shownHolders() []Ref {
	if op.Kind == OpCheck && op.Held {
		return []Ref{op.Ref}
	}
	return op.Holders
}

// checkLostIsFinal looks for locks that came back after their client had reported them lost.
func checkLostIsFinal(f *checker) {
	for _, hold := range f.holds {
		t := f.tickets[hold.Ref]
		if t == nil || t.lost == nil {
			continue
		}
		if hold.From > t.lost.To {
			f.violationf("%s reported ticket %s (token %d) lost at %s, and held it again at %s",
				hold.Client, hold.Ref, hold.Token, f.formatTime(t.lost.To), f.formatTime(hold.From))
		}
		if hold != t.lost {
			continue
		}
		f.examined++
		// After the healing a client has the time of a call to release what it gave up.
		inTime := f.diedAt[hold.Client] != 0 || max(hold.To, f.Plan.Healed)+f.Plan.Drain >= f.end
		if f.Plan.CompleteEvents && t.ended == nil && !inTime {
			f.violationf("%s reported ticket %s (token %d) lost at %s, and the cluster never "+
				"ended it: its locks stay closed",
				hold.Client, hold.Ref, hold.Token, f.formatTime(hold.To))
		}
	}
	for _, op := range f.ops {
		t := f.tickets[op.Ref]
		if t == nil || t.lost == nil || op.Outcome != OK || op.Call <= t.lost.To {
			continue
		}
		if was := t.lost; op.Kind == OpUnlock || op.Kind == OpDowngrade {
			f.violationf("%s reported ticket %s (token %d) lost at %s, and its %s at %s was "+
				"answered as if it were held",
				was.Client, was.Ref, was.Token, f.formatTime(was.To), op.Kind,
				f.formatTime(op.Call))
		}
	}
}
