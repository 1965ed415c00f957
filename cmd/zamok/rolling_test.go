//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
)

const (
	rollingWorkers = 8
	rollingNames   = 4
	// rollingTTL outlives the changes of leader, on a busy machine too.
	rollingTTL = 15 * time.Second
)

// lockLoad is programs that lock and unlock, each again as soon as it is done.
type lockLoad struct {
	client  *client.Client
	done    atomic.Int64 // operations that succeeded
	longest atomic.Int64 // of them, in nanoseconds

	mu     sync.Mutex
	tokens [rollingNames]client.Token
	errs   []error

	stopping chan struct{} // closed to end the workers
	workers  sync.WaitGroup
}

func startLoad(c *client.Client) *lockLoad {
	l := &lockLoad{client: c, stopping: make(chan struct{})}
	for i := range rollingWorkers {
		l.workers.Go(func() { l.work(i) })
	}
	return l
}

func (l *lockLoad) work(i int) {
	for {
		select {
		case <-l.stopping:
			return
		default:
		}
		n := i % rollingNames
		if err := l.lockOnce(n, "rolling/"+strconv.Itoa(n), i >= rollingNames); err != nil {
			l.mu.Lock()
			l.errs = append(l.errs, err)
			l.mu.Unlock()
			return
		}
	}
}

// lockOnce takes and releases a lock. Who only tries is refused now and then, which is no failure.
func (l *lockLoad) lockOnce(n int, name string, try bool) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	lockFunc := l.client.Lock
	if try {
		lockFunc = l.client.TryLock
	}
	lock, err := lockFunc(ctx, name)
	if errors.Is(err, client.ErrNotAcquired) {
		l.record(start)
		return nil
	}
	if err != nil {
		return fmt.Errorf("taking %s: %w", name, err)
	}
	l.mu.Lock()
	last := l.tokens[n]
	l.tokens[n] = lock.Token()
	l.mu.Unlock()
	if lock.Token() <= last {
		return fmt.Errorf("%s: token %d after %d", name, lock.Token(), last)
	}
	if err := lock.Unlock(ctx); err != nil {
		return fmt.Errorf("releasing %s: %w", name, err)
	}
	l.record(start)
	return nil
}

func (l *lockLoad) record(start time.Time) {
	l.done.Add(1)
	took := int64(time.Since(start))
	for was := l.longest.Load(); took > was &&
		!l.longest.CompareAndSwap(was, took); was = l.longest.Load() {
	}
}

// awaitOperations waits until so many more operations have succeeded. How fast that goes is the
// machine's affair, as long as it continues.
func (l *lockLoad) awaitOperations(t *testing.T, n int64) {
	t.Helper()
	for now, goal := l.done.Load(),
		l.done.Load()+n; now < goal && len(l.errors()) == 0; now = l.done.Load() {
		awaitCondition(t, "an end of another operation",
			func() bool { return l.done.Load() > now || len(l.errors()) > 0 })
	}
}

func (l *lockLoad) errors() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errs
}

func (l *lockLoad) stop() {
	close(l.stopping)
	l.workers.Wait()
}

// Each node is restarted in turn, as for a new version, while programs lock and unlock. None of
// them meets an error, and a lock that is held through all of it is never lost.
func TestRollingRestartUnderLoad(t *testing.T) {
	takesTime(t)
	t.Parallel()
	s := startServers(t, nil)
	for i := range s.nodes {
		s.awaitReady(t, i)
	}
	c, err := client.New(client.Config{
		Endpoints: []string{s.address(0, 0), s.address(1, 0), s.address(2, 0)}, TTL: rollingTTL,
		RequestTimeout: rollingTTL,
	})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	kept, err := c.Lock(context.Background(), "kept")
	require.NoError(t, err)
	l := startLoad(c)
	stop := sync.OnceFunc(l.stop)
	t.Cleanup(stop)
	l.awaitOperations(t, 100)
	for i := range s.nodes {
		begun := time.Now()
		require.NoError(t, s.nodes[i].Process.Signal(syscall.SIGTERM))
		end := s.nodes[i].wait(t)
		require.Equal(t, 0, end.code, end.stderr)
		s.start(t, i)
		s.awaitReady(t, i)
		t.Logf("n%d was restarted in %v", i+1, time.Since(begun))
		l.awaitOperations(t, 100)
	}
	stop()
	require.Empty(t, l.errors())
	require.NoError(t, kept.Err(), "a lock that was held was lost")
	require.NoError(t, kept.Unlock(context.Background()))
	t.Logf("%d operations, the longest %v", l.done.Load(), time.Duration(l.longest.Load()))
}
