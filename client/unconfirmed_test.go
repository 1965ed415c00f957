package client_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/api/gate/rules"
	"zamok/client"
)

// gate is a dialer whose connections can be cut, and held off until they are let in again.
type gate struct {
	mu    sync.Mutex
	cuts  int
	conns []net.Conn
	shut  chan struct{} // nil while it is open
	to    string        // where connections lead; "" = to the address that is dialed
}

// dial makes a connection that no later cut misses: one that was begun before a cut is made anew
// after it.
func (g *gate) dial(ctx context.Context, address string) (net.Conn, error) {
	for {
		g.mu.Lock()
		cuts, shut, to := g.cuts, g.shut, cmp.Or(g.to, address)
		g.mu.Unlock()
		if shut != nil {
			select {
			case <-shut:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		current := cuts == g.cuts
		if current {
			g.conns = append(g.conns, conn)
		}
		g.mu.Unlock()
		if current {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// cut breaks every connection, and lets none in until the gate is opened.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cuts++
	g.shut = make(chan struct{})
	for _, conn := range g.conns {
		_ = conn.Close()
	}
	g.conns = nil
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

// lead breaks every connection; the next ones lead to an address.
func (g *gate) lead(to string) {
	g.cut()
	g.mu.Lock()
	g.to = to
	g.mu.Unlock()
	g.open()
}

// A session that ends here without the cluster's word leaves its grants standing there: no release
// of one of them is confirmed.
func TestARefusedReturnConfirmsNoUnlock(t *testing.T) {
	t.Parallel()
	var denied atomic.Bool
	reading, err := rules.Parse([]byte("rules: [{groups: [anonymous], names: [x], may: [read]}]"))
	require.NoError(t, err)
	c := startNodes(t, 1, func(cfg *api.NodeConfig) {
		cfg.Rules = func() *rules.Set {
			if denied.Load() {
				return reading
			}
			return nil
		}
	})
	g := &gate{}
	a, b, ctx := c.client(func(cfg *client.Config) { cfg.Dialer = g.dial }), c.client(nil), soon(t)
	held, err := a.Lock(ctx, "x")
	require.NoError(t, err)
	g.cut()
	denied.Store(true)
	unlocked := make(chan error, 1)
	go func() { unlocked <- held.Unlock(ctx) }()
	require.Eventually(t, func() bool { return errors.Is(held.Err(), client.ErrNotHeld) },
		testTimeout, pollEvery)
	g.open()
	err = until(t, unlocked, "the unlock")
	info, getErr := b.Get(ctx, "x", 0)
	require.NoError(t, getErr)
	require.Equal(t, 1, info.Holders, "the grant stands")
	require.Error(t, err, "Unlock says that it is released")
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.ErrorIs(t, err, client.ErrDenied)
	unknown(t, err)
	err = a.Close()
	require.ErrorIs(t, err, client.ErrDenied, "nor is the session's end confirmed")
	unknown(t, err)
}

// unknown looks that an error says of a lock that the cluster may still hold it, and until when.
func unknown(t testing.TB, err error) {
	t.Helper()
	var u *client.UnconfirmedError
	require.ErrorAs(t, err, &u)
	require.False(t, u.Until.IsZero(), "%v", err)
	require.ErrorContains(t, err, u.Until.Format(time.RFC3339))
	mayHaveDone(t, err)
}
