package client_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/client"
)

// A client that gets no connection to the leader is served by way of the other nodes. What happens
// later is seen in virtual time (jepsen/sim).
func TestALeaderBehindAFirewall(t *testing.T) {
	t.Parallel()
	c, ctx := startCluster(t, 3), soon(t)
	leader := c.leader().Client()
	cl := c.client(func(cfg *client.Config) {
		cfg.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
			if address == leader {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	})
	held, err := cl.Lock(ctx, "x")
	require.NoError(t, err)
	_, err = cl.TryLock(ctx, "x")
	require.ErrorIs(t, err, client.ErrNotAcquired)
	yes, _, err := cl.Check(ctx, held.Grant())
	require.NoError(t, err)
	require.True(t, yes)
	require.NoError(t, held.Unlock(ctx))
}
