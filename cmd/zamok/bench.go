package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"zamok/client"
	"zamok/cmd/zamok/loadgen"
)

// benchCommand is `zamok bench`.
type benchCommand struct {
	connectionFlags
	clients  int
	waiters  int
	duration time.Duration
	prefix   string
}

const (
	benchClientsMax = 4096
	// waitersPerClientMax is below the maximum number of tickets of a session.
	waitersPerClientMax = 4000
	// overrunMax is how much longer than --duration a run may take before it fails.
	overrunMax = 30 * time.Second
	// queueTimeout is how long the waiters of `parked` may take to enter the queue, and to leave
	// it.
	queueTimeout     = 5 * time.Minute
	progressInterval = 500 * time.Millisecond
)

func newBench(a *app) *cobra.Command {
	v := &benchCommand{}
	cmd := &cobra.Command{
		Use:   "bench [uncontended|contended|parked]",
		Short: "measure lock throughput and latency",
		Long: `Measures a cluster with locks whose names begin with --prefix.

  uncontended  each client repeatedly acquires and releases its own lock
               (default)
  contended    all clients acquire and release one lock; handoff is the time
               from a release to the next grant
  parked       --waiters wait for one lock that is held for --duration, which
               shows their cost; then the lock passes through the whole queue

Each client has its own session and connections.`,
		Example: "  zamok bench\n  zamok bench contended --clients 4 --duration 30s\n  zamok " +
			"bench parked --waiters 100000 --clients 100",
		GroupID:   groupInspect,
		ValidArgs: []string{"uncontended", "contended", "parked"},
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			workload := "uncontended"
			if len(args) > 0 {
				workload = args[0]
			}
			if err := v.validate(workload); err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			ctx, stop := signalContext(cmd.Context())
			defer stop()
			return signalOr(ctx, v.run(ctx, workload))
		},
	}
	v.connectionFlags.register(a, cmd)
	f := cmd.Flags()
	f.IntVar(&v.clients, "clients", 16, "`number` of clients, each with its own session")
	f.IntVar(&v.waiters, "waiters", 10_000, "total `number` of waiters, with parked")
	f.DurationVar(&v.duration, "duration", 10*time.Second, "length of the measurement")
	f.StringVar(&v.prefix, "prefix", "bench/", "`prefix` of the names of the locks")
	return cmd
}

func (v *benchCommand) validate(workload string) error {
	switch {
	case v.clients < 1 || v.clients > benchClientsMax:
		return fmt.Errorf("--clients is %d: it must be from 1 to %d", v.clients, benchClientsMax)
	case v.duration <= 0:
		return fmt.Errorf("--duration is %v: it must be above 0", v.duration)
	case workload == "parked" && (v.waiters < 1 || v.waiters > v.clients*waitersPerClientMax):
		return fmt.Errorf("--waiters is %d: it must be from 1 to %d for each of the %d --clients",
			v.waiters, waitersPerClientMax, v.clients)
	}
	return nil
}

// benchDoc is the result.
type benchDoc struct {
	Workload  string      `json:"workload"`
	Clients   int         `json:"clients"`
	Took      string      `json:"took"`
	Cycles    uint64      `json:"cycles,string"` // of lock and unlock
	PerSecond float64     `json:"per_second"`
	Errors    uint64      `json:"errors,string,omitempty"`
	LastError string      `json:"last_error,omitempty"`
	Lock      *latencyDoc `json:"lock,omitempty"`
	Unlock    *latencyDoc `json:"unlock,omitempty"`
	Handoff   *latencyDoc `json:"handoff,omitempty"`

	Waiters        int    `json:"waiters,omitempty"`
	QueueTime      string `json:"queue_time,omitempty"` // until all waited
	BytesPerWaiter uint64 `json:"client_bytes_per_waiter,string,omitempty"`
}

// bench is one measurement.
type bench struct {
	*benchCommand
	name    string // of the locks, unlike any other bench's
	clients []*client.Client
	cycles  atomic.Uint64 // so far
	began   time.Time
}

func (v *benchCommand) run(ctx context.Context, workload string) error {
	cfg, err := v.config()
	if err != nil {
		return err
	}
	cfg.Label = truncateUTF8(processLabel()+": zamok bench", labelBytesMax)
	cfg.Logger = slog.New(slog.DiscardHandler) // errors are counted and printed
	b := &bench{benchCommand: v, name: v.prefix + rand.Text()[:8]}
	defer func() { b.close() }()
	for range v.clients {
		c, err := client.New(cfg)
		if err != nil {
			return err
		}
		b.clients = append(b.clients, c)
	}
	timeout := v.duration + overrunMax
	if workload == "parked" {
		timeout += 2 * queueTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("the measurement was aborted after %v: the cluster is too slow, or unavailable",
			timeout))
	defer cancel()
	if err := b.openSessions(ctx); err != nil {
		return err
	}
	doc := benchDoc{Workload: workload, Clients: v.clients}
	b.began = time.Now()
	switch workload {
	case "parked":
		err = b.runParked(ctx, &doc)
	case "contended":
		err = b.runLoop(ctx, &doc, func(int) string { return b.name })
	default:
		err = b.runLoop(ctx, &doc, b.ownLockName)
	}
	if err != nil {
		return err
	}
	return b.report(&doc)
}

func (b *bench) ownLockName(i int) string { return fmt.Sprintf("%s/%d", b.name, i) }

