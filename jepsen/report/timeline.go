package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"zamok/jepsen/check"
)

const (
	unit      = 100 * time.Microsecond // of the page's moments
	binMin    = 100 * time.Millisecond
	binsMax   = 6000
	locksMax  = 8      // so many locks are drawn
	barsMax   = 30_000 // so many times of holding, over all of them
	barsOther = 5_000  // so many faults, and as many outages, epochs and stalls
	kindsMax  = 64     // kinds of faults that have a row of their own
	around    = 2 * time.Second
	wholeMax  = 500 // so many bars around violations are kept whole, for each lock
	lanesMax  = 6   // holders beside each other; more are drawn over each other
	textMax   = 2000
	namesMax  = 120
	pageMax   = 3_000_000
)

// timeline is what the page draws. Moments and lengths are in units, from the beginning; latencies are in
// microseconds. A list of bars is flat, and its comment tells what one bar takes in it.
type timeline struct {
	UnitsPerSecond int64      `json:"unitsPerSecond"`
	End            int64      `json:"end"`
	Healed         int64      `json:"healed"`
	Bin            int64      `json:"bin"`
	Names          []string   `json:"names"` // bars name things by their place in it
	OK             []int      `json:"ok"`
	Refused        []int      `json:"refused"`
	Unknown        []int      `json:"unknown"`
	Answers        quantiles  `json:"answers"`
	Waits          quantiles  `json:"waits"`
	Faults         []lane     `json:"faults"`  // from, length, target
	Offices        []int64    `json:"epochs"`  // from, length, node, term
	Stalls         []int64    `json:"stalls"`  // from, length, why
	Outages        []int64    `json:"outages"` // from, length, prober
	Locks          []lockLane `json:"locks"`
	Marks          []pageMark `json:"marks"`

	places map[string]int64
}

type lane struct {
	Name  string  `json:"name"`
	Count int     `json:"count"`
	Bars  []int64 `json:"bars"`
}

type quantiles struct {
	Count []int   `json:"count"`
	P50   []int64 `json:"p50"`
	P99   []int64 `json:"p99"`
}

type lockLane struct {
	Name  string  `json:"name"`
	Holds int     `json:"holds"`
	Lanes int64   `json:"lanes"`
	Depth []int   `json:"depth"`
	Bars  []int64 `json:"bars"` // see bars
}

type pageMark struct {
	Check string  `json:"check"`
	Text  string  `json:"text"`
	At    []int64 `json:"at"`
	Lock  int     `json:"lock"` // its place in Locks; -1 = none
}

// timeline makes the page's data, with so many bars of holding at most.
func (d *digest) timeline(bars int) *timeline {
	t := &timeline{
		UnitsPerSecond: int64(time.Second / unit), End: d.units(d.end), Healed: d.units(d.History.Plan.Healed),
		places: map[string]int64{},
	}
	bin := d.bin()
	t.Bin = int64(bin / unit)
	bins := int((d.end-d.begin)/bin) + 1
	t.OK, t.Refused, t.Unknown = make([]int, bins), make([]int, bins), make([]int, bins)
	answers, waits := make([][]int64, bins), make([][]int64, bins)
	for _, op := range d.calls {
		i := int((max(op.Call, op.Return) - d.begin) / bin)
		if i < 0 {
			continue // before the run began
		}
		switch op.Outcome {
		case check.OK:
			t.OK[i]++
		case check.Refused:
			t.Refused[i]++
		default:
			t.Unknown[i]++
		}
		took := int64((op.Return - op.Call) / time.Microsecond)
		switch told(op) {
		case atOnce, gave, reading:
			answers[i] = append(answers[i], took)
		case waited:
			waits[i] = append(waits[i], took)
		}
	}
	t.Answers, t.Waits = quantilesOf(answers), quantilesOf(waits)
	d.drawFaults(t)
	locks := d.busiest(locksMax)
	for _, l := range locks {
		lane := lockLane{Name: cut(l.name, namesMax), Holds: len(l.holds), Depth: d.depth(l, bin, bins)}
		lane.Bars, lane.Lanes = d.bars(t, l, bars/len(locks))
		t.Locks = append(t.Locks, lane)
	}
	for _, m := range d.marks {
		p := pageMark{Check: m.Check, Text: cut(m.Text, textMax), At: []int64{}}
		p.Lock = slices.IndexFunc(locks, func(l *lock) bool { return l.name == m.lock })
		for _, at := range m.at {
			p.At = append(p.At, d.units(at))
		}
		t.Marks = append(t.Marks, p)
	}
	return t
}

