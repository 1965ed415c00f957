package load

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"zamok/bench/driver"
	"zamok/bench/measure"
	"zamok/cmd/zamok/loadgen"
)

// Values is what a workload measured, by the names of the report.
type Values = map[string]float64

// longQueueClients make so long a queue that enough rounds through all of them take twice the
// window.
const longQueueClients = 1024

// Uncontended lets each of n clients lock and unlock its own key, again and again.
func (b *Bench) Uncontended(ctx context.Context, n int) (Values, error) {
	return b.runClients(ctx, n, b.Window, ownKey)
}

// Contended lets n clients lock and unlock one key.
func (b *Bench) Contended(ctx context.Context, n int) (Values, error) {
	window := b.Window
	if n >= longQueueClients {
		window *= 2
	}
	return b.runClients(ctx, n, window, func(int) string { return "one" })
}

func (b *Bench) runClients(ctx context.Context, n int, window time.Duration,
	key func(worker int) string) (Values, error) {
	clients, err := b.openClients(ctx, n)
	if err != nil {
		return nil, err
	}
	return b.runLoop(ctx, clients,
		loadgen.Loop{Workers: n, Window: window, Key: key, Abandon: b.Close})
}

// Shared lets n goroutines lock and unlock keys of their own over a few clients.
func (b *Bench) Shared(ctx context.Context, clients, n int) (Values, error) {
	opened, end, err := b.openMany(ctx, clients, b.session(n/clients))
	defer end()
	if err != nil {
		return nil, err
	}
	return b.runLoop(ctx, opened,
		loadgen.Loop{Workers: n, Window: b.Window, Key: ownKey, Abandon: end})
}

func ownKey(worker int) string { return fmt.Sprintf("own-%d", worker) }

// runLoop measures a loop and its cost.
func (b *Bench) runLoop(ctx context.Context, clients []driver.Client,
	l loadgen.Loop) (Values, error) {
	l.Lock = func(ctx context.Context, worker int, key string) (func(context.Context) error,
		error) {
		return clients[worker%len(clients)].Lock(ctx, key)
	}
	oneKey := l.Workers > 1 && l.Key(0) == l.Key(1)
	// so that the first use of a key, for which ZooKeeper makes a node, is not measured
	if !oneKey {
		_ = runAll(ctx, l.Workers, l.Abandon, func(ctx context.Context, i int) error {
			unlock, err := l.Lock(ctx, i, l.Key(i))
			if err != nil {
				return err // the loop will return it, too
			}
			return unlock(ctx)
		})
	}
	l.Warmup = l.Window / 4
	var r *loadgen.Result
	values, err := b.withCost(func() uint64 {
		r = l.Run(ctx)
		return r.Cycles
	})
	if err != nil {
		return nil, err
	}
	if r.Granted == 0 && r.LastErr != nil {
		return nil, fmt.Errorf("no cycle was completed: %w", r.LastErr)
	}
	values["rate"], values["errors"] = r.Rate(), float64(r.Errors)
	measure.AddPercentiles(values, "cycle", &r.Cycle)
	measure.AddPercentiles(values, "lock", &r.Lock)
	measure.AddPercentiles(values, "handoff", &r.Handoff)
	if oneKey {
		addFairness(values, r, l.Workers)
	}
	return values, nil
}

// withCost measures the cost of run for the servers and the clients. Processor time is that of the
// whole run divided by all of its cycles: reading it within the run would take time from a busy
// machine.
func (b *Bench) withCost(run func() (cycles uint64)) (Values, error) {
	before, err := b.Cluster.Usage()
	if err != nil {
		return nil, err
	}
	began, clientBefore := time.Now(), clientCPU()
	cycles := run()
	took, clients := time.Since(began).Seconds(), clientCPU()-clientBefore
	after, err := b.Cluster.Usage()
	if err != nil {
		return nil, err
	}
	servers := after.CPU - before.CPU
	values := Values{"memory": after.Memory,
		"others": max(0, after.Busy-before.Busy-servers-clients) / took}
	if n := float64(cycles); n > 0 {
		values["cpu"] = servers / n * 1000
		values["client_cpu"] = clients / n * 1000
	}
	return values, nil
}

func addFairness(values Values, r *loadgen.Result, workers int) {
	values["overlaps"] = float64(r.Overlaps)
	values["inversions"] = float64(measure.Inversions(r.Grants))
	if counts := measure.CompleteRounds(r.Grants, workers); counts != nil {
		values["jain"] = measure.Jain(counts)
		values["worst"] = float64(slices.Min(counts)) / float64(len(r.Grants)/workers)
	}
}

// clientCPU is the seconds of processor time that this process has used so far.
func clientCPU() float64 {
	var own syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &own) // it never fails for the process itself
	return time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds()
}
