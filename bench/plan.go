package main

import (
	"context"
	"fmt"

	"zamok/bench/load"
	"zamok/bench/measure"
	"zamok/bench/peer"
)

// step is one workload of a pass.
type step struct {
	workload string
	clients  int  // 0 where the number is the workload's own
	once     bool // in the first round only: it is stated, not compared
	run      func(ctx context.Context, b *load.Bench) (load.Values, []measure.Span, error)
}

func (s step) String() string {
	if s.clients == 0 {
		return s.workload
	}
	return fmt.Sprintf("%s %d", s.workload, s.clients)
}

const (
	sharedClients  = 4
	sharedWorkers  = 256
	parkedSessions = 100
	parkedOwn      = 5000
	killedTimes    = 2 // a round, for a median of five or more
)

// adder makes the steps of a plan.
type adder struct{ steps []step }

type run func(ctx context.Context, b *load.Bench) (load.Values, error)

func (a *adder) add(workload string, n int, run run) {
	a.steps = append(a.steps, step{workload: workload, clients: n, run: func(ctx context.Context, b *load.Bench) (load.Values, []measure.Span, error) {
		values, err := run(ctx, b)
		return values, nil, err
	}})
}

// alone adds a step that begins without clients.
func (a *adder) alone(workload string, n int, once bool, run run) {
	a.add(workload, n, func(ctx context.Context, b *load.Bench) (load.Values, error) {
		b.Close()
		return run(ctx, b)
	})
	a.steps[len(a.steps)-1].once = once
}

// plan is what one system is put through in one round, in this order: waiting comes first, for what it
// takes of memory is seen best on servers that have done nothing yet; then numbers of clients rise, for
// those that are open stay open; and what leaves a mark on the servers comes last.
func plan(sys peer.System, clients []int) []step {
	a := &adder{}
	if !sys.Floor && !sys.Brief {
		parked(a, sys)
	}
	speed(a, sys, clients)
	if sys.Floor || sys.Brief {
		return a.steps
	}
	a.steps = append(a.steps, step{workload: "timeline", run: func(ctx context.Context, b *load.Bench) (load.Values, []measure.Span, error) {
		b.Close()
		return b.Timeline(ctx)
	}})
	a.add("wait", 0, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Wait(ctx) })
	a.add("series", 0, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Series(ctx) })
	faults(a, sys)
	return a.steps
}

func speed(a *adder, sys peer.System, clients []int) {
	for _, n := range clients {
		if sys.OwnMax == 0 || n <= sys.OwnMax {
			a.add("own", n, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Uncontended(ctx, n) })
		}
		if one := max(n, 2); !sys.Floor && (sys.ContendMax == 0 || one <= sys.ContendMax) {
			a.add("one", one, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Contended(ctx, one) })
		}
	}
	if sys.OwnMax == 0 || sys.OwnMax >= sharedWorkers {
		a.alone("shared", sharedWorkers, false, func(ctx context.Context, b *load.Bench) (load.Values, error) {
			return b.Shared(ctx, sharedClients, sharedWorkers)
		})
	}
}

func waiting(n, sessions int) run {
	return func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Parked(ctx, n, sessions) }
}

// parked is for those whose waiters a server knows of, or is asked by.
func parked(a *adder, sys peer.System) {
	if sys.TTL || sys.Queues {
		a.alone("parked", 1000, true, waiting(1000, parkedSessions))
	}
	if sys.TTL && sys.Queues {
		// Ours has an aim to meet in every round; of the others one look tells enough.
		a.alone("parked", 10000, !sys.Release, waiting(10000, parkedSessions))
	}
}

// faults is the part of the plan that is not about speed.
func faults(a *adder, sys peer.System) {
	if sys.TTL && sys.Queues {
		a.alone("parked-own", parkedOwn, true, waiting(parkedOwn, parkedOwn))
	}
	if sys.TTL || sys.Queues {
		// The same of the others' leases.
		a.alone("dead", 0, !sys.Release, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Dead(ctx, 0) })
	}
	if sys.Release {
		a.alone("disconnect", 0, false, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Dead(ctx, releaseGrace) })
	}
	if sys.TTL && sys.Queues {
		for range killedTimes {
			a.alone("killed", 0, false, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.LeaderKilled(ctx) })
		}
	}
}
