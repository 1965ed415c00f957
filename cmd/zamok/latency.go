package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"zamok/cmd/zamok/loadgen"
)

const barWidth = 40

// latencyDoc is a distribution of times.
type latencyDoc struct {
	Count   uint64      `json:"count,string"`
	Mean    string      `json:"mean"`
	P50     string      `json:"p50"`
	P90     string      `json:"p90"`
	P99     string      `json:"p99"`
	P999    string      `json:"p99.9"`
	Max     string      `json:"max"`
	Buckets []bucketDoc `json:"histogram"`
}

// bucketDoc counts the times below its limit that are not below the limit of the bucket before.
type bucketDoc struct {
	Below string `json:"below"`
	Count uint64 `json:"count,string"`
}

// newLatencyDoc is nil if nothing was measured.
func newLatencyDoc(h *loadgen.Histogram) *latencyDoc {
	count := h.Count()
	if count == 0 {
		return nil
	}
	quantile := func(q float64) string { return shortDuration(h.Quantile(q)) }
	d := &latencyDoc{Count: count, Mean: shortDuration(h.Mean()), Max: shortDuration(h.Max()),
		P50: quantile(.5), P90: quantile(.9), P99: quantile(.99), P999: quantile(.999)}
	counted := uint64(0)
	for decade := time.Microsecond; counted < count; decade *= 10 {
		for _, limit := range []time.Duration{decade, 2 * decade, 5 * decade} {
			n := h.Below(limit) - counted
			if counted += n; counted > 0 && (n > 0 || counted < count) {
				d.Buckets = append(d.Buckets, bucketDoc{shortDuration(limit), n})
			}
		}
	}
	return d
}

func (d *latencyDoc) write(w io.Writer, title string) {
	if d == nil {
		return
	}
	fmt.Fprintf(w, "\n%s: %d, mean %s\n  p50 %s   p90 %s   p99 %s   p99.9 %s   max %s\n",
		title, d.Count, d.Mean, d.P50, d.P90, d.P99, d.P999, d.Max)
	for _, o := range d.Buckets {
		fraction := float64(o.Count) / float64(d.Count)
		fmt.Fprintf(w, "  < %-8s %5.1f %%  %s\n", o.Below, 100*fraction,
			strings.Repeat("█", int(fraction*barWidth+.5)))
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
