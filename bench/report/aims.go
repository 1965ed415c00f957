package report

import (
	"fmt"

	"zamok/bench/measure"
)

// rateAim is the least ratio of zamok's rate to another system's. The aims replace those of the run
// of 22 November 2026; seven are lower.
type rateAim struct {
	workload string
	clients  int
	other    string
	atLeast  float64
}

var rateAims = []rateAim{
	{"own", 1, "etcd", 1.6}, {"own", 1, "zookeeper", 1.6}, {"own", 1, "redis-aof", 0.35},
	{"own", 16, "etcd", 2.8}, {"own", 16, "zookeeper", 2.2},
	{"own", 64, "etcd", 2.8}, {"own", 64, "zookeeper", 2.2},
	{"own", 256, "etcd", 4}, {"own", 256, "zookeeper", 2.2},
	{"own", 1024, "etcd", 4}, {"own", 1024, "zookeeper", 2.2},
	{"shared", 256, "redis-aof", 1.8},
	{"one", 2, "etcd", 4}, {"one", 2, "zookeeper", 1.6},
	{"one", 16, "etcd", 4}, {"one", 16, "zookeeper", 1.6},
	{"one", 64, "etcd", 4}, {"one", 64, "zookeeper", 1.6},
	{"one", 256, "etcd", 4}, {"one", 256, "zookeeper", 1.6},
	{"one", 1024, "etcd", 4}, {"one", 1024, "zookeeper", 1.6},
}

// rateRatio is the ratio of zamok's rate to another's at a point, with the aim if there is one.
func (r *report) rateRatio(p point, other string) string {
	ratio := r.rs.Ratio(ours, other, p.Workload, p.Clients, "rate")
	text := formatRatio(ratio)
	for _, a := range rateAims {
		if a.workload != p.Workload || a.clients != p.Clients || a.other != other || ratio.N == 0 {
			continue
		}
		text += " ≥ " + formatNumber(a.atLeast)
		if ratio.Median < a.atLeast {
			text += " " + missed
		}
	}
	return text
}

const missed = "**missed**"

// aim is a limit that was set before the run.
type aim struct {
	what       string
	measured   measure.Summary
	limit      float64
	atMost     bool // limit is the greatest good value, not the least
	everyRound bool // the worst of the rounds must meet it, not the median
	unit       string
}

// aimTable shows each aim that is not of a rate, measured or not.
func (r *report) aimTable() string {
	rows := [][]string{{"aim", "needed", "measured", "verdict"}}
	for _, a := range r.aims() {
		sign, value, worst, verdict := "≥", a.measured.Median, a.measured.Min, "met"
		if a.atMost {
			sign, worst = "≤", a.measured.Max
		}
		if a.everyRound {
			value = worst
		}
		if a.atMost && value > a.limit || !a.atMost && value < a.limit {
			verdict = missed
		}
		measured := formatNumber(value) + a.unit
		if formatNumber(a.measured.Min) != formatNumber(a.measured.Max) {
			measured += formatRange(a.measured)
		}
		if a.measured.N == 0 {
			measured, verdict = dash, "not measured"
		}
		needed := fmt.Sprintf("%s %s%s", sign, formatNumber(a.limit), a.unit)
		rows = append(rows, []string{a.what, needed, measured, verdict})
	}
	return markdown(rows, 1)
}

// aims are all aims that are not of a rate, in the order in which they are printed.
func (r *report) aims() []aim {
	rs := r.rs
	ratio := func(what, workload string, clients int, value, other string, limit float64) aim {
		measured := rs.Ratio(ours, other, workload, clients, value)
		return aim{what: what, measured: measured, limit: limit, atMost: true, unit: "×"}
	}
	atAnySize := func(value string) measure.Summary {
		return r.overWorkloads(ours, value, func(workload string) bool { return workload == "one" })
	}
	waiters := func(value string) measure.Summary {
		return rs.Summary(ours, "parked", 10000, value)
	}
	killed := func(value string) measure.Summary { return rs.Summary(ours, "killed", 0, value) }
	commit, handoff := rs.Values(ours, "own", 1, "lock_p50"),
		rs.Values(ours, "one", 16, "handoff_p50")
	next := ratioOfMedians(killed("next"), rs.Summary("zookeeper", "killed", 0, "next"))
	elections := r.overWorkloads(ours, "elections",
		func(workload string) bool { return workload != "killed" })
	return []aim{
		ratio("arrivals at 90 %: p99 over ZooKeeper's", "open", 90, "cycle_p99", "zookeeper", 0.5),
		ratio("arrivals at 90 %: p99 over etcd's", "open", 90, "cycle_p99", "etcd", 0.3),
		{what: "hand-off (one key, 16) over a commit (own keys, 1), medians", limit: 1.15,
			atMost: true,
			unit:   "×", measured: measure.Ratios(handoff, commit)},
		ratio("own keys, 256: processor time of the servers over ZooKeeper's", "own", 256, "cpu",
			"zookeeper", 0.25),
		{what: "10 000 waiters: of a core", limit: 1.5, atMost: true, unit: " %",
			measured: scaled(waiters("core"), 100)},
		{what: "10 000 waiters: failed", atMost: true, everyRound: true, measured: waiters("lost")},
		{what: "10 000 waiters: served", limit: 10000, everyRound: true,
			measured: waiters("served")},
		{what: "one key, any number: grants out of order", atMost: true, everyRound: true,
			measured: atAnySize("inversions")},
		{what: "one key, any number: Jain's index", limit: 0.999, everyRound: true,
			measured: atAnySize("jain")},
		{what: "one key, any number: two holders", atMost: true, everyRound: true,
			measured: atAnySize("overlaps")},
		{what: "holder killed: free after", limit: 10.3, atMost: true, everyRound: true, unit: " s",
			measured: scaled(rs.Summary(ours, "dead", 0, "freed"), 1e-3)},
		{what: "holder killed, release on disconnect: free after", limit: 50, atMost: true,
			everyRound: true, unit: " ms", measured: rs.Summary(ours, "disconnect", 0, "freed")},
		{what: "leader killed: next lock over ZooKeeper's", limit: 0.8, atMost: true, unit: "×",
			measured: next},
		{what: "leader killed: held lock survived", limit: 1, everyRound: true,
			measured: killed("survived")},
		{what: "leader killed: two holders", atMost: true, everyRound: true,
			measured: killed("twice")},
		{what: "elections without an accident", atMost: true, everyRound: true,
			measured: elections},
	}
}

// ratioOfMedians is one median over another: kills of a leader are too few to be paired by round.
func ratioOfMedians(a, b measure.Summary) measure.Summary {
	if a.N == 0 || b.N == 0 {
		return measure.Summary{}
	}
	return measure.Summary{Median: a.Median / b.Median, Min: a.Min / b.Max, Max: a.Max / b.Min,
		N: min(a.N, b.N)}
}

// overWorkloads summarizes a value over some workloads, with any number of clients.
func (r *report) overWorkloads(system, value string,
	includes func(workload string) bool) measure.Summary {
	var values []float64
	for _, rec := range r.rs.Records {
		if v, ok := rec.Values[value]; ok && rec.System == system && rec.Failed == "" &&
			includes(rec.Workload) {
			values = append(values, v)
		}
	}
	return measure.Summarize(values)
}
