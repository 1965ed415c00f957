package report

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/bench/measure"
)

func TestReport(t *testing.T) {
	systems := []System{{Name: "zamok", Title: "zamok ×3", Durability: "all"},
		{Name: "zookeeper", Title: "ZooKeeper ×3"},
		{Name: "absent", Title: "Absent"}}
	rs := measure.Results{Run: measure.Run{Machine: "box", Rounds: 2, Seconds: 1,
		Versions: map[string]string{"Go": "go1", "etcd": "3"}},
		Records: []measure.Record{
			{Round: 1, System: "zamok", Workload: "timeline",
				Values: map[string]float64{"rate": 80},
				Spans:  []measure.Span{{Thread: 1, From: 3, To: 9}}},
			{Round: 2, System: "zookeeper", Workload: "dead", Failed: "it fell | over\nand more"}}}
	add := func(round int, system, workload string, clients int, values map[string]float64) {
		rs.Records = append(rs.Records,
			measure.Record{Round: round, System: system, Workload: workload, Clients: clients,
				Values: values})
	}
	for round := 1; round <= 2; round++ {
		drift := float64(round) // the machine is twice as fast in the second round
		add(round, "zamok", "own", 64,
			map[string]float64{"rate": 10000 * drift, "cycle_p50": 2, "elections": 0, "cpu": 0.1})
		add(round, "zamok-5", "own", 64, map[string]float64{"rate": 8000 * drift, "cpu": 0.15})
		add(round, "zamok", "open", 90, map[string]float64{"cycle_p99": 8})
		add(round, "zookeeper", "open", 90, map[string]float64{"cycle_p99": 20})
		add(round, "zookeeper", "own", 64, map[string]float64{"rate": 4000 * drift, "cycle_p50": 5})
		add(round, "zamok", "one", 2,
			map[string]float64{"rate": 900 * drift, "inversions": float64(round - 1)})
		add(round, "zookeeper", "one", 2, map[string]float64{"rate": 1000 * drift})
		add(round, "zamok", "wait", 0, map[string]float64{"wait_00": 1, "wait_01": 11, "total": 20})
	}
	folder := t.TempDir()
	text := write(t, folder, systems, rs)
	for _, line := range []string{
		"\nown keys, 64 | **2.5×** (2.5–2.5) ≥ 2.2\n", // drift cancels out of a ratio
		"\none key, 2 | **0.9×** (0.9–0.9) ≥ 1.6 **missed**\n",
		"\nzamok ×3 | 15 000 (10 000–20 000)\n",
		"\nZooKeeper ×3 | 6000 (4000–8000)\n",
		"\narrivals at 90 %: p99 over ZooKeeper's | ≤ 0.5× | 0.4× | met\n",
		"\narrivals at 90 %: p99 over etcd's | ≤ 0.3× | – | not measured\n",
		"\none key, any number: grants out of order | ≤ 0 | 1 (0–1) | **missed**\n", // worst round
		"\nzamok ×3 | 64 | 12 000 (8000–16 000) | **0.8×** (0.8–0.8) | 150 | **1.5×** (1.5–1.5)\n",
		"\n2 | zookeeper | dead | it fell / over\n",
		"Versions: etcd 3,\nGo go1.",
	} {
		require.Contains(t, text, line)
	}
	require.NotContains(t, text, "Absent")
	require.NotContains(t, text, "NaN")
	links := regexp.MustCompile(`\]\((benchmarks/.*)\)`).FindAllStringSubmatch(text, -1)
	require.Len(t, links, 4)
	for _, link := range links {
		plot, err := os.ReadFile(filepath.Join(folder, link[1]))
		require.NoError(t, err)
		require.NoError(t, xml.Unmarshal(plot, new(struct{})), link[1])
		require.Contains(t, string(plot), "zamok ×3", link[1])
	}
}

// write writes a report and returns its document.
func write(t *testing.T, folder string, systems []System, rs measure.Results) string {
	require.NoError(t, Write(folder, "x.jsonl", systems, rs))
	text, err := os.ReadFile(filepath.Join(folder, "benchmarks.md"))
	require.NoError(t, err)
	return string(text)
}

// A column for which nothing was measured is empty.
func TestColumnsWithoutValuesAreLeftOut(t *testing.T) {
	rows := [][]string{{"system", "a", "b", "c"}, {"x", dash, "1", dash}, {"y", dash, dash, dash}}
	require.Equal(t, "system | b\n---|---\nx | 1\n", markdown(rows, 1))
	require.Empty(t, markdown([][]string{{"system", "a"}, {"x", dash}}, 1))
}

// A failed cycle has no latency: a system must not look faster because of its errors.
func TestFailedArrivalsAreReported(t *testing.T) {
	systems := []System{{Name: "zamok", Title: "zamok ×3"}}
	rs := measure.Results{Run: measure.Run{Rounds: 1, Seconds: 1}, Records: []measure.Record{{
		Round: 1, System: "zamok", Workload: "open", Clients: 90,
		Values: map[string]float64{"cycle_p99": 8, "kept": 0.98, "errors": 1234},
	}}}
	require.Contains(t, write(t, t.TempDir(), systems, rs), "1230")
}

// A run that was interrupted at once still has a report.
func TestReportWithoutResults(t *testing.T) {
	require.Contains(t, write(t, t.TempDir(), nil, measure.Results{}), "Nothing failed.")
}

func TestFormatNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1: "1", 0.1234: "0.123", 1.0 / 3: "0.333",
		9.999: "10", 12.34: "12.3",
		999.6: "1000", 12345: "12 300", 1234567: "1 230 000", 0.00012345: "0.000123",
		-1234: "-1230", -12345: "-12 300"} {
		require.Equal(t, want, formatNumber(v), v)
	}
}
