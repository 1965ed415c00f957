package main

import (
	"context"
	"fmt"
	"slices"

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

// plan is what one system is put through in one round, in this order: numbers of clients rise, for
// those that are open stay open, and what leaves a mark on the servers comes last.
func plan(sys peer.System, clients []int) []step {
	var steps []step
	add := func(workload string, n int, run func(context.Context, *load.Bench) (load.Values, error)) {
		steps = append(steps, step{workload: workload, clients: n, run: func(ctx context.Context, b *load.Bench) (load.Values, []measure.Span, error) {
			values, err := run(ctx, b)
			return values, nil, err
		}})
	}
	for _, n := range clients {
		if sys.OwnMax == 0 || n <= sys.OwnMax {
			add("own", n, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Uncontended(ctx, n) })
		}
		if one := max(n, 2); !sys.Floor && (sys.ContendMax == 0 || one <= sys.ContendMax) {
			add("one", one, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Contended(ctx, one) })
		}
	}
	if sys.OwnMax == 0 || sys.OwnMax >= sharedWorkers {
		add("shared", sharedWorkers, func(ctx context.Context, b *load.Bench) (load.Values, error) {
			b.Close()
			return b.Shared(ctx, sharedClients, sharedWorkers)
		})
	}
	if sys.Floor || sys.Brief {
		return steps
	}
	steps = append(steps, step{workload: "timeline", run: func(ctx context.Context, b *load.Bench) (load.Values, []measure.Span, error) {
		b.Close()
		return b.Timeline(ctx)
	}})
	add("wait", 0, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Wait(ctx) })
	add("series", 0, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Series(ctx) })
	return append(steps, faults(sys)...)
}

// faults is the part of the plan that is not about speed.
func faults(sys peer.System) []step {
	var steps []step
	add := func(workload string, n int, once bool, run func(context.Context, *load.Bench) (load.Values, error)) {
		steps = append(steps, step{workload: workload, clients: n, once: once, run: func(ctx context.Context, b *load.Bench) (load.Values, []measure.Span, error) {
			b.Close()
			values, err := run(ctx, b)
			return values, nil, err
		}})
	}
	parked := func(n, sessions int) func(context.Context, *load.Bench) (load.Values, error) {
		return func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Parked(ctx, n, sessions) }
	}
	dead := func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Dead(ctx, 0) }
	switch {
	case sys.Name == "postgres":
		add("parked", 1000, true, parked(1000, parkedSessions))
		add("dead", 0, true, dead)
	case sys.TTL && !sys.Queues:
		add("parked", 1000, true, parked(1000, parkedSessions))
		add("dead", 0, true, dead)
	case sys.TTL:
		add("parked", 1000, true, parked(1000, parkedSessions))
		add("parked", 10000, false, parked(10000, parkedSessions))
		add("parked-own", parkedOwn, true, parked(parkedOwn, parkedOwn))
		add("dead", 0, !sys.Release, dead) // ours has an aim to meet in every round; a lease of 10 s is one
	}
	if sys.Release {
		add("disconnect", 0, false, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.Dead(ctx, releaseGrace) })
	}
	if sys.TTL && slices.Contains([]string{"zamok", "zamok-wal", "etcd", "zookeeper"}, sys.Name) {
		for range killedTimes {
			add("killed", 0, false, func(ctx context.Context, b *load.Bench) (load.Values, error) { return b.LeaderKilled(ctx) })
		}
	}
	return steps
}
