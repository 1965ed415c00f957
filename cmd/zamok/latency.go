package main

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
	"time"
)

const (
	// latencySteps is how many buckets there are between a time and its double: what is told of a
	// latency is at most a sixteenth more than the truth.
	latencySteps   = 16
	latencyBuckets = 64 * latencySteps
	barWidth       = 40
)

// latencies counts how long things took.
type latencies struct {
	counts [latencyBuckets]uint64
	n      uint64
	sum    time.Duration
	most   time.Duration
}

func (l *latencies) add(d time.Duration) {
	d = max(d, 1)
	l.counts[latencyBucket(d)]++
	l.n++
	l.sum += d
	l.most = max(l.most, d)
}

// latencyBucket: the octave, then which sixteenth of it.
func latencyBucket(d time.Duration) int {
	octave := bits.Len64(uint64(d)) - 1
	within := uint64(d) - 1<<octave
	return octave*latencySteps + int(within*latencySteps>>octave)
}

// latencyEnd is a time above all of a bucket, and the next one's first.
func latencyEnd(bucket int) time.Duration {
	octave, step := bucket/latencySteps, bucket%latencySteps+1
	return time.Duration(1<<octave + uint64(step)<<octave/latencySteps)
}

func (l *latencies) merge(other *latencies) {
	for i, n := range other.counts {
		l.counts[i] += n
	}
	l.n += other.n
	l.sum += other.sum
	l.most = max(l.most, other.most)
}

// quantile is a time that the given part of all did not exceed.
func (l *latencies) quantile(part float64) time.Duration {
	seen := uint64(0)
	for i, n := range l.counts {
		if seen += n; n > 0 && float64(seen) >= part*float64(l.n) {
			return min(latencyEnd(i), l.most)
		}
	}
	return l.most
}

// latencyDoc is what -o json says of latencies.
type latencyDoc struct {
	Count uint64    `json:"count"`
	Mean  string    `json:"mean"`
	P50   string    `json:"p50"`
	P90   string    `json:"p90"`
	P99   string    `json:"p99"`
	P999  string    `json:"p99.9"`
	Max   string    `json:"max"`
	Steps []stepDoc `json:"histogram"`
}

// stepDoc counts what took less than its limit, and not less than the one before.
type stepDoc struct {
	Below string `json:"below"`
	Count uint64 `json:"count"`
}

func (l *latencies) doc() latencyDoc {
	d := latencyDoc{Count: l.n, Steps: []stepDoc{}}
	if l.n == 0 {
		return d
	}
	d.Mean = brief(l.sum / time.Duration(l.n))
	d.P50, d.P90, d.P99, d.P999 = brief(l.quantile(.5)), brief(l.quantile(.9)), brief(l.quantile(.99)), brief(l.quantile(.999))
	d.Max = brief(l.most)
	bucket, told := 0, uint64(0)
	for decade := time.Microsecond; told < l.n; decade *= 10 {
		for _, limit := range []time.Duration{decade, 2 * decade, 5 * decade} {
			n := uint64(0)
			for ; bucket < latencyBuckets && latencyEnd(bucket) <= limit; bucket++ {
				n += l.counts[bucket]
			}
			if told += n; told > 0 && (n > 0 || told < l.n) {
				d.Steps = append(d.Steps, stepDoc{brief(limit), n})
			}
		}
	}
	return d
}

func (d latencyDoc) write(w io.Writer, title string) {
	fmt.Fprintf(w, "\n%s: %d, mean %s\n  p50 %s   p90 %s   p99 %s   p99.9 %s   max %s\n",
		title, d.Count, d.Mean, d.P50, d.P90, d.P99, d.P999, d.Max)
	for _, o := range d.Steps {
		part := float64(o.Count) / float64(d.Count)
		fmt.Fprintf(w, "  < %-8s %5.1f %%  %s\n", o.Below, 100*part, strings.Repeat("█", int(part*barWidth+.5)))
	}
}

// brief is a duration with three digits or so.
func brief(d time.Duration) string {
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
