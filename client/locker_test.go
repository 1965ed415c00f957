package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/client"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

func TestLockerIsASyncLocker(t *testing.T) {
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	l := a.Locker(ctx, "x")
	l.Lock()
	require.NoError(t, l.Held().Err())
	l.Unlock()
	require.Panics(t, l.Unlock)
	hangUp(t, a)
	require.Panics(t, l.Lock)
}

// An owner may wait for one lock at a time. Its other Locker does not panic, it comes later.
func TestALockerWaitsForItsOwner(t *testing.T) {
	c := startCluster(t, 1)
	other, a, ctx := c.client(nil), c.client(nil), soon(t)
	x, err := other.Lock(ctx, "x")
	require.NoError(t, err)
	y, err := other.Lock(ctx, "y")
	require.NoError(t, err)
	first := make(chan *client.Lock, 1)
	go func() {
		l, _ := a.Lock(ctx, "x", client.WithOwner("one"))
		first <- l
	}()
	require.Eventually(t, func() bool {
		d, err := other.Get(ctx, "x", 1)
		return err == nil && d.Waiters == 1
	}, testTimeout, time.Millisecond)
	second := a.Locker(ctx, "y", client.WithOwner("one"))
	ended := make(chan any, 1)
	go func() {
		defer func() { ended <- recover() }()
		second.Lock()
	}()
	require.Never(t, func() bool { return len(ended) > 0 }, 100*time.Millisecond,
		10*time.Millisecond)
	require.NoError(t, x.Unlock(ctx))
	require.NotNil(t, until(t, first, "x"))
	require.NoError(t, y.Unlock(ctx))
	require.Nil(t, until(t, ended, "y"))
	require.NoError(t, second.Held().Err())
}

// A Locker does not panic for a transient error: a nearly full disk prevents new sessions for a
// while.
func TestALockerWaitsForRoom(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	list, err := peer.ParseList("n1=" + l.Addr().String())
	require.NoError(t, err)
	n, err := api.StartNode(t.Context(), api.NodeConfig{Config: raftnode.Config{
		ID: "n1", Store: store.Config{Dir: t.TempDir(), LowSpace: 1 << 60},
		Peers: peer.Config{List: list, Listener: l},
	}})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Kill()) }()
	c, err := client.New(client.Config{Endpoints: []string{n.Client()},
		Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer c.Close()
	require.Eventually(t, func() bool {
		_, err := c.TryLock(t.Context(), "x")
		return errors.Is(err, client.ErrLimit)
	}, testTimeout, 10*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan any, 1)
	go func() {
		defer func() { ended <- recover() }()
		c.Locker(ctx, "x").Lock()
	}()
	select {
	case reason := <-ended:
		require.Fail(t, "it gave up", "%v", reason)
	case <-time.After(200 * time.Millisecond):
	}
	cancel()
	require.NotNil(t, until(t, ended, "end"), "its context ended")
}
