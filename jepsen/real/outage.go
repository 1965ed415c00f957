package main

import (
	"cmp"
	"slices"
	"time"

	"zamok/jepsen/check"
)

const (
	outageMin    = 200 * time.Millisecond // shorter gaps are how calls take turns
	faultTailMax = 5 * time.Second        // an outage this soon after a fault may still be its effect
)

// outage is a time in which no call of the prober succeeded, which uses a lock of its own.
type outage struct {
	from, to time.Duration
	faults   []string // kinds of the faults that were under way, or if none was, had ended shortly before
}

// findOutages finds the gaps between successful answers to the prober. calls are in order of Call.
func findOutages(calls []*check.Op, faults []check.Fault) (all []outage) {
	calls = slices.DeleteFunc(slices.Clone(calls), func(op *check.Op) bool { return op.Client != prober })
	var last time.Duration // the latest answer
	for i, op := range calls {
		if i == 0 {
			last = op.Call
		}
		end := op.Outcome == check.OK || i == len(calls)-1 // after the last call nothing was asked
		if at := max(op.Call, op.Return); end && at-last > outageMin {
			all = append(all, outage{last, at, kindsDuring(faults, last, at)})
		}
		if op.Outcome == check.OK {
			last = op.Return
		}
	}
	slices.SortStableFunc(all, func(a, b outage) int { return cmp.Compare(b.to-b.from, a.to-a.from) })
	return all
}

func kindsDuring(faults []check.Fault, from, to time.Duration) []string {
	for _, tail := range []time.Duration{0, faultTailMax} {
		var kinds []string
		for _, f := range faults {
			if f.From <= to && f.To >= from-tail {
				kinds = append(kinds, f.Kind)
			}
		}
		if len(kinds) > 0 {
			slices.Sort(kinds)
			return slices.Compact(kinds)
		}
	}
	return []string{"(no fault)"}
}
