package loadgen

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// buckets between a time and its double: a quantile is less than 1 % too high
	bucketsPerOctave = 128
	bucketCount      = 63 * bucketsPerOctave
)

// Histogram counts times. Any number of goroutines may add to it. Call the other methods after they
// have ended.
type Histogram struct {
	buckets [bucketCount]atomic.Uint64
	sum     atomic.Int64
	longest atomic.Int64
}

// Add counts one time.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 1)
	h.buckets[bucketIndex(d)].Add(1)
	h.sum.Add(int64(d))
	for old := h.longest.Load(); int64(d) > old &&
		!h.longest.CompareAndSwap(old, int64(d)); old = h.longest.Load() {
	}
}

// bucketIndex is the octave, then the part of it.
func bucketIndex(d time.Duration) int {
	octave := bits.Len64(uint64(d)) - 1
	offset := uint64(d) - 1<<octave
	if octave >= 7 {
		return octave*bucketsPerOctave + int(offset>>(octave-7))
	}
	return octave*bucketsPerOctave + int(offset<<(7-octave))
}

// bucketEnd is a time above all of a bucket, and the first of the next.
func bucketEnd(bucket int) time.Duration {
	octave, part := bucket/bucketsPerOctave, bucket%bucketsPerOctave+1
	end := float64(uint64(1)<<octave) * (1 + float64(part)/bucketsPerOctave)
	if end >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(end)
}

// Count is how many times were added.
func (h *Histogram) Count() (n uint64) { return h.Below(math.MaxInt64) }

// Below is how many times were shorter than a limit, up to the width of a bucket.
func (h *Histogram) Below(limit time.Duration) (n uint64) {
	for i := range h.buckets {
		if bucketEnd(i) > limit {
			break
		}
		n += h.buckets[i].Load()
	}
	return n
}

// Mean is the mean; 0 of none.
func (h *Histogram) Mean() time.Duration {
	return time.Duration(h.sum.Load() / max(int64(h.Count()), 1))
}

// Max is the longest; 0 of none.
func (h *Histogram) Max() time.Duration { return time.Duration(h.longest.Load()) }

// Quantile is a time that the part q (0 … 1) of all does not exceed; 0 of none.
func (h *Histogram) Quantile(q float64) time.Duration {
	wanted, counted := q*float64(h.Count()), uint64(0)
	for i := range h.buckets {
		n := h.buckets[i].Load()
		if counted += n; n > 0 && float64(counted) >= wanted {
			return min(bucketEnd(i), h.Max())
		}
	}
	return h.Max()
}
