package driver

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"

	"zamok/client"
)

func openZamok(ctx context.Context, s Session) (Client, error) {
	c, err := client.New(client.Config{Endpoints: s.Endpoints, TTL: s.TTL,
		ReleaseOnDisconnect: s.Release,
		Logger:              slog.New(slog.DiscardHandler)})
	if err != nil {
		return Client{}, err
	}
	// The first lock opens the session. The clients of other systems have one as soon as they are
	// open, and opening must not be measured as locking.
	if err := c.Do(ctx, "open-"+rand.Text(),
		func(context.Context, *client.Lock) error { return nil }); err != nil {
		return Client{}, errors.Join(err, c.Close())
	}
	held := func(lock *client.Lock, err error) (Unlock, error) {
		if err != nil {
			return nil, err
		}
		return lock.Unlock, nil
	}
	return Client{
		Lock: func(ctx context.Context, key string) (Unlock, error) {
			return held(c.Lock(ctx, key))
		},
		TryLock: func(ctx context.Context, key string) (Unlock, error) {
			lock, err := c.TryLock(ctx, key)
			if errors.Is(err, client.ErrNotAcquired) {
				err = ErrHeld
			}
			return held(lock, err)
		},
		Close: c.Close,
	}, nil
}
