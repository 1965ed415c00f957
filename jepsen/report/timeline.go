package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"zamok/jepsen/check"
)

const (
	timelineUnit    = 100 * time.Microsecond // of the page's moments
	binMin          = 100 * time.Millisecond
	binsMax         = 6000
	locksMax        = 8      // so many locks are drawn
	barsMax         = 30_000 // so many times of holding, over all of them
	otherBarsMax    = 5_000  // so many faults, and as many outages, epochs and stalls
	kindsMax        = 64     // kinds of faults that have a row of their own
	violationMargin = 2 * time.Second
	ungroupedMax    = 500 // so many bars around violations are kept whole, for each lock
	lanesMax        = 6   // holders beside each other; more are drawn over each other
	textMax         = 2000
	namesMax        = 120
	pageMax         = 3_000_000
)

// timeline is what the page draws. Moments and lengths are in units, from the beginning; latencies are in
// microseconds. A list of bars is flat, and its comment tells what one bar takes in it.
type timeline struct {
	UnitsPerSecond int64           `json:"unitsPerSecond"`
	End            int64           `json:"end"`
	Healed         int64           `json:"healed"`
	Bin            int64           `json:"bin"`
	Names          []string        `json:"names"` // bars name things by their place in it
	OK             []int           `json:"ok"`
	Refused        []int           `json:"refused"`
	Unknown        []int           `json:"unknown"`
	Answers        quantiles       `json:"answers"`
	Waits          quantiles       `json:"waits"`
	Faults         []lane          `json:"faults"`  // from, length, target
	Epochs         []int64         `json:"epochs"`  // from, length, node, term
	Stalls         []int64         `json:"stalls"`  // from, length, why
	Outages        []int64         `json:"outages"` // from, length, prober
	Locks          []lockLane      `json:"locks"`
	Marks          []pageViolation `json:"marks"`

	nameIndex map[string]int64
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

type pageViolation struct {
	Check string  `json:"check"`
	Text  string  `json:"text"`
	At    []int64 `json:"at"`
	Lock  int     `json:"lock"` // its place in Locks; -1 = none
}

// timeline makes the page's data, with so many bars of holding at most.
func (d *analysis) timeline(bars int) *timeline {
	t := &timeline{
		UnitsPerSecond: int64(time.Second / timelineUnit), End: d.toUnits(d.end), Healed: d.toUnits(d.History.Plan.Healed),
		nameIndex: map[string]int64{},
	}
	bin := d.binWidth()
	t.Bin = int64(bin / timelineUnit)
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
		switch latencyClass(op) {
		case latencyImmediate, latencyRelease, latencyRead:
			answers[i] = append(answers[i], took)
		case latencyQueued:
			waits[i] = append(waits[i], took)
		}
	}
	t.Answers, t.Waits = quantilesOf(answers), quantilesOf(waits)
	d.drawFaults(t)
	locks := d.busiest(locksMax)
	for _, l := range locks {
		lane := lockLane{Name: truncate(l.name, namesMax), Holds: len(l.holds), Depth: d.depth(l, bin, bins)}
		lane.Bars, lane.Lanes = d.encodeBars(t, l, bars/len(locks))
		t.Locks = append(t.Locks, lane)
	}
	for _, m := range d.violations {
		p := pageViolation{Check: m.Check, Text: truncate(m.Text, textMax), At: []int64{}}
		p.Lock = slices.IndexFunc(locks, func(l *lockRecords) bool { return l.name == m.lock })
		for _, at := range m.at {
			p.At = append(p.At, d.toUnits(at))
		}
		t.Marks = append(t.Marks, p)
	}
	return t
}

// binWidth is what is counted together: a round time of which there are not too many.
func (d *analysis) binWidth() time.Duration {
	for bin := binMin; ; bin *= 10 {
		for _, times := range []time.Duration{1, 2, 5} {
			if (d.end-d.begin)/(times*bin) < binsMax {
				return times * bin
			}
		}
	}
}

func (d *analysis) toUnits(at time.Duration) int64 { return int64(max(0, at-d.begin) / timelineUnit) }

// name is the place of a name in the list that bars refer to.
func (t *timeline) name(name string) int64 {
	place, known := t.nameIndex[name]
	if !known {
		place = int64(len(t.Names))
		t.nameIndex[name] = place
		t.Names = append(t.Names, truncate(name, namesMax))
	}
	return place
}

// truncate shortens a text; names are as long as whoever made them up liked.
func truncate(text string, most int) string {
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

func (d *analysis) drawFaults(t *timeline) {
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
			t.Faults = append(t.Faults, lane{Name: truncate(kind, namesMax)})
		}
		l := &t.Faults[row]
		if l.Count++; i < otherBarsMax {
			l.Bars = append(l.Bars, d.toUnits(f.From), d.toUnits(f.To)-d.toUnits(f.From), t.name(f.Target))
		}
	}
	slices.SortFunc(t.Faults, func(a, b lane) int { return cmp.Compare(a.Name, b.Name) })
	for _, o := range d.epochs[:min(len(d.epochs), otherBarsMax)] {
		t.Epochs = append(t.Epochs, d.toUnits(o.From), d.toUnits(o.To)-d.toUnits(o.From), t.name(o.Node), int64(o.Term))
	}
	for _, s := range d.History.Stalls[:min(len(d.History.Stalls), otherBarsMax)] {
		t.Stalls = append(t.Stalls, d.toUnits(s.From), d.toUnits(s.To)-d.toUnits(s.From), t.name(s.Reason))
	}
	for _, o := range d.outages[:min(len(d.outages), otherBarsMax)] { // the longest ones
		t.Outages = append(t.Outages, int64(o.From/timelineUnit), int64(o.Duration/timelineUnit), t.name(o.Prober))
	}
}

// depth is how many calls waited for a lock at once, at most, in each bin.
func (d *analysis) depth(l *lockRecords, bin time.Duration, bins int) []int {
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
