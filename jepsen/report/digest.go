package report

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"time"

	"zamok/jepsen/check"
)

// digest is a run, put in order for telling.
type digest struct {
	Run
	begin, end time.Duration
	calls      []*check.Op // by call
	holds      []hold      // by beginning
	faults     []check.Fault
	offices    []Office
	outages    []Outage
	locks      map[string]*lock
	marks      []mark
}

// hold is a belief with its end.
type hold struct {
	*check.Hold
	to   time.Duration
	died bool // its client did, before it gave it back
}

// lock is all that is told of one name.
type lock struct {
	name   string
	holds  []hold
	waits  []*check.Op // calls that waited or may have
	marked bool
}

// mark is a violation with the moments and the lock that it names.
type mark struct {
	check.Finding
	at   []time.Duration
	lock string
}

func newDigest(run Run) *digest {
	h := run.History
	d := &digest{Run: run, begin: h.Plan.Begin, end: h.Plan.End, locks: map[string]*lock{}, calls: h.Calls()}
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
	d.addOffices()
	d.addOutages()
	d.addMarks()
	return d
}

func (d *digest) lock(name string) *lock {
	if d.locks[name] == nil {
		d.locks[name] = &lock{name: name}
	}
	return d.locks[name]
}

func (d *digest) addHolds() {
	died := map[string]time.Duration{}
	for _, s := range d.History.Sessions {
		died[s.Client] = max(s.Died, died[s.Client])
	}
	for _, b := range d.History.Beliefs() {
		h := hold{Hold: b, to: b.To}
		if h.to == 0 {
			h.died = died[b.Client] != 0
			h.to = cmp.Or(died[b.Client], d.end)
		}
		h.to = max(h.to, b.From)
		d.holds = append(d.holds, h)
	}
	slices.SortStableFunc(d.holds, func(a, b hold) int { return cmp.Compare(a.From, b.From) })
	for _, h := range d.holds {
		d.end = max(d.end, h.to)
		for _, item := range h.Items {
			l := d.lock(item.Name)
			l.holds = append(l.holds, h)
		}
	}
}

// addOffices puts the epochs in order, or guesses them from the terms that were seen.
func (d *digest) addOffices() {
	d.offices = slices.Clone(d.Offices)
	if len(d.offices) == 0 {
		first := map[uint64]time.Duration{}
		saw := func(term uint64, at time.Duration) {
			if was, seen := first[term]; term != 0 && (!seen || at < was) {
				first[term] = at
			}
		}
		for _, op := range d.calls {
			saw(op.Term, op.Return)
		}
		for _, s := range d.History.Seen {
			saw(s.Term, s.At)
		}
		for term, at := range first {
			d.offices = append(d.offices, Office{Term: term, From: at})
		}
	}
	slices.SortFunc(d.offices, func(a, b Office) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Term, b.Term))
	})
	for i := range d.offices {
		switch o := &d.offices[i]; {
		case o.To != 0:
		case i+1 < len(d.offices):
			o.To = d.offices[i+1].From
		default:
			o.To = d.end
		}
	}
}

var (
	momentIn = regexp.MustCompile(`\b(?:at|from|to|by|before|until|between) (\d+\.\d{3})s\b`)
	lockIn   = regexp.MustCompile(`(?:lock|resource) ("(?:[^"\\]|\\.)*")`)
	indexIn  = regexp.MustCompile(`\bindex (\d+)`)
)

// addMarks reads out of the violations which moments and which lock they name. Where only an index is
// named, the events tell when that was.
func (d *digest) addMarks() {
	var when map[uint64]time.Duration
	for _, f := range d.Report.Violations {
		m := mark{Finding: f}
		if found := lockIn.FindStringSubmatch(f.Text); found != nil {
			m.lock, _ = strconv.Unquote(found[1]) // what can't be read names none
		}
		for _, found := range momentIn.FindAllStringSubmatch(f.Text, -1) {
			if at, err := time.ParseDuration(found[1] + "s"); err == nil {
				m.at = append(m.at, d.begin+at)
			}
		}
		if len(m.at) == 0 {
			if when == nil {
				when = d.indexes()
			}
			for _, found := range indexIn.FindAllStringSubmatch(f.Text, -1) {
				index, _ := strconv.ParseUint(found[1], 10, 64)
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
		d.marks = append(d.marks, m)
	}
}

// indexes tells when each index was seen first.
func (d *digest) indexes() map[uint64]time.Duration {
	when := map[uint64]time.Duration{}
	for _, ev := range d.History.Events {
		if was, seen := when[ev.Index]; !seen || ev.At < was {
			when[ev.Index] = ev.At
		}
	}
	return when
}

// rareIn is how many times less often than the busiest a lock is held that is not worth a lane.
const rareIn = 50

// busiest are the locks to be drawn: first those that violations name, then those most often held.
func (d *digest) busiest(most int) []*lock {
	all := make([]*lock, 0, len(d.locks))
	for _, l := range d.locks {
		if len(l.holds) > 0 || l.marked {
			all = append(all, l)
		}
	}
	rank := func(l *lock) int {
		if l.marked {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b *lock) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(len(b.holds), len(a.holds)), cmp.Compare(a.name, b.name))
	})
	all = all[:min(most, len(all))]
	return slices.DeleteFunc(all, func(l *lock) bool { return !l.marked && len(l.holds) < len(all[0].holds)/rareIn })
}
