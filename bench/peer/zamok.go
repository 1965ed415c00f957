package peer

import (
	"context"
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
	if _, err := c.Now(ctx); err != nil { // the others have connected when they are open, too
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
		return nil, ErrTaken
	}
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}
