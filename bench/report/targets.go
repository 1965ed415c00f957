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

// targetTable shows each aim that was measured.
func (r *report) targetTable(ours System) string {
	rows := [][]string{{"aim", "needed", "measured", ""}}
	for _, a := range r.targets(ours.Name) {
		if a.measured.N == 0 {
			continue
		}
		sign, value, worst, verdict := "≥", a.measured.Median, a.measured.Min, "met"
		if a.atMost {
			sign, worst = "≤", a.measured.Max
		}
		if a.everyRound {
			value = worst
		}
		if a.atMost && value > a.limit || !a.atMost && value < a.limit {
			verdict = "**missed**"
		}
		rows = append(rows, []string{a.what, fmt.Sprintf("%s %s%s", sign, formatNumber(a.limit), a.unit),
			fmt.Sprintf("%s%s (%s – %s)", formatNumber(value), a.unit, formatNumber(a.measured.Min), formatNumber(a.measured.Max)), verdict})
	}
	return markdown(rows)
}

// targets are the aims for a log that is flushed twice a commit, or for one that is flushed once.
func (r *report) targets(ours string) []target {
	rs, once := r.rs, strings.HasSuffix(ours, "-wal")
	limit := func(twoFsyncs, oneFsync float64) float64 {
		if once {
			return oneFsync
		}
		return twoFsyncs
	}
	var aims []target
	for _, a := range []struct {
		workload string
		clients  int
		peer     string
		limit    float64 // 0: none was set
	}{
		{"own", 1, "zookeeper", limit(0.8, 1.4)}, {"own", 1, "etcd", limit(0, 1.4)},
		{"own", 64, "zookeeper", limit(1.7, 2.3)}, {"own", 64, "etcd", limit(2.6, 3.5)},
		{"own", 256, "zookeeper", limit(2.2, 2.7)}, {"own", 256, "etcd", limit(4, 5)}, {"own", 256, "echo", limit(0, 0.5)},
		{"shared", 256, "redis-aof", limit(0, 1.5)},
		{"one", 2, "zookeeper", limit(1.1, 1.8)}, {"one", 256, "zookeeper", limit(1.4, 2.2)}, {"one", 256, "etcd", limit(2.5, 4)},
	} {
		if a.limit > 0 {
			aims = append(aims, target{what: fmt.Sprintf("%s: × %s", measure.WorkloadName(a.workload, a.clients), a.peer),
				measured: rs.Ratio(ours, a.peer, a.workload, a.clients, "rate"), limit: a.limit, unit: "×"})
		}
	}
	atAnySize := func(value string) measure.Summary {
		return r.overWorkloads(ours, value, func(workload string) bool { return workload == "one" })
	}
	return append(aims,
		target{what: "shared 256: cycles/s", measured: rs.Summary(ours, "shared", 256, "rate"), limit: limit(45000, 75000)},
		target{what: "one key: grants out of order, at any size", measured: atAnySize("inversions"), atMost: true, everyRound: true},
		target{what: "one key: Jain's index, at any size", measured: atAnySize("jain"), limit: 0.999, everyRound: true},
		target{what: "one key: holders beside another", measured: atAnySize("overlaps"), atMost: true, everyRound: true},
		target{what: "hand-off (one 16) over a commit (own 1), medians", measured: measure.Ratios(
			rs.Values(ours, "one", 16, "handoff_p50"), rs.Values(ours, "own", 1, "lock_p50")), limit: 1.3, atMost: true, unit: "×"},
		target{what: "own 256: server processor time over ZooKeeper's", measured: rs.Ratio(ours, "zookeeper", "own", 256, "cpu"), limit: 1. / 3, atMost: true, unit: "×"},
		target{what: "parked 10 000: of a core", measured: scaled(rs.Summary(ours, "parked", 10000, "core"), 100), limit: 1, atMost: true, unit: " %"},
		target{what: "parked 10 000: failed", measured: rs.Summary(ours, "parked", 10000, "lost"), atMost: true, everyRound: true},
		target{what: "parked 10 000: served", measured: rs.Summary(ours, "parked", 10000, "served"), limit: 10000, everyRound: true},
		target{what: "dead holder: free after", measured: scaled(rs.Summary(ours, "dead", 0, "freed"), 1e-3), limit: 10.3, atMost: true, everyRound: true, unit: " s"},
		target{what: "dead holder, release on disconnect", measured: rs.Summary(ours, "disconnect", 0, "freed"), limit: 50, atMost: true, everyRound: true, unit: " ms"},
		target{what: "leader killed: next lock, × ZooKeeper's time", measured: ratioOfMedians(rs.Summary(ours, "killed", 0, "next"), rs.Summary("zookeeper", "killed", 0, "next")),
			limit: 0.8, atMost: true, unit: "×"},
		target{what: "leader killed: held locks survived", measured: rs.Summary(ours, "killed", 0, "survived"), limit: 1, everyRound: true},
		target{what: "leader killed: held twice", measured: rs.Summary(ours, "killed", 0, "twice"), atMost: true, everyRound: true},
		target{what: "elections that no accident called for", atMost: true, everyRound: true,
			measured: r.overWorkloads(ours, "elections", func(workload string) bool { return workload != "killed" })})
}

// ratioOfMedians is one median over another: a leader's death is too rare an event to be paired by round.
func ratioOfMedians(a, b measure.Summary) measure.Summary {
	if a.N == 0 || b.N == 0 {
		return measure.Summary{}
	}
	return measure.Summary{Median: a.Median / b.Median, Min: a.Min / b.Max, Max: a.Max / b.Min, N: min(a.N, b.N)}
}

// overWorkloads is a value in all workloads that count, at all of their sizes.
func (r *report) overWorkloads(system, value string, counts func(workload string) bool) measure.Summary {
	var values []float64
	for _, rec := range r.rs.Records {
		if v, ok := rec.Values[value]; ok && rec.System == system && rec.Failed == "" && counts(rec.Workload) {
			values = append(values, v)
		}
	}
	return measure.Summarize(values)
}
