package check

// checkLostIsFinal looks for locks that came back after their client had reported them lost.
func checkLostIsFinal(f *checker) {
	lost := map[Ref]*Hold{}
	for _, b := range f.holds {
		if first := lost[b.Ref]; b.End == Lost && b.Ref.known() && (first == nil || b.To < first.To) {
			lost[b.Ref] = b
		}
	}
	f.examined = len(lost)
	for _, b := range f.holds {
		if was := lost[b.Ref]; was != nil && b.From > was.To {
			f.violationf("%s reported ticket %s (token %d) lost at %s, and held it again at %s",
				b.Client, b.Ref, b.Token, f.formatTime(was.To), f.formatTime(b.From))
		}
	}
	for _, op := range f.ops {
		was := lost[op.Ref]
		if was == nil || op.Outcome != OK || op.Call <= was.To {
			continue
		}
		if op.Kind == OpUnlock || op.Kind == OpDowngrade {
			f.violationf("%s reported ticket %s (token %d) lost at %s, and its %s at %s was answered as if it were held",
				was.Client, was.Ref, was.Token, f.formatTime(was.To), op.Kind, f.formatTime(op.Call))
		}
	}
	if !f.Plan.CompleteEvents {
		return
	}
	for _, b := range f.holds {
		// After the healing a client has the time of a call to release what it gave up.
		if lost[b.Ref] != b || f.tickets[b.Ref].ended != nil || f.diedAt[b.Client] != 0 {
			continue
		}
		if max(b.To, f.Plan.Healed)+f.Plan.Drain < f.end {
			f.violationf("%s reported ticket %s (token %d) lost at %s, and the cluster never ended it: its locks stay closed",
				b.Client, b.Ref, b.Token, f.formatTime(b.To))
		}
	}
}
