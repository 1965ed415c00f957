package raftnode

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	callersMost = 1024
	roundTime   = time.Second
	roundsEach  = 5
)

// BenchmarkAgainstTheFloor compares a cluster of nodes with the bare stack under it: three
// processes each on loopback with files on this disk, callers in a fourth process that all use the
// one way to call (process_call_test.go). A caller acquires its own lock and drops it, in turn; to
// the floor both are bytes. Rounds of the two are interleaved, so that what else this machine does
// meets both; the other cluster rests meanwhile. One iteration is the whole comparison.
//
//	go test -run '^$' -bench AgainstTheFloor -benchtime 1x ./raftnode
//
// The floor has raft-boltdb.
func BenchmarkAgainstTheFloor(b *testing.B) {
	// Beside others a process may wait for a core for longer than a leader's lease is by default.
	const patience = 2 * time.Second
	floor := newCluster(b, order{Floor: 1, Election: patience})
	node := newCluster(b, order{Election: patience})
	var lines [2]*line
	var leaders [2]*part
	for i, c := range []*cluster{floor, node} {
		c.profiles = os.Getenv("ZAMOK_BENCH_PROFILES")
		c.start(c.parts...)
		leaders[i] = c.leader(c.parts...)
		lines[i] = dialCalls(b, c.do(leaders[i], task{Do: "serve", Workers: callersMost}).Name,
			callersMost)
	}
	tickets := make([]uint64, callersMost)
	for b.Loop() {
		table, stages := &strings.Builder{}, &strings.Builder{}
		fmt.Fprintf(table, "\n%8s  %-28s %-28s %6s   %s\n", "callers", "floor: calls/s (spread)",
			"node: calls/s (spread)", "ratio", "µs of CPU a call: floor, node")
		fmt.Fprintf(stages, "\n%8s  of the node's entries, on average\n", "callers")
		for _, callers := range []int{1, 16, 64, 256, callersMost} {
			before := node.do(leaders[1], task{Do: "report"}).State.Led
			var rates, costs [2][]float64
			for range roundsEach {
				for i, c := range []*cluster{floor, node} {
					rate, cost := measure(b, c, lines[i], callers, tickets)
					rates[i], costs[i] = append(rates[i], rate), append(costs[i], cost)
				}
			}
			ratio := median(rates[1]) / median(rates[0])
			b.ReportMetric(ratio, fmt.Sprintf("x@%d", callers))
			fmt.Fprintf(table, "%8d  %-28s %-28s %6.2f   %.0f, %.0f\n", callers, spread(rates[0]),
				spread(rates[1]), ratio, median(costs[0]), median(costs[1]))
			fmt.Fprintf(stages, "%8d  %v\n", callers,
				node.do(leaders[1], task{Do: "report"}).State.Led.since(before))
		}
		fmt.Print(table.String(), stages.String()) // b.Log would cut it off
	}
	for i, c := range []*cluster{floor, node} {
		require.Equal(b, leaders[i], c.leader(c.parts...), "one leader all the time")
		for _, p := range c.parts {
			c.do(p, task{Do: "close"})
			<-p.ended
		}
	}
}

// measure lets so many callers work for a round, and returns calls a second, and the CPU that one
// call cost the three processes, in µs.
func measure(b *testing.B, c *cluster, l *line, callers int,
	tickets []uint64) (rate, cost float64) {
	var done atomic.Int64
	var over atomic.Bool
	var busy sync.WaitGroup
	before := c.cpu()
	began := time.Now()
	for i := range callers {
		busy.Go(func() {
			command := make([]byte, commandBytes)
			for !over.Load() {
				tickets[i]++
				for _, what := range []byte{callAcquire, callDrop} {
					encodeCommand(command, what, i, tickets[i])
					if err := l.call(i, command); err != nil {
						b.Error(err)
						return
					}
					done.Add(1)
				}
			}
		})
	}
	end := time.AfterFunc(roundTime, func() { over.Store(true) })
	defer end.Stop()
	busy.Wait()
	took := time.Since(began)
	return float64(done.Load()) / took.Seconds(), float64((c.cpu() - before).Microseconds()) /
		float64(done.Load())
}

// since describes the average entry since before.
func (l led) since(before led) string {
	n := max(1, l.Entries-before.Entries)
	each := func(now, then time.Duration) time.Duration {
		return ((now - then) / time.Duration(n)).Round(time.Microsecond)
	}
	return fmt.Sprintf("%5.1f commands, %6d bytes; queue %v, append %v, commit %v, apply %v",
		float64(l.Commands-before.Commands)/float64(n), (l.Bytes-before.Bytes)/n,
		each(l.Queue, before.Queue),
		each(l.Append, before.Append), each(l.Commit, before.Commit), each(l.Apply, before.Apply))
}

// cpu is what the processes of a cluster have used of it.
func (c *cluster) cpu() (used time.Duration) {
	const tick = 10 * time.Millisecond
	for _, p := range c.parts {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return 0 // no Linux: no such measure
		}
		var user, system time.Duration
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
		require.NoError(c.t, err)
		used += (user + system) * tick
	}
	return used
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

func spread(values []float64) string {
	return fmt.Sprintf("%.0f (%.0f–%.0f)", median(values), slices.Min(values), slices.Max(values))
}
