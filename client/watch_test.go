package client_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/client"
)

// A watch leaves nothing out and repeats nothing, though its node dies.
func TestAWatchGoesOnAtAnotherNode(t *testing.T) {
	const locks = 40
	c := startCluster(t, 3)
	a, b, ctx := c.client(nil), c.client(nil), soon(t)
	begun := make(chan struct{})
	var once sync.Once
	seen := make(chan []client.Token, 1)
	go func() {
		watching, cancel := context.WithCancel(ctx)
		defer cancel()
		var tokens []client.Token
		for m, err := range b.Watch(watching, "w/", 0) {
			if err != nil {
				t.Error(err)
				break
			}
			once.Do(func() { close(begun) })
			for _, e := range m.Events {
				if e.Happened == client.EventGranted {
					tokens = append(tokens, e.Token)
				}
			}
			if len(tokens) == locks {
				break
			}
		}
		seen <- tokens
	}()
	until(t, begun, "where the watch begins")
	var granted []client.Token
	for i := range locks {
		l, err := a.Lock(ctx, "w/x")
		require.NoError(t, err)
		granted = append(granted, l.Token())
		require.NoError(t, l.Unlock(ctx))
		if i == locks/2 {
			require.NoError(t, c.leader().Kill())
		}
	}
	require.Equal(t, granted, until(t, seen, "all events"))
}
