package measure

import (
	"cmp"
	"math"
	"slices"
	"time"

	"zamok/cmd/zamok/loadgen"
)

// Summary is a median with the extremes beside it. N is how many values it was made of.
type Summary struct {
	Median, Min, Max float64
	N                int
}

// Summarize summarizes values; the zero Summary if there are none.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return Summary{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], N: n}
}

// Ratios divides values of the same sample.
func Ratios(ours, theirs map[Sample]float64) Summary {
	var ratios []float64
	for sample, a := range ours {
		if b, ok := theirs[sample]; ok && b != 0 {
			ratios = append(ratios, a/b)
		}
	}
	return Summarize(ratios)
}

// AddPercentiles puts the median, p95, p99 and the maximum, in milliseconds, into values.
func AddPercentiles(values map[string]float64, name string, h *loadgen.Histogram) {
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

// Jain is Jain's index of fairness: 1 if all n counts are the same, 1/n if all but one are 0.
func Jain(counts []int) float64 {
	sum, squares := 0.0, 0.0
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(counts)) * squares)
}

// CompleteRounds counts each worker's grants in the longest prefix of whole rounds; nil if there
// was no whole round. So a perfect order has an index of 1, even if the run ends in the middle of a
// round.
func CompleteRounds(grants []loadgen.Grant, clients int) []int {
	n := len(grants) / clients * clients
	if n == 0 {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(grants), byAcquired)
	counts := make([]int, clients)
	for _, g := range sorted[:n] {
		counts[g.Worker]++
	}
	return counts
}

// InversionSlack is how much earlier a request must be to have a right to be first. The order of
// requests that a busy machine sends within it is not known.
const InversionSlack = 20 * time.Millisecond

// Inversions counts grants while a request waited that was earlier by more than InversionSlack.
func Inversions(grants []loadgen.Grant) int {
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

func byAcquired(a, b loadgen.Grant) int { return cmp.Compare(a.Acquired, b.Acquired) }
