package load

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"zamok/bench/measure"
	"zamok/bench/peer"
)

// Values is what a workload saw, by the names that the report knows.
type Values = map[string]float64

// errorBackoff keeps a client whose calls fail at once from turning into a busy loop.
const errorBackoff = 10 * time.Millisecond

// Uncontended lets each of n clients lock and unlock a key of its own, over and over.
func (b *Bench) Uncontended(ctx context.Context, n int) (Values, error) {
	clients, err := b.openClients(ctx, n)
	if err != nil {
		return nil, err
	}
	return b.runClosedLoop(ctx, clients, n, b.Window, ownKey, b.Close)
}

// Shared does the same with n goroutines over a few clients.
func (b *Bench) Shared(ctx context.Context, clients, n int) (Values, error) {
	opened, _, err := b.openMany(ctx, clients, b.session(n/clients))
	if err != nil {
		closeAll(opened)
		return nil, err
	}
	end := sync.OnceFunc(func() { closeAll(opened) })
	defer end()
	return b.runClosedLoop(ctx, opened, n, b.Window, ownKey, end)
}

// longQueueClients is how many make a queue so long that it takes a longer look to see everybody have a turn.
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
	return b.runClosedLoop(ctx, clients, n, window, func(int) string { return "one" }, b.Close)
}

func ownKey(worker int) string { return fmt.Sprintf("own-%d", worker) }

// worker is what one goroutine saw.
type worker struct {
	grants     []measure.Grant // inside the window
	cycleTimes []time.Duration // whole ones that ended in the window
	handoffs   []time.Duration
	cyclesDone int // all, also outside of the window
	errors     int
	lastErr    error
}

// closedLoop is one run of a closed loop.
type closedLoop struct {
	began    time.Time     // zero while keys are made
	from, to time.Duration // the window, since began
	workers  int
	ownKeys  bool // their keys differ

	holders    atomic.Int64 // holders of the one key
	overlaps   atomic.Int64
	releasedAt atomic.Int64 // when the one key was last let go, since began
}

func (b *Bench) runClosedLoop(ctx context.Context, clients []peer.Client, n int, window time.Duration,
	key func(int) string, abandon func(),
) (Values, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run := &closedLoop{from: window / 4, to: window / 4 * 5, workers: n, ownKeys: n == 1 || key(0) != key(n-1)}
	client := func(i int) peer.Client { return clients[i%len(clients)] }
	var running sync.WaitGroup
	if run.ownKeys { // what a key costs once (ZooKeeper makes a node for it) is not what a cycle costs
		for i := range n {
			running.Go(func() { _ = run.runCycle(ctx, new(worker), i, client(i), key(i)) }) // if it fails, the loop tells
		}
		drainWorkers(&running, cancel, abandon)
	}
	before, err := b.cpuTime()
	if err != nil {
		return nil, err
	}
	workers := make([]worker, n)
	run.began = time.Now()
	for i := range n {
		running.Go(func() { run.runWorker(ctx, &workers[i], i, client(i), key(i)) })
	}
	sleepContext(ctx, run.to)
	drainWorkers(&running, cancel, abandon)
	after, err := b.cpuTime()
	if err != nil {
		return nil, err
	}
	values := run.values(workers, after.server-before.server, after.client-before.client)
	values["memory"], err = b.Cluster.Memory()
	return values, firstError(workers, values, err)
}

// firstError lets a run fail in which nothing was done; otherwise errors are one of its values.
func firstError(workers []worker, values Values, err error) error {
	if err != nil || values["rate"] > 0 {
		return err
	}
	for _, w := range workers {
		if w.lastErr != nil {
			return fmt.Errorf("no cycle was whole: %w", w.lastErr)
		}
	}
	return nil
}

func (c *closedLoop) runWorker(ctx context.Context, w *worker, i int, client peer.Client, key string) {
	// Not all at once: in which order a burst leaves a busy machine is not known, and fairness is judged by
	// who asked first.
	sleepContext(ctx, c.from/2*time.Duration(i)/time.Duration(c.workers))
	for ctx.Err() == nil && time.Since(c.began) < c.to {
		if err := c.runCycle(ctx, w, i, client, key); err != nil && ctx.Err() == nil {
			w.errors++
			w.lastErr = err
			sleepContext(ctx, errorBackoff)
		}
	}
}

func (c *closedLoop) runCycle(ctx context.Context, w *worker, i int, client peer.Client, key string) error {
	requested := time.Since(c.began)
	unlock, err := client.Lock(ctx, key)
	if err != nil {
		return err
	}
	acquired := time.Since(c.began)
	measured := acquired >= c.from && acquired <= c.to // whenever it was asked: a wait may be longer than the window
	if !c.ownKeys {
		if c.holders.Add(1) != 1 {
			c.overlaps.Add(1)
		}
		freed := time.Duration(c.releasedAt.Load())
		if measured && requested < freed {
			w.handoffs = append(w.handoffs, acquired-freed)
		}
		c.holders.Add(-1)
		c.releasedAt.Store(int64(time.Since(c.began)))
	}
	if err := unlock(ctx); err != nil {
		return err
	}
	w.cyclesDone++
	if !measured {
		return nil
	}
	w.grants = append(w.grants, measure.Grant{Client: i, Requested: requested, Acquired: acquired})
	if done := time.Since(c.began); done <= c.to {
		w.cycleTimes = append(w.cycleTimes, done-requested)
	}
	return nil
}

// values sums up. The processor time is that of the whole run and divided by all of its cycles: to look at
// it in the middle would take time from a machine that has none to give.
func (c *closedLoop) values(workers []worker, server, client float64) Values {
	var grants []measure.Grant
	var all, waits, handoff []time.Duration
	failed, done := 0, 0
	for _, w := range workers {
		grants = append(grants, w.grants...)
		all = append(all, w.cycleTimes...)
		handoff = append(handoff, w.handoffs...)
		failed += w.errors
		done += w.cyclesDone
	}
	for _, g := range grants {
		waits = append(waits, g.Acquired-g.Requested)
	}
	values := Values{"rate": float64(len(grants)) / (c.to - c.from).Seconds(), "errors": float64(failed)}
	measure.AddPercentiles(values, "cycle", all)
	measure.AddPercentiles(values, "lock", waits)
	measure.AddPercentiles(values, "handoff", handoff)
	if n := float64(done); n > 0 {
		values["cpu"] = server / n * 1000
		values["client_cpu"] = client / n * 1000
	}
	if c.ownKeys {
		return values
	}
	values["overlaps"] = float64(c.overlaps.Load())
	values["inversions"] = float64(measure.Inversions(grants))
	if shares := measure.CompleteRounds(grants, len(workers)); shares != nil {
		values["jain"] = measure.Jain(shares)
		total := 0
		for _, s := range shares {
			total += s
		}
		values["worst"] = float64(slices.Min(shares)) / (float64(total) / float64(len(shares)))
	}
	return values
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
