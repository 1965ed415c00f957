package load

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/bench/peer"
	"zamok/bench/server"
)

// A system whose clients open slowly is not a slow lock: an ideal one is in use all the time.
func TestTimelineBeginsWhenClientsAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := make(chan struct{}, 1)
		open := func(context.Context, peer.Session) (peer.Client, error) {
			time.Sleep(time.Second) // in the bubble
			return peer.Client{
				Lock: func(context.Context, string) (peer.Unlock, error) {
					lock <- struct{}{}
					return func(context.Context) error { <-lock; return nil }, nil
				},
				Close: func() error { return nil },
			}, nil
		}
		b := &Bench{System: peer.System{Open: open}, Cluster: &server.Cluster{}, Window: 2 * time.Second}
		values, err := b.Timeline(t.Context())
		require.NoError(t, err)
		require.Greater(t, values["used"], 0.95)
	})
}
