package report

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"time"

	"zamok/jepsen/check"
)

// analysis is a run, put in order for telling.
type analysis struct {
	Run
	begin, end time.Duration
	calls      []*check.Op  // by call
	holds      []holdRecord // by beginning
	faults     []check.Fault
	epochs     []Epoch
	outages    []Outage
	locks      map[string]*lockRecords
	violations []violationMark
}

// holdRecord is a belief with its end.
type holdRecord struct {
	*check.Hold
	to   time.Duration
	died bool // its client did, before it gave it back
}

// lockRecords is all that is told of one name.
type lockRecords struct {
	name   string
	holds  []holdRecord
	waits  []*check.Op // calls that waited or may have
	marked bool
}

// violationMark is a violation with the moments and the lock that it names.
type violationMark struct {
	check.Finding
	at   []time.Duration
	lock string
}

func newAnalysis(run Run) *analysis {
	h := run.History
	d := &analysis{Run: run, begin: h.Plan.Begin, end: h.Plan.End, locks: map[string]*lockRecords{}, calls: h.LatestOps()}
	for _, op := range d.calls {
		d.end = max(d.end, op.Call, op.Return)
		if d.begin == 0 {
			d.begin = op.Call
		}
	}
	for _, f := range h.Faults {
		if f.Kind == "" {
			continue // it only says of a client what another fault voids
		}
		f.To = max(f.From, f.To)
		d.end = max(d.end, f.To)
		d.faults = append(d.faults, f)
	}
	slices.SortStableFunc(d.calls, func(a, b *check.Op) int { return cmp.Compare(a.Call, b.Call) })
	slices.SortStableFunc(d.faults, func(a, b check.Fault) int { return cmp.Compare(a.From, b.From) })
	d.addHolds()
	for _, op := range d.calls {
		if op.Kind != check.OpLock {
			continue
		}
		for _, item := range op.Items {
			l := d.lock(item.Name)
			l.waits = append(l.waits, op)
		}
	}
	d.addEpochs()
	d.addOutages()
	d.addViolations()
	return d
}

func (d *analysis) lock(name string) *lockRecords {
	if d.locks[name] == nil {
		d.locks[name] = &lockRecords{name: name}
	}
	return d.locks[name]
}

func (d *analysis) addHolds() {
	died := map[string]time.Duration{}
	for _, s := range d.History.Sessions {
		died[s.Client] = max(s.Died, died[s.Client])
	}
	for _, b := range d.History.LatestHolds() {
		h := holdRecord{Hold: b, to: b.To}
		if h.to == 0 {
			h.died = died[b.Client] != 0
			h.to = cmp.Or(died[b.Client], d.end)
		}
		h.to = max(h.to, b.From)
		d.holds = append(d.holds, h)
	}
	slices.SortStableFunc(d.holds, func(a, b holdRecord) int { return cmp.Compare(a.From, b.From) })
	for _, h := range d.holds {
		d.end = max(d.end, h.to)
		for _, item := range h.Items {
			l := d.lock(item.Name)
			l.holds = append(l.holds, h)
		}
	}
}

// addEpochs puts the epochs in order, or guesses them from the terms that were seen.
func (d *analysis) addEpochs() {
	d.epochs = slices.Clone(d.Epochs)
	if len(d.epochs) == 0 {
		first := map[uint64]time.Duration{}
		seenBefore := func(term uint64, at time.Duration) {
			if was, seen := first[term]; term != 0 && (!seen || at < was) {
				first[term] = at
			}
		}
		for _, op := range d.calls {
			seenBefore(op.Term, op.Return)
		}
		for _, s := range d.History.NodeStates {
			seenBefore(s.Term, s.At)
		}
		for term, at := range first {
			d.epochs = append(d.epochs, Epoch{Term: term, From: at})
		}
	}
	slices.SortFunc(d.epochs, func(a, b Epoch) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Term, b.Term))
	})
	for i := range d.epochs {
		switch o := &d.epochs[i]; {
		case o.To != 0:
		case i+1 < len(d.epochs):
			o.To = d.epochs[i+1].From
		default:
			o.To = d.end
		}
	}
}

var (
	momentPattern = regexp.MustCompile(`\b(?:at|from|to|by|before|until|between) (\d+\.\d{3})s\b`)
	lockPattern   = regexp.MustCompile(`(?:lock|resource) ("(?:[^"\\]|\\.)*")`)
	indexPattern  = regexp.MustCompile(`\bindex (\d+)`)
)

// addViolations reads out of the violations which moments and which lock they name. Where only an index is
// named, the events tell when that was.
func (d *analysis) addViolations() {
	var when map[uint64]time.Duration
	for _, f := range d.Report.Violations {
		m := violationMark{Finding: f}
		if match := lockPattern.FindStringSubmatch(f.Text); match != nil {
			m.lock, _ = strconv.Unquote(match[1]) // what can't be read names none
		}
		for _, match := range momentPattern.FindAllStringSubmatch(f.Text, -1) {
			if at, err := time.ParseDuration(match[1] + "s"); err == nil {
				m.at = append(m.at, d.begin+at)
			}
		}
		if len(m.at) == 0 {
			if when == nil {
				when = d.firstSeenAt()
			}
			for _, match := range indexPattern.FindAllStringSubmatch(f.Text, -1) {
				index, _ := strconv.ParseUint(match[1], 10, 64)
				if at, known := when[index]; known {
					m.at = append(m.at, at)
				}
			}
		}
		slices.Sort(m.at)
		m.at = slices.Compact(m.at)
		if l := d.locks[m.lock]; l != nil {
			l.marked = true
		}
		d.violations = append(d.violations, m)
	}
}

// firstSeenAt tells when each index was seen first.
func (d *analysis) firstSeenAt() map[uint64]time.Duration {
	when := map[uint64]time.Duration{}
	for _, ev := range d.History.Events {
		if was, seen := when[ev.Index]; !seen || ev.At < was {
			when[ev.Index] = ev.At
		}
	}
	return when
}

// rareDivisor is how many times less often than the busiest a lock is held that is not worth a lane.
const rareDivisor = 50

// busiest are the locks to be drawn: first those that violations name, then those most often held.
func (d *analysis) busiest(limit int) []*lockRecords {
	all := make([]*lockRecords, 0, len(d.locks))
	for _, l := range d.locks {
		if len(l.holds) > 0 || l.marked {
			all = append(all, l)
		}
	}
	rank := func(l *lockRecords) int {
		if l.marked {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b *lockRecords) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(len(b.holds), len(a.holds)), cmp.Compare(a.name, b.name))
	})
	all = all[:min(limit, len(all))]
	return slices.DeleteFunc(all, func(l *lockRecords) bool { return !l.marked && len(l.holds) < len(all[0].holds)/rareDivisor })
}
