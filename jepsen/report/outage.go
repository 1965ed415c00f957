package report

import (
	"cmp"
	"slices"
	"time"

	"zamok/jepsen/check"
)

const (
	outageMin = 200 * time.Millisecond // what is shorter is how calls take turns
	afterMax  = 5 * time.Second        // so long after a fault an outage may still be its doing
	noFault   = "(no fault)"
	everybody = "all clients"
)

// Outage is a time in which nothing that a prober asked for succeeded.
type Outage struct {
	Prober string        `json:"prober"`
	From   time.Duration `json:"from_ns"` // from the beginning of the run
	Lasted time.Duration `json:"lasted_ns"`
	Kinds  []string      `json:"kinds"` // of the faults that were under way
}

func (d *digest) addOutages() {
	if len(d.Probers) == 0 {
		d.outagesOf(everybody, slices.DeleteFunc(slices.Clone(d.calls), func(op *check.Op) bool {
			return op.Kind == check.OpLock && told(op) != atOnce // it waits for other clients, or may
		}))
	}
	for _, name := range d.Probers {
		d.outagesOf(name, slices.DeleteFunc(slices.Clone(d.calls), func(op *check.Op) bool { return op.Client != name }))
	}
	slices.SortStableFunc(d.outages, func(a, b Outage) int { return cmp.Compare(b.Lasted, a.Lasted) })
}

// outagesOf finds the outages in some calls, given by call.
func (d *digest) outagesOf(prober string, calls []*check.Op) {
	var answers []time.Duration
	asking := make([]time.Duration, len(calls)) // until when somebody is, of those who called up to this one
	var until time.Duration
	for i, op := range calls {
		if op.Outcome == check.OK {
			answers = append(answers, op.Return)
		}
		until = max(until, op.Return)
		asking[i] = until
	}
	answers = append(answers, d.begin, d.end)
	slices.Sort(answers)
	for i := 1; i < len(answers); i++ {
		from, to := answers[i-1], answers[i]
		if to-from <= outageMin {
			continue
		}
		next, _ := slices.BinarySearchFunc(calls, from, func(op *check.Op, at time.Duration) int { return cmp.Compare(op.Call, at) })
		if next == 0 || asking[next-1] <= from { // nobody was asking then
			if next == len(calls) {
				continue
			}
			from = calls[next].Call
		}
		if to == d.end { // nothing succeeded any more: it lasts as long as somebody asks
			to = min(to, asking[len(calls)-1])
		}
		if to-from > outageMin {
			d.outages = append(d.outages, Outage{prober, from - d.begin, to - from, d.during(from, to)})
		}
	}
}

// during are the kinds of the faults that an outage is told of.
func (d *digest) during(from, to time.Duration) []string {
	var now, before []string
	for _, f := range d.faults {
		switch {
		case f.From > to || f.To < from-afterMax:
		case f.To < from:
			before = append(before, f.Kind)
		default:
			now = append(now, f.Kind)
		}
	}
	for _, kinds := range [][]string{now, before, {noFault}} {
		if slices.Sort(kinds); len(kinds) > 0 {
			return slices.Compact(kinds)
		}
	}
	return nil
}
