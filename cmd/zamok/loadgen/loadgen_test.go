package loadgen

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A quantile is never below the truth, and less than one percent above it.
func TestHistogramQuantile(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var h Histogram
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(1 + random.Uint64()>>(1+random.UintN(63)))
		all = append(all, d)
		h.Add(d)
	}
	slices.Sort(all)
	require.EqualValues(t, len(all), h.Count())
	require.Equal(t, all[len(all)-1], h.Max())
	for _, q := range []float64{0.01, .5, .9, .99, .999, 1} {
		truth := all[max(int(q*float64(len(all))+.5), 1)-1]
		require.GreaterOrEqual(t, h.Quantile(q), truth, "%v", q)
		require.LessOrEqual(t, float64(h.Quantile(q)), float64(truth)*(1+1./bucketsPerOctave)+1,
			"%v", q)
	}
	require.Zero(t, (&Histogram{}).Quantile(.5))
}

// locks are locks of one process with a queue each. A cycle takes a millisecond to lock and one to
// unlock.
func locks(l *Loop) {
	var mu sync.Mutex
	all := map[string]chan struct{}{}
	l.Lock = func(ctx context.Context, _ int, key string) (func(context.Context) error, error) {
		mu.Lock()
		if all[key] == nil {
			all[key] = make(chan struct{}, 1)
		}
		lock := all[key]
		mu.Unlock()
		select {
		case lock <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		Sleep(ctx, time.Millisecond)
		return func(ctx context.Context) error {
			Sleep(ctx, time.Millisecond)
			<-lock
			return nil
		}, nil
	}
}

func TestLoopOwnKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Loop{Workers: 4, Key: func(i int) string { return string(rune('a' + i)) },
			Warmup: time.Second, Window: 10 * time.Second}
		locks(&l)
		r := l.Run(t.Context())
		require.InDelta(t, 2000, r.Rate(), 2)
		require.InDelta(t, 20_000, r.Cycle.Count(), 4)
		require.InDelta(t, float64(2*time.Millisecond), float64(r.Cycle.Quantile(.5)), 3e4)
		require.Greater(t, r.Cycles, r.Granted, "the warm-up has cycles, too")
		require.Empty(t, r.Grants)
		require.Zero(t, r.Handoff.Count())
		require.Zero(t, r.Errors)
	})
}

func TestLoopOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Loop{Workers: 4, Key: func(int) string { return "one" }, Window: 10 * time.Second}
		locks(&l)
		r := l.Run(t.Context())
		require.EqualValues(t, len(r.Grants), r.Granted)
		require.Zero(t, r.Overlaps)
		require.Positive(t, r.Handoff.Count())
		require.LessOrEqual(t, r.Handoff.Max(), 3*time.Millisecond)
	})
}

func TestLoopCountsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("full")
		l := Loop{Workers: 2, Key: func(int) string { return "one" }, Window: time.Second}
		l.Lock = func(context.Context, int, string) (func(context.Context) error, error) {
			return nil, full
		}
		r := l.Run(t.Context())
		require.ErrorIs(t, r.LastErr, full)
		require.EqualValues(t, 200, r.Errors, "one each 10 ms")
		require.Zero(t, r.Granted)
	})
}

// A worker that hangs past the window is ended by its context, and then by Abandon.
func TestLoopEndsHangingWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		l := Loop{Workers: 2, Key: func(int) string { return "one" }, Window: time.Second,
			Abandon: func() { close(hang) }}
		l.Lock = func(ctx context.Context, i int, _ string) (func(context.Context) error, error) {
			if i == 0 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			<-hang
			return nil, errors.New("abandoned")
		}
		began := time.Now()
		r := l.Run(t.Context())
		require.Equal(t, time.Second+drainTimeout+abandonTimeout, time.Since(began))
		require.Zero(t, r.Granted)
	})
}
