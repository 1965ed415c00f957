package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"zamok/client"
)

// benchVerb is `zamok bench`.
type benchVerb struct {
	connection
	clients  int
	waiters  int
	duration time.Duration
	prefix   string
}

const (
	benchClientsMax = 4096
	// parkedPerClient is below what a session may have in hand.
	parkedPerClient = 4000
	// benchPatience is how much longer than --duration it may take before the cluster counts as lost.
	benchPatience = 30 * time.Second
	// parkPatience is how long the waiters of `parked` may take to stand in the queue, and to leave it.
	parkPatience = 5 * time.Minute
	progressTick = 500 * time.Millisecond
)

func newBench(a *app) *cobra.Command {
	v := &benchVerb{}
	cmd := &cobra.Command{
		Use:   "bench [uncontended|contended|parked]",
		Short: "measure lock throughput and latency",
		Long: `Measures a cluster with locks whose names begin with --prefix.

  uncontended  each client repeatedly acquires and releases its own lock
               (default)
  contended    all clients acquire and release one lock; handover is the time
               from a release to the next grant
  parked       --waiters wait for one lock that is held for --duration, which
               shows their cost; then the lock passes through the whole queue

Each client has its own session and connections.`,
		Example:   "  zamok bench\n  zamok bench contended --clients 4 --duration 30s\n  zamok bench parked --waiters 100000 --clients 100",
		GroupID:   groupLook,
		ValidArgs: []string{"uncontended", "contended", "parked"},
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			shape := "uncontended"
			if len(args) > 0 {
				shape = args[0]
			}
			if err := v.check(shape); err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return cause(ctx, v.run(ctx, shape))
		},
	}
	v.connection.flags(a, cmd)
	f := cmd.Flags()
	f.IntVar(&v.clients, "clients", 16, "number of clients, each with its own session")
	f.IntVar(&v.waiters, "waiters", 10_000, "total number of waiters in `parked`")
	f.DurationVar(&v.duration, "duration", 10*time.Second, "length of the measurement")
	f.StringVar(&v.prefix, "prefix", "bench/", "prefix of the names of its locks")
	return cmd
}

func (v *benchVerb) check(shape string) error {
	switch {
	case v.clients < 1 || v.clients > benchClientsMax:
		return fmt.Errorf("--clients is %d: it is from 1 to %d", v.clients, benchClientsMax)
	case v.duration <= 0:
		return fmt.Errorf("--duration is %v: it must be above 0", v.duration)
	case shape == "parked" && (v.waiters < 1 || v.waiters > v.clients*parkedPerClient):
		return fmt.Errorf("--waiters is %d: it is from 1 to %d for each of the %d --clients", v.waiters, parkedPerClient, v.clients)
	}
	return nil
}

// benchDoc is what came out.
type benchDoc struct {
	Shape     string      `json:"shape"`
	Clients   int         `json:"clients"`
	Took      string      `json:"took"`
	Rounds    uint64      `json:"rounds"` // of lock and unlock
	PerSecond float64     `json:"per_second"`
	Lock      *latencyDoc `json:"lock,omitempty"`
	Unlock    *latencyDoc `json:"unlock,omitempty"`
	Handover  *latencyDoc `json:"handover,omitempty"`

	Waiters   int    `json:"waiters,omitempty"`
	Parking   string `json:"parking,omitempty"` // until all waited
	WaiterRAM uint64 `json:"client_bytes_per_waiter,omitempty"`
}

// bench is one measurement.
type bench struct {
	*benchVerb
	name    string // of the locks, unlike any other bench's
	clients []*client.Client
	rounds  atomic.Uint64
	began   time.Time

	mu                     sync.Mutex
	lock, unlock, handover latencies
}

