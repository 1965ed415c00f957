package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"zamok/bench/driver"
	"zamok/bench/measure"
	"zamok/bench/server"
	"zamok/cmd/zamok/loadgen"
)

const (
	parallelOpens = 32               // clients that open or close at the same time
	openTimeout   = 20 * time.Second // for one client
)

// Bench is one running system with its open clients. One goroutine calls its methods.
type Bench struct {
	System  driver.System
	Cluster *server.Cluster
	TTL     time.Duration
	Window  time.Duration // of measuring

	Spans   []measure.Span  // of the last Timeline
	clients []driver.Client // each with one goroutine
	// cycles per second of CapacityClients in a closed loop; 0 = not measured yet
	capacity float64
}

func (b *Bench) session(width int) driver.Session {
	return driver.Session{Endpoints: b.Cluster.Endpoints, TTL: b.TTL, Width: width}
}

func (b *Bench) open(ctx context.Context, s driver.Session) (driver.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return b.System.Open(ctx, s)
}

// Ready waits until a lock can be acquired and released.
func (b *Bench) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		if err := b.Cluster.Alive(); err != nil {
			return err
		}
		if last = b.lockOnce(ctx); last == nil {
			return nil
		}
		loadgen.Sleep(ctx, 100*time.Millisecond)
	}
	return fmt.Errorf("not ready after a minute: %w", last)
}

func (b *Bench) lockOnce(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := b.System.Open(ctx, b.session(1))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	unlock, err := c.Lock(ctx, "ready")
	if err != nil {
		return err
	}
	return unlock(ctx)
}

// openClients returns n clients, each with its own session and connection: those that are open, and
// new ones.
func (b *Bench) openClients(ctx context.Context, n int) ([]driver.Client, error) {
	opened, _, err := b.openMany(ctx, n-len(b.clients), b.session(1))
	b.clients = append(b.clients, opened...)
	if err != nil {
		return nil, err
	}
	return b.clients[:n], nil
}

// openMany opens n clients, some at a time. After an error it returns those that it has opened. end
// closes them.
func (b *Bench) openMany(ctx context.Context, n int,
	s driver.Session) (opened []driver.Client, end func(), err error) {
	end = sync.OnceFunc(func() { closeAll(opened) })
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(parallelOpens)
	for range n {
		all.Go(func() error {
			c, err := b.open(ctx, s)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			opened = append(opened, c)
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return opened, end, fmt.Errorf("%d of %d clients did not open, one because: %w",
			n-len(opened), n, err)
	}
	return opened, end, nil
}

// Close closes the clients.
func (b *Bench) Close() {
	closeAll(b.clients)
	b.clients = nil
}

// closeAll closes clients, some at a time. Errors do not matter.
func closeAll(clients []driver.Client) {
	var all errgroup.Group
	all.SetLimit(parallelOpens)
	for _, c := range clients {
		all.Go(c.Close)
	}
	_ = all.Wait()
}

// runAll runs n workers until all have returned. abandon makes those return that ignore their
// context.
func runAll(ctx context.Context, n int, abandon func(),
	work func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = work(ctx, i) })
	}
	loadgen.Drain(&running, cancel, abandon)
	return errors.Join(errs...)
}
