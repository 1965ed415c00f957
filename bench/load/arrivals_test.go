package load

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/bench/driver"
	"zamok/bench/server"
)

// every returns moments a millisecond apart.
func every(n int) (due []time.Duration) {
	for i := range n {
		due = append(due, time.Duration(i)*time.Millisecond)
	}
	return due
}

// A stall of 100 ms delays the hundred cycles that are due meanwhile, and those that wait until the
// queue is empty. A closed loop with one client would show one slow cycle of a thousand.
func TestStallIsSeenByAllArrivalsBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const service, stall = 500 * time.Microsecond, 100 * time.Millisecond
		n := 0
		a := &arrivals{due: every(1000), window: [2]time.Duration{0, time.Second}, clients: 1,
			cycle: func(context.Context, int) error {
				if n++; n == 301 {
					time.Sleep(stall)
				}
				time.Sleep(service)
				return nil
			}}
		r := a.run(t.Context())
		require.EqualValues(t, 1000, r.Due)
		require.EqualValues(t, 1000, r.Ended)
		require.Zero(t, r.Failed)
		require.Equal(t, stall+service, r.Latency.Max())
		// The queue shrinks by half a millisecond a cycle: the k-th behind the stall is late by 100
		// ms - k/2 ms.
		require.InDelta(t, 1000-200, float64(r.Latency.Below(service+service/50)), 2)
		require.InDelta(t, 100, float64(r.Latency.Count()-r.Latency.Below(50*time.Millisecond)), 3)
		require.Equal(t, stall-service, r.Late.Max())
	})
}

// With a second client a stalled cycle delays no other one.
func TestFreeClientsServeArrivalsBesideStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stalled := sync.OnceFunc(func() { time.Sleep(100 * time.Millisecond) })
		a := &arrivals{due: every(1000), window: [2]time.Duration{0, time.Second}, clients: 2,
			cycle: func(_ context.Context, client int) error {
				if client == 0 {
					stalled()
				}
				return nil
			}}
		r := a.run(t.Context())
		require.EqualValues(t, 999, r.Latency.Below(time.Millisecond))
		require.Equal(t, 100*time.Millisecond, r.Latency.Max())
	})
}

// A system with half of the capacity ends half of the cycles inside the window, and the last cycle
// waits for all before it.
func TestOverloadIsStated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &arrivals{due: every(1000),
			window: [2]time.Duration{500 * time.Millisecond, time.Second}, clients: 4,
			cycle: func(context.Context, int) error {
				time.Sleep(8 * time.Millisecond)
				return nil
			}}
		r := a.run(t.Context())
		require.EqualValues(t, 500, r.Due)
		require.InDelta(t, 250, float64(r.Ended), 4)
		require.EqualValues(t, 500, r.Latency.Count(), "those that end after the window count, too")
		require.InDelta(t, float64(time.Second), float64(r.Latency.Max()),
			float64(10*time.Millisecond))
		require.EqualValues(t, 1000, r.Cycles)
	})
}

// A cycle that failed, or that hangs and is abandoned, is counted as failed, as are those queued
// behind it.
func TestFailedArrivalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		hang := make(chan struct{})
		a := &arrivals{due: every(10), window: [2]time.Duration{0, time.Second}, clients: 1,
			abandon: func() { close(hang) },
			cycle: func(context.Context, int) error {
				if n++; n == 3 {
					return errors.New("failed")
				}
				if n == 8 {
					<-hang
					return errors.New("closed")
				}
				return nil
			}}
		r := a.run(t.Context())
		require.EqualValues(t, 4, r.Failed)
		require.EqualValues(t, 6, r.Ended)
	})
}

func TestPoissonHasItsRateAndIsTheSameForAll(t *testing.T) {
	due := poisson(1000, 10*time.Second)
	require.InDelta(t, 10_000, len(due), 300)
	require.IsIncreasing(t, due)
	half := poisson(500, 20*time.Second)
	for i := range due[:1000] {
		require.InDelta(t, float64(2*due[i]), float64(half[i]), float64(time.Microsecond))
	}
}

// Open offers a part of the rate of a closed loop in the same pass.
func TestOpenOffersPartOfCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func(context.Context, driver.Session) (driver.Client, error) {
			return driver.Client{
				Lock: func(context.Context, string) (driver.Unlock, error) {
					time.Sleep(128 * time.Millisecond)
					return func(context.Context) error { return nil }, nil
				},
				Close: func() error { return nil },
			}, nil
		}
		b := &Bench{System: driver.System{Open: open}, Cluster: &server.Cluster{},
			Window: 4 * time.Second}
		values, err := b.Open(t.Context(), 50)
		require.NoError(t, err)
		require.InEpsilon(t, 2000, b.capacity, 0.1)
		require.InEpsilon(t, b.capacity/2, values["offered"], 0.1)
		require.InEpsilon(t, 1, values["kept"], 0.1)
		require.Zero(t, values["errors"])
		require.InEpsilon(t, 128, values["cycle_p50"], 0.02)
	})
}
