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

// errorPause keeps a client whose calls fail at once from turning into a busy loop.
const errorPause = 10 * time.Millisecond

// Uncontended lets each of n clients lock and unlock a key of its own, over and over.
func (b *Bench) Uncontended(ctx context.Context, n int) (Values, error) {
	clients, err := b.pool(ctx, n)
	if err != nil {
		return nil, err
	}
	return b.cycle(ctx, clients, n, b.Window, ownKey, b.Close)
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
	return b.cycle(ctx, opened, n, b.Window, ownKey, end)
}

// crowd is how many make a queue so long that it takes a longer look to see everybody have a turn.
const crowd = 256

// Contended lets n clients lock and unlock one key.
func (b *Bench) Contended(ctx context.Context, n int) (Values, error) {
	clients, err := b.pool(ctx, n)
	if err != nil {
		return nil, err
	}
	window := b.Window
	if n >= crowd {
		window *= 2
	}
	return b.cycle(ctx, clients, n, window, func(int) string { return "one" }, b.Close)
}

func ownKey(worker int) string { return fmt.Sprintf("own-%d", worker) }

// worker is what one goroutine saw.
type worker struct {
	grants  []measure.Grant // inside the window
	cycles  []time.Duration // whole ones that ended in the window
	handoff []time.Duration
	done    int // all, also outside of the window
	errors  int
	last    error
}

// cycles is one run of a closed loop.
type cycles struct {
	began    time.Time     // zero while keys are made
	from, to time.Duration // the window, since began
	workers  int
	alone    bool // their keys differ

	inside   atomic.Int64 // holders of the one key
	overlaps atomic.Int64
	freed    atomic.Int64 // when the one key was last let go, since began
}

func (b *Bench) cycle(ctx context.Context, clients []peer.Client, n int, window time.Duration,
	key func(int) string, abandon func(),
) (Values, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run := &cycles{from: window / 4, to: window / 4 * 5, workers: n, alone: n == 1 || key(0) != key(n-1)}
	client := func(i int) peer.Client { return clients[i%len(clients)] }
	var running sync.WaitGroup
	if run.alone { // what a key costs once (ZooKeeper makes a node for it) is not what a cycle costs
		for i := range n {
			running.Go(func() { _ = run.once(ctx, new(worker), i, client(i), key(i)) }) // if it fails, the loop tells
		}
		drain(&running, cancel, abandon)
	}
	before, err := b.spent()
	if err != nil {
		return nil, err
	}
	workers := make([]worker, n)
	run.began = time.Now()
	for i := range n {
		running.Go(func() { run.work(ctx, &workers[i], i, client(i), key(i)) })
	}
	pause(ctx, run.to)
	drain(&running, cancel, abandon)
	after, err := b.spent()
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
		if w.last != nil {
			return fmt.Errorf("no cycle was whole: %w", w.last)
		}
	}
	return nil
}

func (c *cycles) work(ctx context.Context, w *worker, i int, client peer.Client, key string) {
	// Not all at once: in which order a burst leaves a busy machine is not known, and fairness is judged by
	// who asked first.
	pause(ctx, c.from/2*time.Duration(i)/time.Duration(c.workers))
	for ctx.Err() == nil && time.Since(c.began) < c.to {
		if err := c.once(ctx, w, i, client, key); err != nil && ctx.Err() == nil {
			w.errors++
			w.last = err
			pause(ctx, errorPause)
		}
	}
}

func (c *cycles) once(ctx context.Context, w *worker, i int, client peer.Client, key string) error {
	asked := time.Since(c.began)
	unlock, err := client.Lock(ctx, key)
	if err != nil {
		return err
	}
	had := time.Since(c.began)
	measured := had >= c.from && had <= c.to // whenever it was asked: a wait may be longer than the window
	if !c.alone {
		if c.inside.Add(1) != 1 {
			c.overlaps.Add(1)
		}
		freed := time.Duration(c.freed.Load())
		if measured && asked < freed {
			w.handoff = append(w.handoff, had-freed)
		}
		c.inside.Add(-1)
		c.freed.Store(int64(time.Since(c.began)))
	}
	if err := unlock(ctx); err != nil {
		return err
	}
	w.done++
	if !measured {
		return nil
	}
	w.grants = append(w.grants, measure.Grant{Client: i, Asked: asked, Had: had})
	if done := time.Since(c.began); done <= c.to {
		w.cycles = append(w.cycles, done-asked)
	}
	return nil
}

// values sums up. The processor time is that of the whole run and divided by all of its cycles: to look at
// it in the middle would take time from a machine that has none to give.
func (c *cycles) values(workers []worker, server, client float64) Values {
	var grants []measure.Grant
	var all, waits, handoff []time.Duration
	failed, done := 0, 0
	for _, w := range workers {
		grants = append(grants, w.grants...)
		all = append(all, w.cycles...)
		handoff = append(handoff, w.handoff...)
		failed += w.errors
		done += w.done
	}
	for _, g := range grants {
		waits = append(waits, g.Had-g.Asked)
	}
	values := Values{"rate": float64(len(grants)) / (c.to - c.from).Seconds(), "errors": float64(failed)}
	measure.Spread(values, "cycle", all)
	measure.Spread(values, "lock", waits)
	measure.Spread(values, "handoff", handoff)
	if n := float64(done); n > 0 {
		values["cpu"] = server / n * 1000
		values["client_cpu"] = client / n * 1000
	}
	if c.alone {
		return values
	}
	values["overlaps"] = float64(c.overlaps.Load())
	values["inversions"] = float64(measure.Inversions(grants))
	if shares := measure.WholeTurns(grants, len(workers)); shares != nil {
		values["jain"] = measure.Jain(shares)
		total := 0
		for _, s := range shares {
			total += s
		}
		values["worst"] = float64(slices.Min(shares)) / (float64(total) / float64(len(shares)))
	}
	return values
}

type spent struct{ server, client float64 } // seconds of processor time

func (b *Bench) spent() (spent, error) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return spent{}, err
	}
	cpu, err := b.Cluster.CPU()
	return spent{server: cpu, client: seconds(own.Utime) + seconds(own.Stime)}, err
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
