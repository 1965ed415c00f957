package load

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"zamok/bench/measure"
	"zamok/bench/peer"
	"zamok/cmd/zamok/workload"
)

// Values is what a workload measured, by the names that the report knows.
type Values = map[string]float64

// Uncontended lets each of n clients lock and unlock a key of its own, over and over.
func (b *Bench) Uncontended(ctx context.Context, n int) (Values, error) {
	clients, err := b.openClients(ctx, n)
	if err != nil {
		return nil, err
	}
	return b.runLoop(ctx, clients, workload.Loop{Workers: n, Window: b.Window, Key: ownKey, Abandon: b.Close})
}

// Shared does the same with n goroutines over a few clients.
func (b *Bench) Shared(ctx context.Context, clients, n int) (Values, error) {
	opened, err := b.openMany(ctx, clients, b.session(n/clients))
	end := sync.OnceFunc(func() { closeAll(opened) })
	defer end()
	if err != nil {
		return nil, err
	}
	return b.runLoop(ctx, opened, workload.Loop{Workers: n, Window: b.Window, Key: ownKey, Abandon: end})
}

// longQueueClients make a queue so long that it takes twice the window until each has had its turns.
const longQueueClients = 256

// Contended lets n clients lock and unlock one key.
func (b *Bench) Contended(ctx context.Context, n int) (Values, error) {
	clients, err := b.openClients(ctx, n)
	if err != nil {
		return nil, err
	}
	window := b.Window
	if n >= longQueueClients {
		window *= 2
	}
	return b.runLoop(ctx, clients, workload.Loop{Workers: n, Window: window, Key: func(int) string { return "one" }, Abandon: b.Close})
}

func ownKey(worker int) string { return fmt.Sprintf("own-%d", worker) }

// runLoop measures a loop and what it costs the servers and the clients. Processor time is that of the whole run
// divided by all of its cycles: reading it within the run would take time from a machine that has none to spare.
func (b *Bench) runLoop(ctx context.Context, clients []peer.Client, l workload.Loop) (Values, error) {
	l.Lock = func(ctx context.Context, worker int, key string) (func(context.Context) error, error) {
		return clients[worker%len(clients)].Lock(ctx, key)
	}
	oneKey := l.Workers > 1 && l.Key(0) == l.Key(1)
	if !oneKey { // what a key costs once (ZooKeeper makes a node for it) is not the cost of a cycle
		ctx, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		for i := range l.Workers {
			running.Go(func() {
				if unlock, err := l.Lock(ctx, i, l.Key(i)); err == nil {
					_ = unlock(ctx) // if it fails, so will the loop
				}
			})
		}
		workload.Drain(&running, cancel, l.Abandon)
		cancel()
	}
	l.Warmup = l.Window / 4
	before, err := b.cpuTime()
	if err != nil {
		return nil, err
	}
	r := l.Run(ctx)
	after, err := b.cpuTime()
	if err != nil {
		return nil, err
	}
	if r.Granted == 0 && r.LastErr != nil {
		return nil, fmt.Errorf("no cycle was completed: %w", r.LastErr)
	}
	values := Values{"rate": r.Rate(), "errors": float64(r.Errors)}
	measure.AddPercentiles(values, "cycle", &r.Cycle)
	measure.AddPercentiles(values, "lock", &r.Lock)
	measure.AddPercentiles(values, "handoff", &r.Handoff)
	if n := float64(r.Cycles); n > 0 {
		values["cpu"] = (after.server - before.server) / n * 1000
		values["client_cpu"] = (after.client - before.client) / n * 1000
	}
	if oneKey {
		addFairness(values, r, l.Workers)
	}
	values["memory"], err = b.Cluster.Memory()
	return values, err
}

func addFairness(values Values, r *workload.Result, workers int) {
	values["overlaps"] = float64(r.Overlaps)
	values["inversions"] = float64(measure.Inversions(r.Grants))
	if shares := measure.CompleteRounds(r.Grants, workers); shares != nil {
		values["jain"] = measure.Jain(shares)
		total := 0
		for _, s := range shares {
			total += s
		}
		values["worst"] = float64(slices.Min(shares)) / (float64(total) / float64(len(shares)))
	}
}

type cpuTime struct{ server, client float64 } // seconds of processor time

func (b *Bench) cpuTime() (cpuTime, error) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return cpuTime{}, err
	}
	cpu, err := b.Cluster.CPU()
	return cpuTime{server: cpu, client: seconds(own.Utime) + seconds(own.Stime)}, err
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
