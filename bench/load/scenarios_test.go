package load

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/bench/driver"
	"zamok/bench/server"
)

// The time in which clients open is not measured: an ideal lock is held all the time.
func TestTimelineBeginsWhenClientsAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := make(chan struct{}, 1)
		open := func(context.Context, driver.Session) (driver.Client, error) {
			time.Sleep(time.Second) // in the bubble
			return driver.Client{
				Lock: func(context.Context, string) (driver.Unlock, error) {
					lock <- struct{}{}
					return func(context.Context) error { <-lock; return nil }, nil
				},
				Close: func() error { return nil },
			}, nil
		}
		b := &Bench{System: driver.System{Open: open}, Cluster: &server.Cluster{},
			Window: 2 * time.Second}
		values, err := b.Timeline(t.Context())
		require.NoError(t, err)
		require.Greater(t, values["used"], 0.95)
	})
}
