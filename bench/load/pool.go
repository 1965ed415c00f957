package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zamok/bench/peer"
	"zamok/bench/server"
)

const (
	parallelOpens = 32               // clients that open or close at the same time
	openTimeout   = 20 * time.Second // for one client
	drainTimeout  = 20 * time.Second // for all that still wait when the measuring is over
	cancelTimeout = 3 * time.Second  // after that, for those whose client can be cancelled
)

// Bench is one running system with the clients opened on it so far. One goroutine calls its methods.
type Bench struct {
	System  peer.System
	Cluster *server.Cluster
	TTL     time.Duration
	Window  time.Duration // of measuring

	mu      sync.Mutex
	clients []peer.Client // each with one goroutine
}

func (b *Bench) session(width int) peer.Session {
	return peer.Session{Endpoints: b.Cluster.Endpoints, TTL: b.TTL, Width: width}
}

func (b *Bench) open(ctx context.Context, s peer.Session) (peer.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return b.System.Open(ctx, s)
}

// Ready waits until the system gives and takes back a lock.
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
		sleepContext(ctx, 100*time.Millisecond)
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

// openClients gives n clients with a session and connection of their own: those that there are, and new ones.
func (b *Bench) openClients(ctx context.Context, n int) ([]peer.Client, error) {
	b.mu.Lock()
	missing := n - len(b.clients)
	b.mu.Unlock()
	opened, _, err := b.openMany(ctx, missing, b.session(1))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients = append(b.clients, opened...)
	if err != nil {
		return nil, err
	}
	return b.clients[:n], nil
}

// openMany opens n clients, some at a time, and says how many could not be.
func (b *Bench) openMany(ctx context.Context, n int, s peer.Session) (opened []peer.Client, failed int, err error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	slots := make(chan struct{}, parallelOpens)
	for range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			c, openErr := b.open(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			if openErr != nil {
				failed++
				err = fmt.Errorf("%d of %d clients did not open, the last because: %w", failed, n, openErr)
				return
			}
			opened = append(opened, c)
		})
	}
	running.Wait()
	return opened, failed, err
}

// Close ends the clients.
func (b *Bench) Close() {
	b.mu.Lock()
	clients := b.clients
	b.clients = nil
	b.mu.Unlock()
	closeAll(clients)
}

// closeAll ends clients, some at a time. What a system says to a goodbye is not measured.
func closeAll(clients []peer.Client) {
	var running sync.WaitGroup
	slots := make(chan struct{}, parallelOpens)
	for _, c := range clients {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			_ = c.Close()
		})
	}
	running.Wait()
}

// drainWorkers waits for workers, first kindly, then by ending their context, then by abandon, which must make
// every call return.
func drainWorkers(workers *sync.WaitGroup, cancel context.CancelFunc, abandon func()) {
	done := make(chan struct{})
	go func() { // ends with the last worker, which abandon ends
		workers.Wait()
		close(done)
	}()
	for _, step := range []struct {
		patience time.Duration
		then     func()
	}{{drainTimeout, cancel}, {cancelTimeout, abandon}} {
		timer := time.NewTimer(step.patience)
		select {
		case <-done:
			timer.Stop()
			return
		case <-timer.C:
			step.then()
		}
	}
	<-done
}

func sleepContext(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
