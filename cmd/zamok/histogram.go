package main

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
	"time"
)

const (
	// bucketsPerOctave is how many buckets there are between a time and its double: what is told of a
	// latency is at most a sixteenth more than the truth.
	bucketsPerOctave = 16
	bucketCount      = 64 * bucketsPerOctave
	barWidth         = 40
)

// histogram counts how long things took.
type histogram struct {
	counts [bucketCount]uint64
	n      uint64
	sum    time.Duration
	max    time.Duration
}

func (l *histogram) add(d time.Duration) {
	d = max(d, 1)
	l.counts[bucketIndex(d)]++
	l.n++
	l.sum += d
	l.max = max(l.max, d)
}

// bucketIndex: the octave, then which sixteenth of it.
func bucketIndex(d time.Duration) int {
	octave := bits.Len64(uint64(d)) - 1
	offset := uint64(d) - 1<<octave
	return octave*bucketsPerOctave + int(offset*bucketsPerOctave>>octave)
}

// bucketUpperBound is a time above all of a bucket, and the next one's first.
func bucketUpperBound(bucket int) time.Duration {
	octave, step := bucket/bucketsPerOctave, bucket%bucketsPerOctave+1
	return time.Duration(1<<octave + uint64(step)<<octave/bucketsPerOctave)
}

func (l *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		l.counts[i] += n
	}
	l.n += other.n
	l.sum += other.sum
	l.max = max(l.max, other.max)
}

// quantile is a time that the given part of all did not exceed.
func (l *histogram) quantile(q float64) time.Duration {
	cumulative := uint64(0)
	for i, n := range l.counts {
		if cumulative += n; n > 0 && float64(cumulative) >= q*float64(l.n) {
			return min(bucketUpperBound(i), l.max)
		}
	}
	return l.max
}

// latencyDoc is what -o json says of latencies.
type latencyDoc struct {
	Count   uint64      `json:"count"`
	Mean    string      `json:"mean"`
	P50     string      `json:"p50"`
	P90     string      `json:"p90"`
	P99     string      `json:"p99"`
	P999    string      `json:"p99.9"`
	Max     string      `json:"max"`
	Buckets []bucketDoc `json:"histogram"`
}

// bucketDoc counts what took less than its limit, and not less than the one before.
type bucketDoc struct {
	Below string `json:"below"`
	Count uint64 `json:"count"`
}

func (l *histogram) doc() latencyDoc {
	d := latencyDoc{Count: l.n, Buckets: []bucketDoc{}}
	if l.n == 0 {
		return d
	}
	d.Mean = shortDuration(l.sum / time.Duration(l.n))
	d.P50, d.P90, d.P99, d.P999 = shortDuration(l.quantile(.5)), shortDuration(l.quantile(.9)), shortDuration(l.quantile(.99)), shortDuration(l.quantile(.999))
	d.Max = shortDuration(l.max)
	bucket, counted := 0, uint64(0)
	for decade := time.Microsecond; counted < l.n; decade *= 10 {
		for _, limit := range []time.Duration{decade, 2 * decade, 5 * decade} {
			n := uint64(0)
			for ; bucket < bucketCount && bucketUpperBound(bucket) <= limit; bucket++ {
				n += l.counts[bucket]
			}
			if counted += n; counted > 0 && (n > 0 || counted < l.n) {
				d.Buckets = append(d.Buckets, bucketDoc{shortDuration(limit), n})
			}
		}
	}
	return d
}

func (d latencyDoc) write(w io.Writer, title string) {
	fmt.Fprintf(w, "\n%s: %d, mean %s\n  p50 %s   p90 %s   p99 %s   p99.9 %s   max %s\n",
		title, d.Count, d.Mean, d.P50, d.P90, d.P99, d.P999, d.Max)
	for _, o := range d.Buckets {
		share := float64(o.Count) / float64(d.Count)
		fmt.Fprintf(w, "  < %-8s %5.1f %%  %s\n", o.Below, 100*share, strings.Repeat("█", int(share*barWidth+.5)))
	}
}

// shortDuration is a duration with three digits or so.
func shortDuration(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d >= 10*time.Microsecond:
		return d.Round(time.Microsecond).String()
	}
	return d.String()
}
