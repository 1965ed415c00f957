//go:build unix

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/cmd/zamok/loadgen"
)

func TestBench(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	for _, shape := range []string{"uncontended", "contended", "parked"} {
		doc := readJSON[benchDoc](t, c, "bench", shape, "--clients", "3", "--duration", "1s",
			"--waiters", "50")
		require.Equal(t, shape, doc.Workload)
		require.Positive(t, doc.Cycles)
		require.Positive(t, doc.PerSecond)
		switch shape {
		case "parked":
			require.Equal(t, 50, doc.Waiters)
			require.EqualValues(t, 50, doc.Handoff.Count)
		case "contended":
			require.Equal(t, doc.Cycles, doc.Lock.Count)
			require.Positive(t, doc.Handoff.Count)
		default:
			require.Equal(t, doc.Cycles, doc.Lock.Count)
			require.Nil(t, doc.Handoff)
		}
	}
	text := runZamok(t, c, "bench", "--clients", "2", "--duration", "1s")
	require.Equal(t, 0, text.code, text.stderr)
	require.Contains(t, text.stdout, "p99.9")
	require.Empty(t, text.stderr, "progress is for terminals")
	require.Equal(t, `No lock whose name begins with "bench/" is in use.`+"\n",
		runZamok(t, c, "ls", "bench/").stdout)
}

// The histogram has everything, also what is longer than its last step.
func TestLatencyDoc(t *testing.T) {
	var h loadgen.Histogram
	for _, d := range []time.Duration{90, 3 * time.Microsecond, time.Millisecond, time.Hour} {
		h.Add(d)
	}
	doc := newLatencyDoc(&h)
	require.EqualValues(t, 4, doc.Count)
	require.Equal(t, "1h0m0s", doc.Max)
	require.Equal(t, bucketDoc{"1µs", 1}, doc.Buckets[0])
	sum := uint64(0)
	for _, bucket := range doc.Buckets {
		sum += bucket.Count
	}
	require.EqualValues(t, 4, sum)
	require.Nil(t, newLatencyDoc(&loadgen.Histogram{}))
}
