package measure

import (
	"cmp"
	"math"
	"slices"
	"time"

	"zamok/cmd/zamok/workload"
)

// Summary is a median with the extremes beside it. N is how many values it was made of.
type Summary struct {
	Median, Min, Max float64
	N                int
}

// Summarize makes one of some values; of none it is the zero Summary.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return Summary{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], N: n}
}

// Ratios divides what was measured in the same place.
func Ratios(ours, theirs map[Sample]float64) Summary {
	var ratios []float64
	for place, a := range ours {
		if b, ok := theirs[place]; ok && b != 0 {
			ratios = append(ratios, a/b)
		}
	}
	return Summarize(ratios)
}

// AddPercentiles puts the median, p95, p99 and the maximum, in milliseconds, into values.
func AddPercentiles(values map[string]float64, name string, h *workload.Histogram) {
	if h.Count() == 0 {
		return
	}
	values[name+"_p50"] = Milliseconds(h.Quantile(0.50))
	values[name+"_p95"] = Milliseconds(h.Quantile(0.95))
	values[name+"_p99"] = Milliseconds(h.Quantile(0.99))
	values[name+"_max"] = Milliseconds(h.Max())
}

// Milliseconds is a duration as a number.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Jain is Jain's index of fairness: 1 when all got the same, 1/n when one got all.
func Jain(shares []int) float64 {
	sum, squares := 0.0, 0.0
	for _, s := range shares {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// CompleteRounds counts each worker's grants in the longest prefix that is a whole number of turns; nil if there
// was not one turn. So a perfect order scores a perfect 1, also if the run ends in the middle of a turn.
func CompleteRounds(grants []workload.Grant, clients int) []int {
	n := len(grants) / clients * clients
	if n == 0 {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(grants), byAcquired)
	shares := make([]int, clients)
	for _, g := range sorted[:n] {
		shares[g.Worker]++
	}
	return shares
}

// InversionSlack is how much earlier a request must be to have a right to be first. Below it the order in which
// requests left a busy machine is not known.
const InversionSlack = 20 * time.Millisecond

// Inversions counts grants while a request waited that was earlier by more than InversionSlack.
func Inversions(grants []workload.Grant) int {
	sorted := slices.SortedFunc(slices.Values(grants), byAcquired)
	count := 0
	earliest := time.Duration(math.MaxInt64) // request of those granted later
	for _, g := range slices.Backward(sorted) {
		if earliest < g.Requested-InversionSlack {
			count++
		}
		earliest = min(earliest, g.Requested)
	}
	return count
}

func byAcquired(a, b workload.Grant) int { return cmp.Compare(a.Acquired, b.Acquired) }
