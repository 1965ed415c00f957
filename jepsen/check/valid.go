package check

import (
	"maps"
	"slices"
)

// growth looks for counts that are greater at rest after the load than before it.
func growth(f *finder) {
	before := map[string]map[string]int64{}
	for _, r := range f.Rests {
		if !r.After {
			before[r.Who] = r.Counts
		}
	}
	for _, r := range f.Rests {
		for _, what := range slices.Sorted(maps.Keys(r.Counts)) {
			was, known := before[r.Who][what]
			if !r.After || !known {
				continue
			}
			f.looked++
			if is := r.Counts[what]; is > was+f.limits.Growth[what] {
				f.wrong("%s had %d %s at rest before the load and has %d after it (%d more are allowed)",
					r.Who, was, what, is, f.limits.Growth[what])
			}
		}
	}
}

// valid sees that the run was what its plan asked for: a run without load or faults passes every
// check and proves nothing.
func valid(f *finder) {
	p := &f.Plan
	if p.End == 0 {
		f.invalid("its plan has no end, so the record may be cut short")
	}
	succeeded := 0
	for _, outcomes := range f.report.Outcomes {
		succeeded += outcomes[OK]
	}
	if succeeded < p.MinOK {
		f.invalid("the load was too low: %d operations succeeded, and %d were asked for", succeeded, p.MinOK)
	}
	for _, kind := range p.Faults {
		if !slices.ContainsFunc(f.Faults, func(x Fault) bool { return x.Kind == kind }) {
			f.invalid("the fault %q was asked for and never happened", kind)
		}
	}
	for _, id := range p.Checks {
		if f.report.Looked[id] == 0 {
			f.invalid("%s was asked for and had nothing to look at", id)
		}
	}
	f.lastOnes()
	f.wellFormed()
	unbelieved := 0
	for _, op := range f.ops {
		if t := f.tickets[op.Ref]; op.acquires() && op.Outcome == OK && (t == nil || t.hold == nil) {
			unbelieved++
		}
	}
	if unbelieved > 0 {
		f.invalid("%d grants have no record of how long they were believed in", unbelieved)
	}
	if killed := len(f.died); f.Torn > killed {
		f.invalid("%d lines of the record are torn, and %d clients died", f.Torn, killed)
	}
}

// wellFormed sees that calls are written down as the manual says; the checks rely on it.
func (f *finder) wellFormed() {
	for _, op := range f.ops {
		known := op.Outcome == OK || op.Outcome == Refused
		switch {
		case !known && op.Outcome != Unknown:
			f.invalid("a call of %s has the outcome %q: ok, refused or unknown are allowed", op.Client, op.Outcome)
		case known && op.Return == 0 || op.Return != 0 && op.Return < op.Call:
			f.invalid("a call of %s was made at %s and is said to have come back at %s", op.Client, f.at(op.Call), f.at(op.Return))
		case op.acquires() && op.Outcome == OK && (op.Token == 0 || len(op.Items) == 0):
			f.invalid("a grant to %s at %s has no token or no items", op.Client, f.at(op.Return))
		}
	}
}

// lastOnes sees that the last calls of those who live came back with an answer, and that a lock was
// granted after the healing.
func (f *finder) lastOnes() {
	last := map[string]*Op{}
	granted := false
	for _, op := range f.ops {
		if before := last[op.Client]; before == nil || op.Call >= before.Call {
			last[op.Client] = op
		}
		granted = granted || op.acquires() && op.Outcome == OK && op.Call > f.Plan.Healed
	}
	if !granted {
		f.invalid("no lock was granted after the healing")
	}
	for _, client := range slices.Sorted(maps.Keys(last)) {
		if op := last[client]; f.died[client] == 0 && op.Outcome == Unknown {
			f.invalid("the last call of %s, %s at %s, did not succeed: %s",
				client, op.Kind, f.at(op.Call), orElse(op.Error, "no answer"))
		}
	}
}
