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

// load is programs that lock and unlock, each again as soon as it is done.
type load struct {
	client  *client.Client
	done    atomic.Int64 // operations that succeeded
	longest atomic.Int64 // of them, in nanoseconds

	mu     sync.Mutex
	tokens [rollingNames]client.Token
	errs   []error

	ending chan struct{} // closed to end the workers
	ended  sync.WaitGroup
}

func startLoad(c *client.Client) *load {
	l := &load{client: c, ending: make(chan struct{})}
	for i := range rollingWorkers {
		l.ended.Go(func() { l.work(i) })
	}
	return l
}

func (l *load) work(i int) {
	for {
		select {
		case <-l.ending:
			return
		default:
		}
		n := i % rollingNames
		if err := l.once(n, "rolling/"+strconv.Itoa(n), i >= rollingNames); err != nil {
			l.mu.Lock()
			l.errs = append(l.errs, err)
			l.mu.Unlock()
			return
		}
	}
}

// once takes and releases a lock. Who only tries is refused now and then, which is no failure.
func (l *load) once(n int, name string, try bool) error {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	take := l.client.Lock
	if try {
		take = l.client.TryLock
	}
	lock, err := take(ctx, name)
	if errors.Is(err, client.ErrNotAcquired) {
		l.count(begun)
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
	l.count(begun)
	return nil
}

func (l *load) count(begun time.Time) {
	l.done.Add(1)
	took := int64(time.Since(begun))
	for was := l.longest.Load(); took > was && !l.longest.CompareAndSwap(was, took); was = l.longest.Load() {
	}
}

// more waits until so many more operations have succeeded. How fast that goes is the machine's affair, as long
// as it goes on.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	for now, goal := l.done.Load(), l.done.Load()+n; now < goal && len(l.failed()) == 0; now = l.done.Load() {
		comes(t, "an end of another operation", func() bool { return l.done.Load() > now || len(l.failed()) > 0 })
	}
}

func (l *load) failed() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errs
}

func (l *load) end() {
	close(l.ending)
	l.ended.Wait()
}

// Each node is restarted in turn, as for a new version, while programs lock and unlock. None of them meets an
// error, and a lock that is held through all of it is never lost.
func TestNodesAreRestartedInTurnUnderLoad(t *testing.T) {
	t.Parallel()
	s := startServers(t, nil)
	for i := range s.nodes {
		s.ready(t, i)
	}
	c, err := client.New(client.Config{
		Endpoints: []string{s.address(0, 0), s.address(1, 0), s.address(2, 0)}, TTL: rollingTTL, RequestTimeout: rollingTTL,
	})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	kept, err := c.Lock(context.Background(), "kept")
	require.NoError(t, err)
	l := startLoad(c)
	stop := sync.OnceFunc(l.end)
	t.Cleanup(stop)
	l.more(t, 100)
	for i := range s.nodes {
		begun := time.Now()
		require.NoError(t, s.nodes[i].Process.Signal(syscall.SIGTERM))
		end := s.nodes[i].wait(t)
		require.Equal(t, 0, end.code, end.errs)
		s.start(t, i)
		s.ready(t, i)
		t.Logf("n%d was restarted in %v", i+1, time.Since(begun))
		l.more(t, 100)
	}
	stop()
	require.Empty(t, l.failed())
	require.NoError(t, kept.Err(), "a lock that was held was lost")
	require.NoError(t, kept.Unlock(context.Background()))
	t.Logf("%d operations, the longest %v", l.done.Load(), time.Duration(l.longest.Load()))
}
