package check

// final looks for locks that came back after their client had reported them lost.
func final(f *finder) {
	lost := map[Ref]*Hold{}
	for _, b := range f.holds {
		if first := lost[b.Ref]; b.How == Lost && b.Ref.known() && (first == nil || b.To < first.To) {
			lost[b.Ref] = b
		}
	}
	f.looked = len(lost)
	for _, b := range f.holds {
		if was := lost[b.Ref]; was != nil && b.From > was.To {
			f.wrong("%s reported ticket %s (token %d) lost at %s, and held it again at %s",
				b.Client, b.Ref, b.Token, f.at(was.To), f.at(b.From))
		}
	}
	for _, op := range f.ops {
		was := lost[op.Ref]
		if was == nil || op.Outcome != OK || op.Call <= was.To {
			continue
		}
		if op.Kind == OpUnlock || op.Kind == OpDowngrade {
			f.wrong("%s reported ticket %s (token %d) lost at %s, and its %s at %s was answered as if it were held",
				was.Client, was.Ref, was.Token, f.at(was.To), op.Kind, f.at(op.Call))
		}
	}
	if !f.Plan.Audit {
		return
	}
	for _, b := range f.holds {
		// After the healing a client has the time of a call to tell the cluster what it gave up.
		if lost[b.Ref] != b || f.tickets[b.Ref].gone != nil || f.died[b.Client] != 0 {
			continue
		}
		if max(b.To, f.Plan.Healed)+f.Plan.Drain < f.end {
			f.wrong("%s reported ticket %s (token %d) lost at %s, and the cluster never ended it: its locks stay closed",
				b.Client, b.Ref, b.Token, f.at(b.To))
		}
	}
}
