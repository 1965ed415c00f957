package check

import (
	"cmp"
	"maps"
	"slices"
)

// checkGrowth looks for counts that are greater at rest after the load than before it.
func checkGrowth(f *checker) {
	before := map[string]map[string]int64{}
	for _, r := range f.IdleCounts {
		if !r.AfterLoad {
			before[r.Process] = r.Counts
		}
	}
	for _, r := range f.IdleCounts {
		for _, counter := range slices.Sorted(maps.Keys(r.Counts)) {
			baseline, known := before[r.Process][counter]
			if !r.AfterLoad || !known {
				continue
			}
			f.examined++
			if is := r.Counts[counter]; is > baseline {
				f.violationf("%s had %d %s at rest before the load and has %d after it",
					r.Process, baseline, counter, is)
			}
		}
	}
}

// checkValidity sees that the run was what its plan asked for: a run without load or faults passes every
// check and proves nothing.
func checkValidity(f *checker) {
	p := &f.Plan
	if p.End == 0 {
		f.invalidf("its plan has no end, so the record may be cut short")
	}
	succeeded := 0
	for _, outcomes := range f.report.Outcomes {
		succeeded += outcomes[OK]
	}
	if succeeded < p.OKMin {
		f.invalidf("the load was too low: %d operations succeeded, and %d were asked for", succeeded, p.OKMin)
	}
	for _, kind := range p.Faults {
		if !slices.ContainsFunc(f.Faults, func(x Fault) bool { return x.Kind == kind }) {
			f.invalidf("the fault %q was asked for and never happened", kind)
		}
	}
	for _, id := range p.Checks {
		if f.report.Examined[id] == 0 {
			f.invalidf("%s was asked for and had nothing to look at", id)
		}
	}
	f.checkLastOps()
	f.wellFormed()
	withoutHold := 0
	for _, op := range f.ops {
		if t := f.tickets[op.Ref]; op.acquires() && op.Outcome == OK && (t == nil || t.hold == nil) {
			withoutHold++
		}
	}
	if withoutHold > 0 {
		f.invalidf("%d grants have no record of how long they were held", withoutHold)
	}
	if killed := len(f.diedAt); f.TruncatedLines > killed {
		f.invalidf("%d lines of the record are torn, and %d clients died", f.TruncatedLines, killed)
	}
}

// wellFormed sees that calls are written down as the manual says; the checks rely on it.
func (f *checker) wellFormed() {
	for _, op := range f.ops {
		known := op.Outcome == OK || op.Outcome == Refused
		switch {
		case !known && op.Outcome != Unknown:
			f.invalidf("a call of %s has the outcome %q: ok, refused or unknown are allowed", op.Client, op.Outcome)
		case known && op.Return == 0 || op.Return != 0 && op.Return < op.Call:
			f.invalidf("a call of %s was made at %s and is said to have come back at %s", op.Client,
				f.formatTime(op.Call), f.formatTime(op.Return))
		case op.acquires() && op.Outcome == OK && (op.Token == 0 || len(op.Items) == 0):
			f.invalidf("a grant to %s at %s has no token or no items", op.Client, f.formatTime(op.Return))
		}
	}
}

// checkLastOps sees that the last calls of the clients that live came back with an answer, and that a lock was
// granted after the healing.
func (f *checker) checkLastOps() {
	last := map[string]*Op{}
	granted := false
	for _, op := range f.ops {
		if before := last[op.Client]; before == nil || op.Call >= before.Call {
			last[op.Client] = op
		}
		granted = granted || op.acquires() && op.Outcome == OK && op.Call > f.Plan.Healed
	}
	if !granted {
		f.invalidf("no lock was granted after the healing")
	}
	for _, client := range slices.Sorted(maps.Keys(last)) {
		if op := last[client]; f.diedAt[client] == 0 && op.Outcome == Unknown {
			f.invalidf("the last call of %s, %s at %s, did not succeed: %s",
				client, op.Kind, f.formatTime(op.Call), cmp.Or(op.Error, "no answer"))
		}
	}
}
