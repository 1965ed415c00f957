package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"zamok/bench/driver"
	"zamok/bench/load"
	"zamok/bench/measure"
	"zamok/bench/server"
)

const (
	leaseTTL     = 10 * time.Second // of every system that has one
	releaseGrace = time.Millisecond // the shortest release on disconnect
	stepTimeout  = 3 * time.Minute  // for one workload; none needs more than one
)

// config is the settings of `bench run`.
type config struct {
	systems   []driver.System
	workloads []string // empty = all
	clients   []int
	rounds    int
	window    time.Duration
	warm      time.Duration
	programs  server.Programs
	dir       string // for data; each system gets a folder in it
	results   *json.Encoder
	progress  io.Writer
}

// runAll runs all rounds, systems and steps.
func (c *config) runAll(ctx context.Context) error {
	began := time.Now()
	for round := 1; round <= c.rounds; round++ {
		order := slices.DeleteFunc(slices.Clone(c.systems),
			func(s driver.System) bool { return s.Once && round > 1 })
		if round%2 == 0 {
			slices.Reverse(order) // so that each system comes after different ones
		}
		for _, sys := range order {
			if err := c.runSystem(ctx, round, sys); err != nil {
				return err
			}
			fmt.Fprintf(c.progress, "· round %d of %d, %v since the beginning\n", round, c.rounds,
				time.Since(began).Round(time.Second))
		}
	}
	return nil
}

// runSystem measures the disk and runs the plan of one system. A failure of the system is a result;
// an error is a failure of this program.
func (c *config) runSystem(ctx context.Context, round int, sys driver.System) error {
	// on a real disk, so that durability has its cost
	dir, err := os.MkdirTemp(c.dir, "zamok-bench-"+sys.Name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL runs as another user
		return err
	}
	write := func(s step, r measure.Record, err error) error {
		r.Round, r.System, r.Workload, r.Clients = round, sys.Name, s.workload, s.clients
		outcome := progressLine(r.Values)
		if err != nil {
			r.Values, r.Spans, r.Failed = nil, nil, err.Error()
			outcome = "FAILED: " + r.Failed
		}
		fmt.Fprintf(c.progress, "  round %d %-10s %-16s %s\n", round, sys.Name,
			measure.WorkloadName(s.workload, s.clients), outcome)
		return c.results.Encode(measure.Line{Record: &r})
	}
	flush, err := fsyncTimes(dir)
	if err != nil {
		return err
	}
	values := load.Values{}
	measure.AddPercentiles(values, "fsync", flush)
	if err := write(step{workload: "disk"}, measure.Record{Values: values}, nil); err != nil {
		return err
	}
	cluster, err := server.Start(sys.Server, sys.Nodes, dir, c.programs)
	if err != nil {
		return write(step{workload: "start"}, measure.Record{}, err)
	}
	defer cluster.Stop()
	b := &load.Bench{System: sys, Cluster: cluster, TTL: leaseTTL}
	defer b.Close()
	if err := b.Ready(ctx); err != nil {
		return errors.Join(write(step{workload: "start"}, measure.Record{}, err), ctx.Err())
	}
	if err := warmUp(ctx, b, max(c.warm, sys.WarmUp)); err != nil {
		return errors.Join(write(step{workload: "warm"}, measure.Record{}, err), ctx.Err())
	}
	b.Window = c.window
	for _, s := range planFor(b, c.clients) {
		if len(c.workloads) > 0 && !slices.Contains(c.workloads, s.workload) ||
			s.once && round > 1 {
			continue
		}
		if s.fresh {
			b.Close()
		}
		values, err := runStep(ctx, cluster, s)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.Close() // its sessions are in an unknown state
		}
		if err := write(s, measure.Record{Values: values, Spans: b.Spans}, err); err != nil {
			return err
		}
		b.Spans = nil
	}
	return nil
}

// warmUp runs what will be measured: own keys, one key, and opening and closing clients, in turn.
// After a warm-up with own keys alone ZooKeeper was slower, by up to two fifths (doc.go).
func warmUp(ctx context.Context, b *load.Bench, total time.Duration) error {
	b.Window = total / (2 * warmCycles)
	for range warmCycles {
		if _, err := b.Uncontended(ctx, warmOwn); err != nil {
			return err
		}
		if _, err := b.Contended(ctx, warmOne); err != nil {
			return err
		}
		b.Close()
	}
	return nil
}

// runStep runs one workload, and counts the elections in it.
func runStep(ctx context.Context, cluster *server.Cluster, s step) (load.Values, error) {
	before, _ := cluster.LeaderChanges(ctx)
	bounded, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	values, err := s.run(bounded)
	if err != nil {
		return nil, err
	}
	if after, elections := cluster.LeaderChanges(ctx); elections {
		values["elections"] = after - before
	}
	return values, cluster.Alive()
}

// progressLine shows the values of a workload; counts of errors only if they are not 0.
func progressLine(values load.Values) string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(values)) {
		unexpected := slices.Contains([]string{"errors", "overlaps", "twice", "early", "elections"},
			name)
		detail := strings.HasPrefix(name, "wait_") || strings.HasSuffix(name, "_p95") ||
			strings.HasSuffix(name, "_p99")
		if !detail && (!unexpected || values[name] > 0) {
			text += fmt.Sprintf("%s %.4g  ", name, values[name])
		}
	}
	return text
}
