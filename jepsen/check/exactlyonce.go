package check

import "fmt"

// checkExactlyOnce sees that a ticket goes its way one time: asked for, granted, gone.
func checkExactlyOnce(f *checker) {
	granted := map[Ref]*Op{}
	for _, op := range f.ops {
		if !op.acquires() || op.Outcome != OK || !op.Ref.known() {
			continue
		}
		f.examined++
		if other := granted[op.Ref]; other != nil {
			f.violationf("ticket %s was granted to two calls: of %s, answered at %s with token %d, "+
				"and of %s, answered at %s with token %d",
				op.Ref, other.Client, f.formatTime(other.Return), other.Token, op.Client, f.formatTime(op.Return), op.Token)
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
				f.violationf("ticket %s was granted twice: token %d at index %d, and token %d at index %d",
					ev.Ref, t.granted.Token, t.granted.Index, ev.Token, ev.Index)
			}
			if t.ended != nil && t.ended.Index < ev.Index {
				f.violationf("ticket %s was granted token %d at index %d, after it had been %s at index %d",
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
				f.violationf("ticket %s was %s with token %d at index %d, and had been granted token %d",
					ev.Ref, ev.Kind, ev.Token, ev.Index, token)
			}
		}
	}
	f.reportStaleReads()
}

// reportStaleReads looks for reads that show a holder whose request was refused or whose release was answered.
func (f *checker) reportStaleReads() {
	for _, name := range f.lockNames {
		for _, op := range f.locks[name].reads {
			for _, ref := range op.shownHolders() {
				t := f.tickets[ref]
				if t == nil {
					continue
				}
				subject := fmt.Sprintf("lock %q: %s of %s, called at %s, shows ticket %s as a holder",
					name, op.Kind, op.Client, f.formatTime(op.Call), ref)
				if t.unlock != nil && t.unlock.Outcome == OK && t.unlock.Return < op.Call {
					f.violationf("%s, and its release had been answered at %s", subject,
						f.formatTime(t.unlock.Return))
				}
				if t.acquire != nil && t.acquire.Outcome == Refused {
					f.violationf("%s, which was refused at %s", subject, f.formatTime(t.acquire.Return))
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
