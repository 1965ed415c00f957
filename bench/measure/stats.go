package measure

import (
	"cmp"
	"math"
	"slices"
	"time"
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

// Percentile is the smallest of the sorted values that at least the share p (0 … 1) of them does not
// exceed.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(p*float64(len(sorted)))) - 1
	return sorted[max(0, min(i, len(sorted)-1))]
}

// AddPercentiles puts p50, p95, p99 and the maximum of some durations, in milliseconds, into values.
func AddPercentiles(values map[string]float64, name string, durations []time.Duration) {
	if len(durations) == 0 {
		return
	}
	slices.Sort(durations)
	values[name+"_p50"] = Milliseconds(Percentile(durations, 0.50))
	values[name+"_p95"] = Milliseconds(Percentile(durations, 0.95))
	values[name+"_p99"] = Milliseconds(Percentile(durations, 0.99))
	values[name+"_max"] = Milliseconds(durations[len(durations)-1])
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

// Grant is one acquisition of one lock: who, when it was asked for and when it was had.
type Grant struct {
	Client              int
	Requested, Acquired time.Duration
}

// CompleteRounds is how many grants each client got in the longest beginning that is a whole number of
// turns, and nothing if there was not one turn. So perfect order scores a perfect 1: a run that ends
// in the middle of a turn would else look unfair by its length alone.
func CompleteRounds(grants []Grant, clients int) []int {
	n := len(grants) / clients * clients
	if n == 0 {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(grants), byAcquired)
	shares := make([]int, clients)
	for _, g := range sorted[:n] {
		shares[g.Client]++
	}
	return shares
}

// InversionSlack is how much earlier somebody must have asked to have a right to be first. Below it the order
// in which requests left a busy machine is not known.
const InversionSlack = 20 * time.Millisecond

// Inversions counts grants to somebody while another, who had asked more than Slack earlier, waited.
func Inversions(grants []Grant) int {
	sorted := slices.SortedFunc(slices.Values(grants), byAcquired)
	count := 0
	earliest := time.Duration(math.MaxInt64) // that anybody asked who was granted later
	for _, g := range slices.Backward(sorted) {
		if earliest < g.Requested-InversionSlack {
			count++
		}
		earliest = min(earliest, g.Requested)
	}
	return count
}

func byAcquired(a, b Grant) int { return cmp.Compare(a.Acquired, b.Acquired) }