// openSessions takes a lock with each client, so that opening its session is not measured.
func (b *bench) openSessions(ctx context.Context) error {
	errs := make([]error, len(b.clients))
	var all sync.WaitGroup
	for i, c := range b.clients {
		all.Go(func() {
			errs[i] = c.Do(ctx, b.ownLockName(i),
				func(context.Context, *client.Lock) error { return nil })
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// runLoop has all clients lock and unlock for the duration.
func (b *bench) runLoop(ctx context.Context, doc *benchDoc, name func(i int) string) error {
	defer b.progress("cycles", &b.cycles)()
	loop := loadgen.Loop{Workers: len(b.clients), Key: name, Window: b.duration,
		Lock: func(ctx context.Context, i int, key string) (func(context.Context) error, error) {
			lock, err := b.clients[i].Lock(ctx, key)
			if err != nil {
				return nil, err
			}
			b.cycles.Add(1)
			return lock.Unlock, nil
		}}
	r := loop.Run(ctx)
	if r.Granted == 0 && r.LastErr != nil || ctx.Err() != nil {
		return cmp.Or(context.Cause(ctx), r.LastErr)
	}
	doc.measured(r.Granted, b.duration)
	doc.Lock, doc.Unlock, doc.Handoff = newLatencyDoc(&r.Lock), newLatencyDoc(&r.Unlock),
		newLatencyDoc(&r.Handoff)
	if doc.Errors = r.Errors; r.Errors > 0 {
		doc.LastError = r.LastErr.Error()
	}
	return nil
}

func (d *benchDoc) measured(cycles uint64, took time.Duration) {
	d.Took, d.Cycles = shortDuration(took), cycles
	d.PerSecond = math.Round(float64(cycles)/took.Seconds()*10) / 10
}

// runParked has many wait for one lock, and then lets it go through the queue.
func (b *bench) runParked(ctx context.Context, doc *benchDoc) error {
	held, err := b.clients[0].Lock(ctx, b.name)
	if err != nil {
		return err
	}
	began := b.began
	before := heapAndStackBytes()
	var handoff loadgen.Histogram
	var released atomic.Int64
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, b.waiters)
	for i := range b.waiters {
		go func() { // ends with ctx at the latest; all are waited for below
			results <- b.clients[i%len(b.clients)].Do(ctx, b.name,
				func(context.Context, *client.Lock) error {
					now := time.Since(began)
					handoff.Add(now - time.Duration(released.Swap(int64(now))))
					b.cycles.Add(1)
					return nil
				})
		}()
	}
	waitAll := func(err error) error {
		if err != nil {
			cancel()
		}
		for range b.waiters {
			if e := <-results; err == nil && e != nil {
				err = e
				cancel()
			}
		}
		return err
	}
	if err := b.awaitQueue(ctx); err != nil {
		return waitAll(err)
	}
	doc.QueueTime = shortDuration(time.Since(b.began))
	if after := heapAndStackBytes(); after > before {
		doc.BytesPerWaiter = (after - before) / uint64(b.waiters)
	}
	holdTimer := time.NewTimer(b.duration)
	defer holdTimer.Stop()
	select {
	case <-holdTimer.C:
	case <-ctx.Done():
		return waitAll(context.Cause(ctx))
	}
	doc.Waiters = b.waiters
	defer b.progress("handoffs", &b.cycles)()
	releasing := time.Since(began)
	released.Store(int64(releasing))
	err = waitAll(held.Unlock(ctx))
	doc.measured(b.cycles.Load(), time.Since(began)-releasing)
	doc.Handoff = newLatencyDoc(&handoff)
	return err
}

// awaitQueue returns when all waiters are in the queue.
func (b *bench) awaitQueue(ctx context.Context) error {
	var waiting atomic.Uint64
	defer b.progress("waiting", &waiting)()
	poll := time.NewTicker(progressInterval / 5)
	defer poll.Stop()
	for {
		lock, err := b.clients[0].Get(ctx, b.name, 1)
		if err != nil {
			return err
		}
		if waiting.Store(uint64(lock.Waiters)); lock.Waiters >= b.waiters {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func heapAndStackBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// progress shows how far the run is, until the returned function is called.
func (b *bench) progress(what string, n *atomic.Uint64) (stop func()) {
	if !isTerminal(b.app.stderr) {
		return func() {}
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(b.app.stderr, "%s%d %s after %v", eraseLine, n.Load(), what,
					time.Since(b.began).Round(time.Second))
			case <-end:
				fmt.Fprint(b.app.stderr, eraseLine)
				return
			}
		}
	}()
	return func() {
		close(end)
		<-done
	}
}

// close closes all sessions concurrently.
func (b *bench) close() {
	var all sync.WaitGroup
	for _, c := range b.clients {
		all.Go(func() { _ = c.Close() }) // a session that is not closed expires
	}
	all.Wait()
}

func (b *bench) report(doc *benchDoc) error {
	return b.app.print(doc, func(w io.Writer) {
		if doc.Waiters > 0 {
			fmt.Fprintf(w,
				"%d waiters of %d clients were in the queue after %s, with %d bytes of memory "+
					"each in this process.\n",
				doc.Waiters, doc.Clients, doc.QueueTime, doc.BytesPerWaiter)
			fmt.Fprintf(w, "Then all of them had the lock within %s: %.1f handoffs per second.\n",
				doc.Took, doc.PerSecond)
		} else {
			fmt.Fprintf(w, "%s, %d clients: %d cycles of lock and unlock in %s, %.1f per second.\n",
				doc.Workload, doc.Clients, doc.Cycles, doc.Took, doc.PerSecond)
		}
		if doc.Errors > 0 {
			fmt.Fprintf(w, "%d calls failed, the last with: %s\n", doc.Errors, doc.LastError)
		}
		doc.Lock.write(w, "lock")
		doc.Unlock.write(w, "unlock")
		doc.Handoff.write(w, "handoff, from a release to the next grant")
	})
}
