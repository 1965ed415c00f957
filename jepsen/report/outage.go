package report

import (
	"cmp"
	"slices"
	"time"

	"zamok/jepsen/check"
)

const (
	outageMin    = 200 * time.Millisecond // what is shorter is how calls take turns
	faultLeadMax = time.Second            // so long may an outage seem to have begun before the fault that it is of
	faultTailMax = 5 * time.Second        // so long after a fault an outage may still be its doing
	noFault      = "(no fault)"
	allClients   = "all clients"
)

// Outage is a time in which nothing that a prober asked for succeeded.
type Outage struct {
	Prober   string        `json:"prober"`
	From     time.Duration `json:"from_ns"` // from the beginning of the run
	Duration time.Duration `json:"duration_ns"`
	Kinds    []string      `json:"kinds"` // of the faults that were under way

	faults []*check.Fault
}

func (d *analysis) addOutages() {
	if len(d.Probers) == 0 {
		d.findOutages(allClients, slices.DeleteFunc(slices.Clone(d.calls), func(op *check.Op) bool {
			return op.Kind == check.OpLock && latencyClass(op) != latencyImmediate // it waits for other clients, or may
		}))
	}
	for _, name := range d.Probers {
		d.findOutages(name, slices.DeleteFunc(slices.Clone(d.calls), func(op *check.Op) bool { return op.Client != name }))
	}
	slices.SortStableFunc(d.outages, func(a, b Outage) int { return cmp.Compare(b.Duration, a.Duration) })
}

// findOutages finds the outages in some calls, given by call.
func (d *analysis) findOutages(prober string, calls []*check.Op) {
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
		next, _ := slices.BinarySearchFunc(calls, from, func(op *check.Op, at time.Duration) int {
			return cmp.Compare(op.Call, at)
		})
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
			d.outages = append(d.outages, d.newOutage(prober, from, to))
		}
	}
}

func (d *analysis) newOutage(prober string, from, to time.Duration) Outage {
	o := Outage{Prober: prober, From: from - d.begin, Duration: to - from, faults: d.concurrentFaults(from, to)}
	for _, f := range o.faults {
		o.Kinds = append(o.Kinds, f.Kind)
	}
	if len(o.Kinds) == 0 {
		o.Kinds = []string{noFault}
	}
	slices.Sort(o.Kinds)
	o.Kinds = slices.Compact(o.Kinds)
	return o
}

// concurrentFaults are the faults that an outage is told of: those under way in it, and if none of them was when it
// began, those that had ended shortly before.
func (d *analysis) concurrentFaults(from, to time.Duration) (faults []*check.Fault) {
	var before []*check.Fault
	atFirst := false
	for i := range d.faults {
		switch f := &d.faults[i]; {
		case f.From > to || f.To < from-faultTailMax:
		case f.To < from:
			before = append(before, f)
		default:
			faults = append(faults, f)
			atFirst = atFirst || f.From <= from+faultLeadMax
		}
	}
	if !atFirst {
		faults = append(faults, before...)
	}
	return faults
}

// attributedTo is how much of an outage may be a fault's doing: of one that began while it lasted already, what
// fell into its time and shortly after.
func (d *analysis) attributedTo(o *Outage, f *check.Fault) time.Duration {
	from, to := d.begin+o.From, d.begin+o.From+o.Duration
	if f.From > from+faultLeadMax {
		return min(to, f.To+faultTailMax) - f.From
	}
	return o.Duration
}