// bin is what is counted together: a round time of which there are not too many.
func (d *digest) bin() time.Duration {
	for bin := binMin; ; bin *= 10 {
		for _, times := range []time.Duration{1, 2, 5} {
			if (d.end-d.begin)/(times*bin) < binsMax {
				return times * bin
			}
		}
	}
}

func (d *digest) units(at time.Duration) int64 { return int64(max(0, at-d.begin) / unit) }

// name is the place of a name in the list that bars refer to.
func (t *timeline) name(name string) int64 {
	place, known := t.places[name]
	if !known {
		place = int64(len(t.Names))
		t.places[name] = place
		t.Names = append(t.Names, cut(name, namesMax))
	}
	return place
}

// cut shortens a text; names are as long as whoever made them up liked.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

func quantilesOf(bins [][]int64) quantiles {
	q := quantiles{make([]int, len(bins)), make([]int64, len(bins)), make([]int64, len(bins))}
	for i, took := range bins {
		if len(took) > 0 {
			slices.Sort(took)
			q.Count[i], q.P50[i], q.P99[i] = len(took), rank(took, 50), rank(took, 99)
		}
	}
	return q
}

func (d *digest) drawFaults(t *timeline) {
	rows := map[string]int{}
	for i, f := range d.faults {
		kind := f.Kind
		row, known := rows[kind]
		if !known && len(t.Faults) == kindsMax {
			kind = "others"
			row, known = rows[kind]
		}
		if !known {
			row = len(t.Faults)
			rows[kind] = row
			t.Faults = append(t.Faults, lane{Name: cut(kind, namesMax)})
		}
		l := &t.Faults[row]
		if l.Count++; i < barsOther {
			l.Bars = append(l.Bars, d.units(f.From), d.units(f.To)-d.units(f.From), t.name(f.Target))
		}
	}
	slices.SortFunc(t.Faults, func(a, b lane) int { return cmp.Compare(a.Name, b.Name) })
	for _, o := range d.offices[:min(len(d.offices), barsOther)] {
		t.Offices = append(t.Offices, d.units(o.From), d.units(o.To)-d.units(o.From), t.name(o.Node), int64(o.Term))
	}
	for _, s := range d.History.Stalls[:min(len(d.History.Stalls), barsOther)] {
		t.Stalls = append(t.Stalls, d.units(s.From), d.units(s.To)-d.units(s.From), t.name(s.Why))
	}
	for _, o := range d.outages[:min(len(d.outages), barsOther)] { // the longest ones
		t.Outages = append(t.Outages, int64(o.From/unit), int64(o.Lasted/unit), t.name(o.Prober))
	}
}

// depth is how many calls waited for a lock at once, at most, in each bin.
func (d *digest) depth(l *lock, bin time.Duration, bins int) []int {
	type step struct {
		at   time.Duration
		more int
	}
	var steps []step
	for _, op := range l.waits {
		if op.Return > op.Call { // who never came back died, and its place in the queue is not known
			steps = append(steps, step{max(op.Call, d.begin), 1}, step{max(op.Return, d.begin), -1})
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.more, b.more)) })
	depth := make([]int, bins)
	now, last := 0, 0
	for _, s := range steps {
		i := int((s.at - d.begin) / bin)
		for ; last < i; last++ {
			depth[last] = max(depth[last], now)
		}
		depth[i] = max(depth[i], now, now+s.more)
		now += s.more
	}
	return depth
}
