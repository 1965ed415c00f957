package report

import (
	"fmt"
	"strings"

	"zamok/bench/measure"
)

// aim is one thing that was set beforehand. What it needs is set once and not bent: a miss is printed.
type aim struct {
	what string
	got  measure.Summary
	need float64
	most bool // need is the greatest that is good, not the least
	all  bool // the worst of the rounds must meet it, not the median
	unit string
}

func (a aim) judged() (value float64, met bool) {
	value = a.got.Median
	if a.all {
		value = a.got.Min
		if a.most {
			value = a.got.Max
		}
	}
	if a.most {
		return value, value <= a.need
	}
	return value, value >= a.need
}

func (r *report) aims(ours System) {
	t := newTable("aim", "needed", "measured", "")
	for _, a := range r.allAims(ours.Name) {
		if a.got.N == 0 {
			continue
		}
		sign, verdict := "≥", "met"
		if a.most {
			sign = "≤"
		}
		value, met := a.judged()
		if !met {
			verdict = "**missed**"
		}
		t.row(a.what, fmt.Sprintf("%s %s%s", sign, number(a.need), a.unit),
			fmt.Sprintf("%s%s (%s – %s)", number(value), a.unit, number(a.got.Min), number(a.got.Max)), verdict)
	}
	if !t.empty() {
		r.say("The aims that were set beforehand, and what came of them:\n\n%s\n", t)
	}
}

// against are the aims that differ between a log that is flushed twice a commit and one that is flushed
// once.
type against struct {
	workload string
	clients  int
	peer     string
	twice    float64 // 0 = none was set
	once     float64
}

func speedAims() []against {
	return []against{
		{"own", 1, "zookeeper", 0.8, 1.4}, {"own", 1, "etcd", 0, 1.4},
		{"own", 64, "zookeeper", 1.7, 2.3}, {"own", 64, "etcd", 2.6, 3.5},
		{"own", 256, "zookeeper", 2.2, 2.7}, {"own", 256, "etcd", 4, 5}, {"own", 256, "echo", 0, 0.5},
		{"shared", 256, "redis-aof", 0, 1.5},
		{"one", 2, "zookeeper", 1.1, 1.8}, {"one", 256, "zookeeper", 1.4, 2.2}, {"one", 256, "etcd", 2.5, 4},
	}
}

func (r *report) allAims(ours string) []aim {
	once := strings.HasSuffix(ours, "-wal")
	pick := func(twice, once_ float64) float64 {
		if once {
			return once_
		}
		return twice
	}
	var aims []aim
	for _, a := range speedAims() {
		if need := pick(a.twice, a.once); need > 0 {
			aims = append(aims, aim{what: fmt.Sprintf("%s: × %s", workloadName(a.workload, a.clients), a.peer),
				got: r.rs.Ratio(ours, a.peer, a.workload, a.clients, "rate"), need: need, unit: "×"})
		}
	}
	rs := r.rs
	return append(append(aims, aim{what: "shared 256: cycles/s", got: rs.Summary(ours, "shared", 256, "rate"), need: pick(45000, 75000)}),
		r.otherAims(ours)...)
}

// otherAims are not about which log is used.
func (r *report) otherAims(ours string) []aim {
	rs := r.rs
	return []aim{
		{what: "one key: grants out of order, at any size", got: r.everywhere(ours, "one", "inversions"), most: true, all: true},
		{what: "one key: Jain's index, at any size", got: r.everywhere(ours, "one", "jain"), need: 0.999, all: true},
		{what: "one key: holders beside another", got: r.everywhere(ours, "one", "overlaps"), most: true, all: true},
		{what: "hand-off (one 16) over a commit (own 1), medians", got: measure.Ratios(
			rs.Values(ours, "one", 16, "handoff_p50"), rs.Values(ours, "own", 1, "lock_p50")), need: 1.3, most: true, unit: "×"},
		{what: "own 256: server processor time over ZooKeeper's", got: rs.Ratio(ours, "zookeeper", "own", 256, "cpu"), need: 1. / 3, most: true, unit: "×"},
		{what: "parked 10 000: of a core", got: scaled(rs.Summary(ours, "parked", 10000, "core"), 100), need: 1, most: true, unit: " %"},
		{what: "parked 10 000: failed", got: rs.Summary(ours, "parked", 10000, "lost"), most: true, all: true},
		{what: "parked 10 000: served", got: rs.Summary(ours, "parked", 10000, "served"), need: 10000, all: true},
		{what: "dead holder: free after", got: scaled(rs.Summary(ours, "dead", 0, "freed"), 1e-3), need: 10.3, most: true, all: true, unit: " s"},
		{what: "dead holder, release on disconnect", got: rs.Summary(ours, "disconnect", 0, "freed"), need: 50, most: true, all: true, unit: " ms"},
		{what: "leader killed: next lock, × ZooKeeper's time", got: medians(rs.Summary(ours, "killed", 0, "next"), rs.Summary("zookeeper", "killed", 0, "next")),
			need: 0.8, most: true, unit: "×"},
		{what: "leader killed: held locks survived", got: rs.Summary(ours, "killed", 0, "survived"), need: 1, all: true},
		{what: "leader killed: held twice", got: rs.Summary(ours, "killed", 0, "twice"), most: true, all: true},
		{what: "elections that no accident called for", got: r.falseElections(ours), most: true, all: true},
	}
}

// medians is one median over another: a leader's death is too rare an event to be paired by round.
func medians(a, b measure.Summary) measure.Summary {
	if a.N == 0 || b.N == 0 {
		return measure.Summary{}
	}
	return measure.Summary{Median: a.Median / b.Median, Min: a.Min / b.Max, Max: a.Max / b.Min, N: min(a.N, b.N)}
}

// everywhere is a value at all sizes of a workload.
func (r *report) everywhere(system, workload, value string) measure.Summary {
	var values []float64
	for _, n := range r.rs.Clients(workload) {
		for _, v := range r.rs.Values(system, workload, n, value) {
			values = append(values, v)
		}
	}
	return measure.Summarize(values)
}

// falseElections counts changes of leader in all workloads that kill none.
func (r *report) falseElections(system string) measure.Summary {
	var values []float64
	for _, rec := range r.rs.Records {
		if v, ok := rec.Values["elections"]; ok && rec.System == system && rec.Workload != "killed" {
			values = append(values, v)
		}
	}
	return measure.Summarize(values)
}
