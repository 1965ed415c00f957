package driver

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func dialRedis(ctx context.Context, s Session) (*redis.Client, error) {
	conn := redis.NewClient(&redis.Options{Addr: s.Endpoints[0], PoolSize: s.Width})
	if err := conn.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func openRedsync(ctx context.Context, s Session) (Client, error) {
	conn, err := dialRedis(ctx, s)
	if err != nil {
		return Client{}, err
	}
	locks := redsync.New(goredis.NewPool(conn))
	acquire := func(ctx context.Context, key string,
		lock func(*redsync.Mutex, context.Context) error) (Unlock, error) {
		m := locks.NewMutex(key, redsync.WithExpiry(s.TTL))
		err := lock(m, ctx)
		if taken := new(redsync.ErrTaken); errors.As(err, &taken) {
			err = ErrHeld
		}
		return func(ctx context.Context) error {
			ok, err := m.UnlockContext(ctx)
			if err == nil && !ok {
				return errors.New("the lock was not held any more")
			}
			return err
		}, err
	}
	return Client{
		Lock: func(ctx context.Context, key string) (Unlock, error) {
			for {
				unlock, err := acquire(ctx, key, (*redsync.Mutex).LockContext)
				if errors.Is(err, redsync.ErrFailed) && ctx.Err() == nil ||
					errors.Is(err, ErrHeld) {
					continue // its tries are used up; call again
				}
				return unlock, err
			}
		},
		TryLock: func(ctx context.Context, key string) (Unlock, error) {
			return acquire(ctx, key, (*redsync.Mutex).TryLockContext)
		},
		Close: conn.Close,
	}, nil
}

// setNXPollInterval is how often the old algorithm polls.
const setNXPollInterval = 100 * time.Millisecond

func openSetNX(ctx context.Context, s Session) (Client, error) {
	conn, err := dialRedis(ctx, s)
	if err != nil {
		return Client{}, err
	}
	// The value is the time of expiry. After that the client that first replaces the old value by
	// GETSET holds the lock.
	tryLock := func(ctx context.Context, key string) (Unlock, error) {
		unlock := func(ctx context.Context) error { return conn.Del(ctx, key).Err() }
		over := strconv.FormatInt(time.Now().Add(s.TTL).UnixMilli(), 10)
		won, err := conn.SetNX(ctx, key, over, 0).Result()
		if err != nil || won {
			return unlock, err
		}
		before, err := conn.Get(ctx, key).Result()
		if errors.Is(err, redis.Nil) {
			// it was released between the two calls; the next poll will find it free
			return nil, ErrHeld
		}
		if err != nil {
			return nil, err
		}
		until, err := strconv.ParseInt(before, 10, 64)
		if err != nil {
			return nil, err
		}
		if until > time.Now().UnixMilli() {
			return nil, ErrHeld
		}
		if replaced, err := conn.GetSet(ctx, key, over).Result(); err != nil || replaced != before {
			return nil, cmp.Or(err, ErrHeld)
		}
		return unlock, nil
	}
	poll := retry(tryLock, func(int, error) time.Duration { return setNXPollInterval })
	return Client{Lock: poll, TryLock: tryLock, Close: conn.Close}, nil
}
