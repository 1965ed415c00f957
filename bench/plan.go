package main

import (
	"context"
	"fmt"

	"zamok/bench/load"
	"zamok/bench/measure"
	"zamok/bench/peer"
)

// workloadStep is one workload of a pass.
type workloadStep struct {
	workload       string
	clients        int  // 0 where the number is the workload's own
	firstRoundOnly bool // in the first round only: it is stated, not compared
	run            func(ctx context.Context, b *load.Bench) (load.Values, []measure.Span, error)
}

func (s workloadStep) String() string {
	if s.clients == 0 {
		return s.workload
	}
	return fmt.Sprintf("%s %d", s.workload, s.clients)
}

const (
	sharedClients       = 4
	sharedWorkers       = 256
	parkedSessions      = 100
	parkedOwnSessions   = 5000
	leaderKillsPerRound = 2 // a round, for a median of five or more
)

// planBuilder makes the steps of a plan.
type planBuilder struct{ steps []workloadStep }

type workloadFunc func(ctx context.Context, b *load.Bench) (load.Values, error)

func (a *planBuilder) add(workload string, n int, run workloadFunc) {
	a.steps = append(a.steps, workloadStep{workload: workload, clients: n, run: func(ctx context.Context, b *load.Bench) (load.Values, []measure.Span, error) {
		values, err := run(ctx, b)
		return values, nil, err
	}})
}

// addWithoutClients adds a step that begins without clients.
func (a *planBuilder) addWithoutClients(workload string, n int, once bool, run workloadFunc) {
	a.add(workload, n, func(ctx context.Context, b *load.Bench) (load.Values, error) {
		b.Close()
		return run(ctx, b)
	})
	a.steps[len(a.steps)-1].firstRoundOnly = once
}

// planFor is what one system is put through in one round, in this order: waiting comes first, for what it
// takes of memory is seen best on servers that have done nothing yet; then numbers of clients rise, for
// those that are open stay open; and what leaves a mark on the servers comes last.
func planFor(sys peer.System, clients []int) []workloadStep {
	a := &planBuilder{}
	if !sys.TransportOnly && !sys.SpeedOnly {
		parked(a, sys)
	}
	speed(a, sys, clients)
	if sys.TransportOnly || sys.SpeedOnly {
		return a.steps
	}
	a.steps = append(a.steps, workloadStep{workload: "timeline", run: func(ctx context.Context, b *load.Bench) (load.Values, []measure.Span, error) {
		b.Close()
		return b.Timeline(ctx)
	}})
	a.add("wait", 0, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Wait(ctx) })
	a.add("series", 0, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Series(ctx) })
	faults(a, sys)
	return a.steps
}

func speed(a *planBuilder, sys peer.System, clients []int) {
	for _, n := range clients {
		if sys.OwnClientsMax == 0 || n <= sys.OwnClientsMax {
			a.add("own", n, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Uncontended(ctx, n) })
		}
		if one := max(n, 2); !sys.TransportOnly && (sys.ContendedClientsMax == 0 || one <= sys.ContendedClientsMax) {
			a.add("one", one, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Contended(ctx, one) })
		}
	}
	if sys.OwnClientsMax == 0 || sys.OwnClientsMax >= sharedWorkers {
		a.addWithoutClients("shared", sharedWorkers, false, func(ctx context.Context, b *load.Bench) (load.Values, error) {
			return b.Shared(ctx, sharedClients, sharedWorkers)
		})
	}
}

func waiting(n, sessions int) workloadFunc {
	return func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Parked(ctx, n, sessions) }
}

// parked is for those whose waiters a server knows of, or is asked by.
func parked(a *planBuilder, sys peer.System) {
	if sys.ExpiresHolders || sys.QueuesWaiters {
		a.addWithoutClients("parked", 1000, true, waiting(1000, parkedSessions))
	}
	if sys.ExpiresHolders && sys.QueuesWaiters {
		// Ours has an aim to meet in every round; of the others one look tells enough.
		a.addWithoutClients("parked", 10000, !sys.ReleasesOnDisconnect, waiting(10000, parkedSessions))
	}
}

// faults is the part of the plan that is not about speed.
func faults(a *planBuilder, sys peer.System) {
	if sys.ExpiresHolders && sys.QueuesWaiters {
		a.addWithoutClients("parked-own", parkedOwnSessions, true, waiting(parkedOwnSessions, parkedOwnSessions))
	}
	if sys.ExpiresHolders || sys.QueuesWaiters {
		// The same of the others' leases.
		a.addWithoutClients("dead", 0, !sys.ReleasesOnDisconnect, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.HolderKilled(ctx, 0) })
	}
	if sys.ReleasesOnDisconnect {
		a.addWithoutClients("disconnect", 0, false, func(ctx context.Context, b *load.Bench) (load.Values, error) {
			return b.HolderKilled(ctx, releaseGrace)
		})
	}
	if sys.ExpiresHolders && sys.QueuesWaiters {
		for range leaderKillsPerRound {
			a.addWithoutClients("killed", 0, false, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.LeaderKilled(ctx) })
		}
	}
}