func (v *benchVerb) run(ctx context.Context, shape string) error {
	cfg, err := v.config()
	if err != nil {
		return err
	}
	cfg.Label = clip(whoWeAre()+": zamok bench", labelMax)
	cfg.Logger = slog.New(slog.DiscardHandler) // what goes wrong is an error here
	b := &bench{benchVerb: v, name: v.prefix + rand.Text()[:8]}
	defer func() { b.close() }()
	for range v.clients {
		c, err := client.New(cfg)
		if err != nil {
			return err
		}
		b.clients = append(b.clients, c)
	}
	patience := v.duration + benchPatience
	if shape == "parked" {
		patience += 2 * parkPatience
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the cluster was too slow, or is lost: no end after %v", patience))
	defer cancel()
	// The first lock of each opens its session, which is not measured.
	err = b.each(ctx, func(ctx context.Context, i int, c *client.Client) error {
		return c.Do(ctx, b.own(i), func(context.Context, *client.Lock) error { return nil })
	})
	if err != nil {
		return err
	}
	doc := benchDoc{Shape: shape, Clients: v.clients}
	b.began = time.Now()
	switch shape {
	case "parked":
		err = b.park(ctx, &doc)
	case "contended":
		err = b.race(ctx, func(int) string { return b.name })
	default:
		err = b.race(ctx, b.own)
	}
	if err != nil {
		return err
	}
	return b.report(&doc)
}

func (b *bench) own(i int) string { return fmt.Sprintf("%s/%d", b.name, i) }

// each runs f for all clients at once, until the first error.
func (b *bench) each(ctx context.Context, f func(ctx context.Context, i int, c *client.Client) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i, c := range b.clients {
		all.Go(func() {
			if err := f(ctx, i, c); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// race has all clients lock and unlock for the duration.
func (b *bench) race(ctx context.Context, name func(i int) string) error {
	defer b.progress("rounds", &b.rounds)()
	shared := name(0) == name(1)
	var released atomic.Int64 // when the shared lock was, after the beginning; 0 = not yet
	return b.each(ctx, func(ctx context.Context, i int, c *client.Client) error {
		var lock, unlock, handover latencies
		for time.Since(b.began) < b.duration {
			asked := time.Now()
			held, err := c.Lock(ctx, name(i))
			if err != nil {
				return err
			}
			granted := time.Now()
			if at := time.Duration(released.Load()); shared && at > 0 {
				handover.add(granted.Sub(b.began) - at)
			}
			released.Store(int64(granted.Sub(b.began)))
			if err := held.Unlock(ctx); err != nil {
				return err
			}
			unlock.add(time.Since(granted))
			lock.add(granted.Sub(asked))
			b.rounds.Add(1)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lock.merge(&lock)
		b.unlock.merge(&unlock)
		b.handover.merge(&handover)
		return nil
	})
}

// park has many wait for one lock, and then lets it go through the queue.
func (b *bench) park(ctx context.Context, doc *benchDoc) error {
	held, err := b.clients[0].Lock(ctx, b.name)
	if err != nil {
		return err
	}
	before := memoryInUse()
	var released atomic.Int64
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := make(chan error, b.waiters)
	for i := range b.waiters {
		go func() { // ends with ctx at the latest; all are waited for below
			ends <- b.clients[i%len(b.clients)].Do(ctx, b.name, func(context.Context, *client.Lock) error {
				now := time.Since(b.began)
				b.mu.Lock()
				defer b.mu.Unlock()
				b.handover.add(now - time.Duration(released.Swap(int64(now))))
				b.rounds.Add(1)
				return nil
			})
		}()
	}
	waitAll := func(err error) error {
		if err != nil {
			cancel()
		}
		for range b.waiters {
			if e := <-ends; err == nil && e != nil {
				err = e
				cancel()
			}
		}
		return err
	}
	if err := b.awaitQueue(ctx); err != nil {
		return waitAll(err)
	}
	doc.Parking = brief(time.Since(b.began))
	if after := memoryInUse(); after > before {
		doc.WaiterRAM = (after - before) / uint64(b.waiters)
	}
	rest := time.NewTimer(b.duration)
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
		return waitAll(context.Cause(ctx))
	}
	doc.Waiters = b.waiters
	defer b.progress("handovers", &b.rounds)()
	b.began = time.Now()
	return waitAll(held.Unlock(ctx))
}

// awaitQueue returns when all waiters stand in the queue.
func (b *bench) awaitQueue(ctx context.Context) error {
	var waiting atomic.Uint64
	defer b.progress("waiting", &waiting)()
	look := time.NewTicker(progressTick / 5)
	defer look.Stop()
	for {
		lock, err := b.clients[0].Get(ctx, b.name, 1)
		if err != nil {
			return err
		}
		if waiting.Store(uint64(lock.Waiters)); lock.Waiters >= b.waiters {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func memoryInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// progress tells a person how far it is, until the returned function is called.
func (b *bench) progress(what string, n *atomic.Uint64) (stop func()) {
	if !isTerminal(b.app.stderr) {
		return func() {}
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(progressTick)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(b.app.stderr, "%s%d %s after %v", eraseLine, n.Load(), what, time.Since(b.began).Round(time.Second))
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

// close ends all sessions at once.
func (b *bench) close() {
	var all sync.WaitGroup
	for _, c := range b.clients {
		all.Go(func() { _ = c.Close() }) // what is left ends with its lease
	}
	all.Wait()
}

func (b *bench) report(doc *benchDoc) error {
	took := time.Since(b.began)
	doc.Took, doc.Rounds = brief(took), b.rounds.Load()
	doc.PerSecond = float64(int(float64(doc.Rounds)/took.Seconds()*10)) / 10
	for _, m := range []struct {
		to **latencyDoc
		of *latencies
	}{{&doc.Lock, &b.lock}, {&doc.Unlock, &b.unlock}, {&doc.Handover, &b.handover}} {
		if m.of.n > 0 {
			d := m.of.doc()
			*m.to = &d
		}
	}
	return b.app.print(doc, func(w io.Writer) {
		if doc.Waiters > 0 {
			fmt.Fprintf(w, "%d waiters of %d clients stood in the queue after %s, at %d bytes each here.\n",
				doc.Waiters, doc.Clients, doc.Parking, doc.WaiterRAM)
			fmt.Fprintf(w, "Then the lock went through all of them in %s: %.1f handovers a second.\n", doc.Took, doc.PerSecond)
		} else {
			fmt.Fprintf(w, "%s, %d clients: %d rounds of lock and unlock in %s, %.1f a second.\n",
				doc.Shape, doc.Clients, doc.Rounds, doc.Took, doc.PerSecond)
		}
		if doc.Lock != nil {
			doc.Lock.write(w, "lock")
		}
		if doc.Unlock != nil {
			doc.Unlock.write(w, "unlock")
		}
		if doc.Handover != nil {
			doc.Handover.write(w, "handover, from a release to the next grant")
		}
	})
}
