package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"

	"zamok/client"
)

type zamokClient struct{ *client.Client }

func openZamok(ctx context.Context, s Session) (Client, error) {
	c, err := client.New(client.Config{Endpoints: s.Endpoints, TTL: s.TTL, ReleaseOnDisconnect: s.Release,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	// The session is opened by the first lock. The other systems' clients have one when they are open, and
	// what opening costs must not be measured as locking.
	lock, err := c.Lock(ctx, "open-"+rand.Text())
	if err == nil {
		err = lock.Unlock(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &zamokClient{c}, nil
}

func (c *zamokClient) Lock(ctx context.Context, key string) (Unlock, error) {
	lock, err := c.Client.Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}

func (c *zamokClient) TryLock(ctx context.Context, key string) (Unlock, error) {
	lock, err := c.Client.TryLock(ctx, key)
	if errors.Is(err, client.ErrNotAcquired) {
		return nil, ErrHeld
	}
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}
