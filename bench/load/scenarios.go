package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zamok/bench/driver"
	"zamok/bench/measure"
	"zamok/cmd/zamok/loadgen"
)

// These are the three scenarios of the report that this project began with.

const (
	timelineThreads = 10
	timelineHold    = 20 * time.Millisecond // the longest
	waitThreads     = 32
	waitHold        = 10 * time.Millisecond
	seriesThreads   = 8
	seriesLocks     = 250
	scenarioTimeout = 30 * time.Second
)

// runScenario runs n workers, each with its own client, until all have returned. It begins when all
// clients are open.
func (b *Bench) runScenario(ctx context.Context, n int,
	work func(ctx context.Context, began time.Time, i int, c driver.Client) error) (
	took time.Duration, err error) {
	clients, err := b.openClients(ctx, n)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = runAll(ctx, n, b.Close,
		func(ctx context.Context, i int) error { return work(ctx, began, i, clients[i]) })
	return time.Since(began), err
}

// Timeline lets threads acquire one lock again and again and hold it for a random time. It records
// which thread held it when, and measures how much of the time it was held.
func (b *Bench) Timeline(ctx context.Context) (Values, error) {
	var mu sync.Mutex
	var waits loadgen.Histogram
	counts := make([]int, timelineThreads)
	held := time.Duration(0)
	_, err := b.runScenario(ctx, timelineThreads,
		func(ctx context.Context, began time.Time, i int, c driver.Client) error {
			for time.Since(began) < b.Window {
				requested := time.Since(began)
				unlock, err := c.Lock(ctx, "timeline")
				if err != nil {
					return err
				}
				acquired := time.Since(began)
				loadgen.Sleep(ctx, rand.N(timelineHold))
				over := time.Since(began)
				if err := unlock(ctx); err != nil {
					return err
				}
				if over > b.Window {
					continue
				}
				mu.Lock()
				b.Spans = append(b.Spans,
					measure.Span{Thread: i, From: measure.Milliseconds(acquired),
						To: measure.Milliseconds(over)})
				waits.Add(acquired - requested)
				counts[i]++
				held += over - acquired
				mu.Unlock()
			}
			return nil
		})
	values := Values{"rate": float64(len(b.Spans)) / b.Window.Seconds(),
		"used": held.Seconds() / b.Window.Seconds(),
		"jain": measure.Jain(counts), "least": float64(slices.Min(counts)),
		"most": float64(slices.Max(counts))}
	measure.AddPercentiles(values, "wait", &waits)
	return values, err
}

// Wait lets threads request one lock at the same moment, once each. It measures how long each
// waited, and how much longer all of it took than the sum of the holds.
func (b *Bench) Wait(ctx context.Context) (Values, error) {
	waits := make([]time.Duration, waitThreads)
	took, err := b.runScenario(ctx, waitThreads,
		func(ctx context.Context, began time.Time, i int, c driver.Client) error {
			unlock, err := c.Lock(ctx, "wait")
			if err != nil {
				return err
			}
			waits[i] = time.Since(began)
			loadgen.Sleep(ctx, waitHold)
			return unlock(ctx)
		})
	values := Values{"total": measure.Milliseconds(took),
		"ideal": measure.Milliseconds(waitThreads * waitHold)}
	values["stretch"] = values["total"] / values["ideal"]
	slices.Sort(waits)
	var all loadgen.Histogram
	for i, w := range waits {
		all.Add(w)
		values[fmt.Sprintf("wait_%02d", i)] = measure.Milliseconds(w)
	}
	measure.AddPercentiles(values, "wait", &all)
	return values, err
}

// Series lets threads race through many locks by TryLock. Each lock has one winner, which holds it
// to the end.
func (b *Bench) Series(ctx context.Context) (Values, error) {
	ctx, cancel := context.WithTimeout(ctx, scenarioTimeout)
	defer cancel()
	var winners [seriesLocks]atomic.Int64
	won := make([]int, seriesThreads)
	kept := make([][]driver.Unlock, seriesThreads)
	took, err := b.runScenario(ctx, seriesThreads,
		func(ctx context.Context, _ time.Time, i int, c driver.Client) error {
			for n := range seriesLocks {
				unlock, err := c.TryLock(ctx, fmt.Sprintf("series-%d", n))
				if errors.Is(err, driver.ErrHeld) {
					continue
				}
				if err != nil {
					return err
				}
				winners[n].Add(1)
				won[i]++
				kept[i] = append(kept[i], unlock)
			}
			return nil
		})
	errs := []error{err}
	for _, unlocks := range kept {
		for _, unlock := range unlocks {
			errs = append(errs, unlock(ctx))
		}
	}
	values := Values{"total": measure.Milliseconds(took), "jain": measure.Jain(won),
		"rate": seriesThreads * seriesLocks / took.Seconds(), "unwon": 0, "overlaps": 0}
	for i := range winners {
		switch n := winners[i].Load(); {
		case n == 0:
			values["unwon"]++
		case n > 1:
			values["overlaps"]++
		}
	}
	return values, errors.Join(errs...)
}
