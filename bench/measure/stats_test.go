package measure

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/cmd/zamok/loadgen"
)

func TestSummarize(t *testing.T) {
	require.Equal(t, Summary{Median: 3, Min: 1, Max: 9, N: 3}, Summarize([]float64{9, 1, 3}))
	require.Equal(t, Summary{Median: 2.5, Min: 1, Max: 4, N: 4}, Summarize([]float64{4, 1, 3, 2}))
	require.Equal(t, Summary{}, Summarize(nil))
}

// Values are divided only within a round.
func TestRatiosPairSamples(t *testing.T) {
	at := func(round, nth int) Sample { return Sample{round, nth} }
	ours := map[Sample]float64{at(1, 0): 10, at(2, 0): 100, at(2, 1): 1000}
	theirs := map[Sample]float64{at(1, 0): 5, at(2, 0): 50, at(2, 1): 500, at(4, 0): 1}
	require.Equal(t, Summary{Median: 2, Min: 2, Max: 2, N: 3}, Ratios(ours, theirs))
	require.Zero(t, Ratios(ours, map[Sample]float64{at(1, 0): 0, at(9, 0): 1}).N)
}

func TestAddPercentiles(t *testing.T) {
	var h loadgen.Histogram
	for _, ms := range []time.Duration{3, 1, 2} {
		h.Add(ms * time.Millisecond)
	}
	values := map[string]float64{}
	AddPercentiles(values, "wait", &h)
	require.InEpsilon(t, 2, values["wait_p50"], 0.01)
	require.EqualValues(t, 3, values["wait_max"])
	require.Len(t, values, 4)
}

func TestJain(t *testing.T) {
	require.InDelta(t, 1, Jain([]int{7, 7, 7}), 1e-9)
	require.InDelta(t, 0.25, Jain([]int{8, 0, 0, 0}), 1e-9)
	require.Zero(t, Jain(nil))
}

func grants(of ...[3]int) []loadgen.Grant {
	var all []loadgen.Grant
	for _, g := range of {
		ms := time.Millisecond
		all = append(all, loadgen.Grant{Worker: g[0], Requested: time.Duration(g[1]) * ms,
			Acquired: time.Duration(g[2]) * ms})
	}
	return all
}

func TestCompleteRoundsIgnoresPartialRound(t *testing.T) {
	g := grants([3]int{0, 0, 1}, [3]int{1, 0, 2}, [3]int{0, 1, 3}, [3]int{1, 2, 4}, [3]int{0, 3, 5})
	require.Equal(t, []int{2, 2}, CompleteRounds(g, 2))
	require.Nil(t, CompleteRounds(g, 6))
	require.Equal(t, []int{4, 0},
		CompleteRounds(grants([3]int{0, 0, 1}, [3]int{0, 1, 2}, [3]int{0, 2, 3}, [3]int{0, 3, 4}),
			2))
}

func TestInversions(t *testing.T) {
	fifo := grants([3]int{0, 0, 10}, [3]int{1, 30, 60}, [3]int{2, 70, 90})
	require.Zero(t, Inversions(fifo))
	// 1 requests the lock at 0 and waits until 90. 0 requests it again at 40 and is granted it at
	// 50.
	barged := grants([3]int{0, 0, 10}, [3]int{1, 0, 90}, [3]int{0, 40, 50})
	require.Equal(t, 1, Inversions(barged))
	// Requests within 10 ms may have been sent in any order.
	close := grants([3]int{0, 10, 20}, [3]int{1, 0, 30})
	require.Zero(t, Inversions(close))
}

func TestResultsRoundTrip(t *testing.T) {
	var file bytes.Buffer
	write := func(l Line) { require.NoError(t, json.NewEncoder(&file).Encode(l)) }
	add := func(r Record) { write(Line{Record: &r}) }
	write(Line{Run: &Run{Machine: "box", Rounds: 2}})
	for round, rate := range []float64{10, 20} {
		add(Record{Round: round + 1, System: "a", Workload: "w", Clients: 1,
			Values: map[string]float64{"rate": rate}})
		add(Record{Round: round + 1, System: "b", Workload: "w", Clients: 1,
			Values: map[string]float64{"rate": rate / 2}})
	}
	add(Record{Round: 2, System: "a", Workload: "w", Clients: 1,
		Values: map[string]float64{"rate": 1}, Failed: "fell over"})
	rs, err := Read(&file)
	require.NoError(t, err)
	require.Equal(t, "box", rs.Run.Machine)
	require.Equal(t, Summary{Median: 15, Min: 10, Max: 20, N: 2}, rs.Summary("a", "w", 1, "rate"))
	require.Equal(t, Summary{Median: 2, Min: 2, Max: 2, N: 2}, rs.Ratio("a", "b", "w", 1, "rate"))
	require.Equal(t, []int{1}, rs.Clients("w"))

	_, err = Read(strings.NewReader(`{"record":{}}`))
	require.ErrorContains(t, err, "no line describes the run")
}
