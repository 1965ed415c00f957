package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"zamok/bench/measure"
	"zamok/cmd/zamok/loadgen"
)

const (
	// CapacityClients is enough for the highest rate of each system.
	CapacityClients = 256
	arrivalSeed     = 1 // the same for all systems
)

// arrivals is an open loop: cycles are due at fixed moments, however fast others end. A cycle that
// is due while every client is busy waits in a queue, and its latency counts from when it was due,
// as for real callers behind one slow answer.
type arrivals struct {
	due     []time.Duration // since the beginning, rising
	window  [2]time.Duration
	clients int
	cycle   func(ctx context.Context, client int) error
	abandon func() // makes cycles return that do not end with their context
}

// arrivalResult is what an open loop measured. Ended counts the cycles that ended inside the
// window. The other values are of the cycles that were due inside the window, whenever they ended.
type arrivalResult struct {
	Due, Failed, Ended uint64
	Cycles             uint64            // all that succeeded, also outside of the window
	Latency            loadgen.Histogram // from when a cycle was due to its end
	// from when it was due to its beginning: the queue, and the harness's own delay
	Late loadgen.Histogram
}

// poisson returns moments at a rate, with the gaps of many independent callers. With even gaps
// calls would overlap only when the system is late. The gaps are the same for every system, in
// proportion to its rate.
func poisson(rate float64, end time.Duration) (due []time.Duration) {
	random := rand.New(rand.NewPCG(arrivalSeed, 0))
	for at := 0.; ; {
		at += random.ExpFloat64() / rate
		d := time.Duration(at * float64(time.Second))
		if d >= end {
			return due
		}
		due = append(due, d)
	}
}

// run performs all cycles, also those that are still queued at the end of the window. Each free
// client takes the next one and waits until it is due. If it was due before, the cycle was queued.
func (a *arrivals) run(ctx context.Context) *arrivalResult {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &arrivalResult{}
	var taken atomic.Int64
	var succeeded, ended, cycles atomic.Uint64
	inside := func(d time.Duration) bool { return d >= a.window[0] && d < a.window[1] }
	began := time.Now()
	var clients sync.WaitGroup
	for client := range a.clients {
		clients.Go(func() {
			for i := taken.Add(1) - 1; i < int64(len(a.due)) &&
				ctx.Err() == nil; i = taken.Add(1) - 1 {
				due := a.due[i]
				loadgen.Sleep(ctx, due-time.Since(began))
				begin := time.Since(began)
				if err := a.cycle(ctx, client); err != nil {
					continue // it counts as due, but not as succeeded
				}
				end := time.Since(began)
				cycles.Add(1)
				if inside(end) {
					ended.Add(1)
				}
				if inside(due) {
					succeeded.Add(1)
					r.Latency.Add(end - due)
					r.Late.Add(begin - due)
				}
			}
		})
	}
	loadgen.Sleep(ctx, a.window[1])
	loadgen.Drain(&clients, cancel, a.abandon)
	for _, due := range a.due {
		if inside(due) {
			r.Due++
		}
	}
	r.Failed, r.Ended, r.Cycles = r.Due-succeeded.Load(), ended.Load(), cycles.Load()
	return r
}

// Open lets cycles arrive at a part of the rate that the same clients reach in a closed loop, which
// the first call measures. Each client has its own key.
func (b *Bench) Open(ctx context.Context, percent int) (Values, error) {
	if b.capacity == 0 {
		closed, err := b.Uncontended(ctx, CapacityClients)
		if err != nil {
			return nil, err
		}
		b.capacity = closed["rate"]
	}
	clients, err := b.openClients(ctx, CapacityClients)
	if err != nil {
		return nil, err
	}
	warmup := b.Window / 4
	a := &arrivals{clients: len(clients), window: [2]time.Duration{warmup, warmup + b.Window},
		abandon: b.Close,
		due:     poisson(b.capacity*float64(percent)/100, warmup+b.Window),
		cycle: func(ctx context.Context, i int) error {
			unlock, err := clients[i].Lock(ctx, ownKey(i))
			if err != nil {
				return err
			}
			return unlock(ctx)
		}}
	var r *arrivalResult
	values, err := b.withCost(func() uint64 {
		r = a.run(ctx)
		return r.Cycles
	})
	if err != nil {
		return nil, err
	}
	values["capacity"] = b.capacity
	values["offered"] = float64(r.Due) / b.Window.Seconds()
	values["rate"] = float64(r.Ended) / b.Window.Seconds()
	values["kept"] = float64(r.Ended) / float64(max(r.Due, 1))
	values["errors"] = float64(r.Failed)
	measure.AddPercentiles(values, "cycle", &r.Latency)
	measure.AddPercentiles(values, "late", &r.Late)
	return values, nil
}
