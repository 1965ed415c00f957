package report

import (
	"fmt"
	"strings"

	"zamok/bench/measure"
)

// target is an aim that was set before it was measured. Its limit does not move: a miss is printed.
type target struct {
	what       string
	measured   measure.Summary
	limit      float64
	atMost     bool // limit is the greatest good value, not the least
	everyRound bool // the worst of the rounds must meet it, not the median
	unit       string
}

func (a target) evaluate() (value float64, met bool) {
	value = a.measured.Median
	if a.everyRound {
		value = a.measured.Min
		if a.atMost {
			value = a.measured.Max
		}
	}
	if a.atMost {
		return value, value <= a.limit
	}
	return value, value >= a.limit
}

func (r *report) writeTargets(ours System) {
	t := newTable("aim", "needed", "measured", "")
	for _, a := range r.targets(ours.Name) {
		if a.measured.N == 0 {
			continue
		}
		sign, verdict := "≥", "met"
		if a.atMost {
			sign = "≤"
		}
		value, met := a.evaluate()
		if !met {
			verdict = "**missed**"
		}
		t.row(a.what, fmt.Sprintf("%s %s%s", sign, formatNumber(a.limit), a.unit),
			fmt.Sprintf("%s%s (%s – %s)", formatNumber(value), a.unit, formatNumber(a.measured.Min), formatNumber(a.measured.Max)), verdict)
	}
	if len(t.rows) > 0 {
		r.printf("The aims that were set beforehand, and what came of them:\n\n%s\n", t)
	}
}

// ratioTarget are the aims that differ between a log that is flushed twice a commit and one that is flushed
// once.
type ratioTarget struct {
	workload  string
	clients   int
	peer      string
	twoFsyncs float64 // 0 = none was set
	oneFsync  float64
}

func ratioTargets() []ratioTarget {
	return []ratioTarget{
		{"own", 1, "zookeeper", 0.8, 1.4}, {"own", 1, "etcd", 0, 1.4},
		{"own", 64, "zookeeper", 1.7, 2.3}, {"own", 64, "etcd", 2.6, 3.5},
		{"own", 256, "zookeeper", 2.2, 2.7}, {"own", 256, "etcd", 4, 5}, {"own", 256, "echo", 0, 0.5},
		{"shared", 256, "redis-aof", 0, 1.5},
		{"one", 2, "zookeeper", 1.1, 1.8}, {"one", 256, "zookeeper", 1.4, 2.2}, {"one", 256, "etcd", 2.5, 4},
	}
}

func (r *report) targets(ours string) []target {
	once := strings.HasSuffix(ours, "-wal")
	pick := func(twice, once_ float64) float64 {
		if once {
			return once_
		}
		return twice
	}
	var aims []target
	for _, a := range ratioTargets() {
		if need := pick(a.twoFsyncs, a.oneFsync); need > 0 {
			aims = append(aims, target{what: fmt.Sprintf("%s: × %s", workloadName(a.workload, a.clients), a.peer),
				measured: r.rs.Ratio(ours, a.peer, a.workload, a.clients, "rate"), limit: need, unit: "×"})
		}
	}
	rs := r.rs
	return append(append(aims, target{what: "shared 256: cycles/s", measured: rs.Summary(ours, "shared", 256, "rate"), limit: pick(45000, 75000)}),
		r.absoluteTargets(ours)...)
}

// absoluteTargets are not about which log is used.
func (r *report) absoluteTargets(ours string) []target {
	rs := r.rs
	return []target{
		{what: "one key: grants out of order, at any size", measured: r.atAllSizes(ours, "one", "inversions"), atMost: true, everyRound: true},
		{what: "one key: Jain's index, at any size", measured: r.atAllSizes(ours, "one", "jain"), limit: 0.999, everyRound: true},
		{what: "one key: holders beside another", measured: r.atAllSizes(ours, "one", "overlaps"), atMost: true, everyRound: true},
		{what: "hand-off (one 16) over a commit (own 1), medians", measured: measure.Ratios(
			rs.Values(ours, "one", 16, "handoff_p50"), rs.Values(ours, "own", 1, "lock_p50")), limit: 1.3, atMost: true, unit: "×"},
		{what: "own 256: server processor time over ZooKeeper's", measured: rs.Ratio(ours, "zookeeper", "own", 256, "cpu"), limit: 1. / 3, atMost: true, unit: "×"},
		{what: "parked 10 000: of a core", measured: scaled(rs.Summary(ours, "parked", 10000, "core"), 100), limit: 1, atMost: true, unit: " %"},
		{what: "parked 10 000: failed", measured: rs.Summary(ours, "parked", 10000, "lost"), atMost: true, everyRound: true},
		{what: "parked 10 000: served", measured: rs.Summary(ours, "parked", 10000, "served"), limit: 10000, everyRound: true},
		{what: "dead holder: free after", measured: scaled(rs.Summary(ours, "dead", 0, "freed"), 1e-3), limit: 10.3, atMost: true, everyRound: true, unit: " s"},
		{what: "dead holder, release on disconnect", measured: rs.Summary(ours, "disconnect", 0, "freed"), limit: 50, atMost: true, everyRound: true, unit: " ms"},
		{what: "leader killed: next lock, × ZooKeeper's time", measured: ratioOfMedians(rs.Summary(ours, "killed", 0, "next"), rs.Summary("zookeeper", "killed", 0, "next")),
			limit: 0.8, atMost: true, unit: "×"},
		{what: "leader killed: held locks survived", measured: rs.Summary(ours, "killed", 0, "survived"), limit: 1, everyRound: true},
		{what: "leader killed: held twice", measured: rs.Summary(ours, "killed", 0, "twice"), atMost: true, everyRound: true},
		{what: "elections that no accident called for", measured: r.falseElections(ours), atMost: true, everyRound: true},
	}
}

// ratioOfMedians is one median over another: a leader's death is too rare an event to be paired by round.
func ratioOfMedians(a, b measure.Summary) measure.Summary {
	if a.N == 0 || b.N == 0 {
		return measure.Summary{}
	}
	return measure.Summary{Median: a.Median / b.Median, Min: a.Min / b.Max, Max: a.Max / b.Min, N: min(a.N, b.N)}
}

// atAllSizes is a value at all sizes of a workload.
func (r *report) atAllSizes(system, workload, value string) measure.Summary {
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
