package client_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
)

// timedOut looks that the cluster ended a wait: nothing is in doubt, and no context ended.
func timedOut(t testing.TB, err error) {
	t.Helper()
	var not *client.NotAcquiredError
	require.ErrorAs(t, err, &not)
	require.Equal(t, []string{"x"}, not.Names)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, client.ErrUnavailable)
}

// The cluster ends a wait at its limit: when the call returns, nothing is left of the request.
// TryLock with a limit is Lock with it.
func TestTheClusterEndsALimitedWait(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b, ctx := c.client(nil), c.client(nil), soon(t)
	held, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	const limit = 200 * time.Millisecond
	for name, acquire := range map[string]func(context.Context, string,
		...client.Option) (*client.Lock, error){"Lock": b.Lock, "TryLock": b.TryLock} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, err := acquire(ctx, "x", client.WithWait(limit))
			timedOut(t, err)
			require.GreaterOrEqual(t, time.Since(began), limit)
			info, err := a.Get(ctx, "x", 0)
			require.NoError(t, err)
			require.Zero(t, info.Waiters, "it is still in the queue")

			_, err = acquire(ctx, "x", client.WithWait(-time.Second))
			timedOut(t, err)
			require.ErrorContains(t, err, "held by", "without a wait the holder is named")

			short, cancel := context.WithCancel(ctx)
			waits := make(chan error)
			go func() {
				_, err := acquire(short, "x", client.WithWait(1<<63-1))
				waits <- err
			}()
			c.waiting(a, "x", 1)
			cancel()
			require.ErrorIs(t, until(t, waits, "the end of a cancelled wait"), context.Canceled)
			c.waiting(a, "x", 0)
		})
	}

	granted := make(chan *client.Lock)
	go func() {
		l, err := b.TryLock(ctx, "x", client.WithWait(testTimeout))
		if err != nil {
			t.Error(err)
		}
		granted <- l
	}()
	c.waiting(a, "x", 1)
	require.NoError(t, held.Unlock(ctx))
	require.NoError(t, until(t, granted, "the lock").Unlock(ctx))
}

// A limit holds over a change of the leader, and the queue position is kept.
func TestALimitedWaitOutlivesTheLeader(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 3)
	a, b, ctx := c.client(nil), c.client(nil), soon(t)
	_, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	waits := make(chan error)
	const limit = 2 * time.Second
	began := time.Now()
	go func() {
		_, err := b.Lock(ctx, "x", client.WithWait(limit))
		waits <- err
	}()
	c.waiting(a, "x", 1)
	require.NoError(t, c.leader().Kill())
	timedOut(t, until(t, waits, "the end of the wait"))
	require.GreaterOrEqual(t, time.Since(began), limit)
	c.waiting(a, "x", 0)
}

// If the cluster's word does not come, a limited wait ends RequestTimeout later by itself. What was
// sent is in doubt then, and is cancelled in the background; what was kept back is certain.
func TestALimitedWaitEndsWithoutTheCluster(t *testing.T) {
	t.Parallel()
	c, g := startCluster(t, 1), &gate{}
	a, b, ctx := c.client(nil), c.client(func(cfg *client.Config) {
		cfg.Dialer, cfg.RequestTimeout = g.dial, 300*time.Millisecond
	}), soon(t)
	held, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	waits := make(chan error)
	const limit = 2 * time.Second
	began := time.Now()
	go func() {
		_, err := b.Lock(ctx, "x", client.WithWait(limit))
		waits <- err
	}()
	c.waiting(a, "x", 1)
	g.cut()
	require.NoError(t, held.Unlock(ctx)) // so it is granted to b, who does not learn that
	err = until(t, waits, "the end of the wait")
	require.GreaterOrEqual(t, time.Since(began), limit+300*time.Millisecond)
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "it gives up by itself")
	unknown(t, err)
	info, err := a.Get(ctx, "x", 0)
	require.NoError(t, err)
	require.Equal(t, 1, info.Holders, "the cluster holds it for b")

	_, err = b.Lock(ctx, "y", client.WithWait(time.Millisecond))
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.Equal(t, client.NotDone, e.Outcome, "%v", err)
	g.open()
	c.free(a, "x")
	c.free(a, "y")
}
