package client_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/api/gate/identity"
	"zamok/client"
)

// tokenSource sends the token that it has now.
type tokenSource struct{ atomic.Pointer[string] }

func (s *tokenSource) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + *s.Load()}, nil
}

func (*tokenSource) RequireTransportSecurity() bool { return false }

// TestALateTokenLosesNoLock: the token of a client that holds a lock counts no more, and the next
// one comes a moment later.
func TestALateTokenLosesNoLock(t *testing.T) {
	t.Parallel()
	first, old, err := identity.NewToken("alice", time.Time{})
	require.NoError(t, err)
	second, next, err := identity.NewToken("alice", time.Time{})
	require.NoError(t, err)
	var known atomic.Pointer[identity.Tokens]
	known.Store(&identity.Tokens{old.ID: old})
	refused := make(chan struct{}, 1)
	c := startNodes(t, 1, func(cfg *api.NodeConfig) {
		cfg.Identity.Verifier = func() identity.Verifier {
			tokens := *known.Load()
			if _, there := tokens[old.ID]; !there {
				select {
				case refused <- struct{}{}:
				default:
				}
			}
			return identity.Verifier{Tokens: tokens}
		}
	})
	source, g := &tokenSource{}, &gate{}
	source.Store(&first)
	cl, ctx := c.client(func(cfg *client.Config) { cfg.Credentials, cfg.Dialer = source, g.dial }),
		soon(t)
	lock, err := cl.Lock(ctx, "x")
	require.NoError(t, err)
	require.Equal(t, "alice", mustGet(t, cl, "x").Held[0].Identity)

	known.Store(&identity.Tokens{next.ID: next})
	g.cut()
	g.open()
	until(t, refused, "a refusal of the old token")
	source.Store(&second)
	require.NoError(t, lock.Downgrade(ctx),
		"the session goes on with the next token of the same identity")
	require.NoError(t, lock.Err())
	require.NoError(t, lock.Unlock(ctx))
}

func mustGet(t *testing.T, cl *client.Client, name string) *client.LockDetail {
	detail, err := cl.Get(soon(t), name, 0)
	require.NoError(t, err)
	return detail
}
