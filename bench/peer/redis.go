package peer

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

type redsyncClient struct {
	conn *redis.Client
	sync *redsync.Redsync
	ttl  time.Duration
}

func openRedsync(ctx context.Context, s Session) (Client, error) {
	conn, err := dialRedis(ctx, s)
	if err != nil {
		return nil, err
	}
	return &redsyncClient{conn, redsync.New(goredis.NewPool(conn)), s.TTL}, nil
}

func (c *redsyncClient) Lock(ctx context.Context, key string) (Unlock, error) {
	for {
		m := c.sync.NewMutex(key, redsync.WithExpiry(c.ttl))
		err := m.LockContext(ctx)
		if errors.Is(err, redsync.ErrFailed) && ctx.Err() == nil || isHeld(err) {
			continue // its tries are used up; the caller asks again
		}
		return redsyncUnlock(m), err
	}
}

func (c *redsyncClient) TryLock(ctx context.Context, key string) (Unlock, error) {
	m := c.sync.NewMutex(key, redsync.WithExpiry(c.ttl))
	err := m.TryLockContext(ctx)
	if isHeld(err) {
		err = ErrHeld
	}
	return redsyncUnlock(m), err
}

func isHeld(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}

func redsyncUnlock(m *redsync.Mutex) Unlock {
	return func(ctx context.Context) error {
		ok, err := m.UnlockContext(ctx)
		if err == nil && !ok {
			return errors.New("the lock was not held any more")
		}
		return err
	}
}

func (c *redsyncClient) Close() error { return c.conn.Close() }

// setNXPollInterval is how often the old algorithm looks.
const setNXPollInterval = 100 * time.Millisecond

type setNXClient struct {
	conn *redis.Client
	ttl  time.Duration
}

func openSetNX(ctx context.Context, s Session) (Client, error) {
	conn, err := dialRedis(ctx, s)
	if err != nil {
		return nil, err
	}
	return &setNXClient{conn, s.TTL}, nil
}

func (c *setNXClient) Lock(ctx context.Context, key string) (Unlock, error) {
	return retry(ctx, c.TryLock, key, func(int, error) time.Duration { return setNXPollInterval })
}

// TryLock writes when the lock will be over. If that is past, the client that replaces the old value by GETSET
// first has it.
func (c *setNXClient) TryLock(ctx context.Context, key string) (Unlock, error) {
	unlock := func(ctx context.Context) error { return c.conn.Del(ctx, key).Err() }
	over := strconv.FormatInt(time.Now().Add(c.ttl).UnixMilli(), 10)
	won, err := c.conn.SetNX(ctx, key, over, 0).Result()
	if err != nil || won {
		return unlock, err
	}
	before, err := c.conn.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return nil, ErrHeld // it came free between the two; the next look will see
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
	if seen, err := c.conn.GetSet(ctx, key, over).Result(); err != nil || seen != before {
		return nil, cmp.Or(err, ErrHeld)
	}
	return unlock, nil
}

func (c *setNXClient) Close() error { return c.conn.Close() }
