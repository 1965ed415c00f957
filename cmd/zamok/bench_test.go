//go:build unix

package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBench(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	for _, shape := range []string{"uncontended", "contended", "parked"} {
		doc := readJSON[benchDoc](t, c, "bench", shape, "--clients", "3", "--duration", "1s", "--waiters", "50")
		require.Equal(t, shape, doc.Workload)
		require.Positive(t, doc.Cycles)
		require.Positive(t, doc.PerSecond)
		switch shape {
		case "parked":
			require.Equal(t, 50, doc.Waiters)
			require.EqualValues(t, 50, doc.Handover.Count)
		case "contended":
			require.Equal(t, doc.Cycles, doc.Lock.Count)
			require.Equal(t, doc.Cycles-1, doc.Handover.Count)
		default:
			require.Equal(t, doc.Cycles, doc.Unlock.Count)
			require.Nil(t, doc.Handover)
		}
	}
	text := runZamok(t, c, "bench", "--clients", "2", "--duration", "1s")
	require.Equal(t, 0, text.code, text.stderr)
	require.Contains(t, text.stdout, "p99.9")
	require.Empty(t, text.stderr, "progress is for terminals")
	require.Equal(t, `No lock whose name begins with "bench/" is in use.`+"\n", runZamok(t, c, "ls", "bench/").stdout)
}

// A quantile is never below the truth, and at most a sixteenth above it; the histogram has everything.
func TestLatencyHistogram(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var one, two histogram
	var all []time.Duration
	for i := range 10_000 {
		d := time.Duration(1 + random.Uint64()>>(24+random.UintN(40)))
		all = append(all, d)
		[]*histogram{&one, &two}[i%2].add(d)
	}
	one.merge(&two)
	slices.Sort(all)
	for _, part := range []float64{0.01, .5, .9, .99, .999, 1} {
		truth := all[max(int(part*float64(len(all))+.5), 1)-1]
		told := one.quantile(part)
		require.GreaterOrEqual(t, told, truth, "%v", part)
		require.LessOrEqual(t, told, truth+truth/bucketsPerOctave+1, "%v", part)
	}
	doc := one.doc()
	sum := uint64(0)
	for _, step := range doc.Buckets {
		sum += step.Count
	}
	require.EqualValues(t, len(all), sum)
	require.Equal(t, shortDuration(all[len(all)-1]), doc.Max)
}
