package main

import (
	"context"

	"zamok/bench/load"
)

// step is one workload of a pass over a system.
type step struct {
	workload string
	clients  int  // or waiters, or percent of the capacity; 0 if the workload has a fixed number
	fresh    bool // it begins without clients
	once     bool // in the first round only: its result is not compared
	run      func(ctx context.Context) (load.Values, error)
}

const (
	warmCycles        = 4
	warmOwn, warmOne  = 64, 16 // clients; many, so that a JVM has run the code often
	sharedClients     = 4
	sharedWorkers     = 256
	parkedSessions    = 100
	parkedOwnSessions = 5000
)

// planFor is the plan of one system in one round. Waiting comes first, because its memory is
// measured best on fresh servers; then the number of clients rises, because open clients stay open;
// workloads that change the servers come last.
func planFor(b *load.Bench, clients []int) (steps []step) {
	sys := b.System
	add := func(when bool, s step) {
		if when {
			steps = append(steps, s)
		}
	}
	type values = load.Values
	own := func(n int) step {
		return step{"own", n, false, false,
			func(ctx context.Context) (values, error) { return b.Uncontended(ctx, n) }}
	}
	// it is compared with itself on three nodes: one client, and the highest rate
	if sys.Nodes > 0 {
		return []step{own(1), own(load.CapacityClients)}
	}
	parked := func(n, sessions int) func(context.Context) (values, error) {
		return func(ctx context.Context) (values, error) { return b.Parked(ctx, n, sessions) }
	}
	full := !sys.TransportOnly && !sys.SpeedOnly
	expires, queues, disconnects := full && sys.ExpiresHolders, full && sys.QueuesWaiters,
		full && sys.ReleasesOnDisconnect

	add(expires || queues, step{"parked", 1000, true, true, parked(1000, parkedSessions)})
	// zamok has an aim in every round; for the others one measurement is enough.
	add(expires && queues, step{"parked", 10000, true, !disconnects, parked(10000, parkedSessions)})

	for _, n := range clients {
		add(sys.OwnClientsMax == 0 || n <= sys.OwnClientsMax, own(n))
		one := max(n, 2)
		add(!sys.TransportOnly && (sys.ContendedClientsMax == 0 || one <= sys.ContendedClientsMax),
			step{"one", one, false, false,
				func(ctx context.Context) (values, error) { return b.Contended(ctx, one) }})
	}
	add(sys.OwnClientsMax == 0 || sys.OwnClientsMax >= sharedWorkers,
		step{"shared", sharedWorkers, true, false,
			func(ctx context.Context) (values, error) {
				return b.Shared(ctx, sharedClients, sharedWorkers)
			}})

	for i, percent := range []int{25, 50, 75, 90} {
		add(expires && queues, step{"open", percent, i == 0, false,
			func(ctx context.Context) (values, error) { return b.Open(ctx, percent) }})
	}

	add(full, step{"timeline", 0, true, false, b.Timeline})
	add(full, step{"wait", 0, false, false, b.Wait})
	add(full, step{"series", 0, false, false, b.Series})

	add(expires && queues, step{"parked-own", parkedOwnSessions, true, true,
		parked(parkedOwnSessions, parkedOwnSessions)})
	add(expires || queues, step{"dead", 0, true, true,
		func(ctx context.Context) (values, error) { return b.HolderKilled(ctx, 0) }})
	add(disconnects, step{"disconnect", 0, true, false,
		func(ctx context.Context) (values, error) { return b.HolderKilled(ctx, releaseGrace) }})
	add(expires && queues, step{"killed", 0, true, false, b.LeaderKilled})
	return steps
}
