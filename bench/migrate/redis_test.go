package migrate

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"zamok/bench/server"
	"zamok/client"
)

func dialRedis(t *testing.T, address string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: address})
	t.Cleanup(func() { _ = c.Close() })
	ready(t, func(ctx context.Context) error { return c.Ping(ctx).Err() })
	return c
}

// redsyncLocked is a program that uses redsync.
func redsyncLocked(c *redis.Client, expiry time.Duration) program {
	locks := redsync.New(goredis.NewPool(c))
	return func(ctx context.Context, name string, work work) error {
		mutex := locks.NewMutex(name, redsync.WithExpiry(expiry), redsync.WithTries(1000))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		defer mutex.UnlockContext(context.WithoutCancel(ctx))
		return work(ctx, 0)
	}
}

var unlock = redis.NewScript(`
	if redis.call("GET", KEYS[1]) == ARGV[1] then
		return redis.call("DEL", KEYS[1])
	end
	return 0`)

// setLocked is a program that uses commands of Redis.
func setLocked(c *redis.Client, expiry time.Duration) program {
	return func(ctx context.Context, name string, work work) error {
		value := rand.Text()
		for {
			won, err := c.SetNX(ctx, name, value, expiry).Result()
			if err != nil {
				return err
			}
			if won {
				break
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		defer unlock.Run(context.WithoutCancel(ctx), c, []string{name}, value)
		return work(ctx, 0)
	}
}

func TestRedis(t *testing.T) {
	installed(t, "redis-server", "apt install redis-server")
	t.Parallel()
	redisServer, zamokServer := start(t, "redis-mem", 1, server.Programs{}), startZamok(t, 1)
	address := redisServer.Endpoints[0]
	r, z := dialRedis(t, address), dialZamok(t, zamokServer, client.Config{})

	testMove(t, redsyncLocked(r, 8*time.Second), zamokLocked(z), false)
	t.Run("commands of Redis", func(t *testing.T) {
		exclude(t, setLocked(r, 8*time.Second), redsyncLocked(r, 8*time.Second))
	})

	t.Run("the lock of a program that works for longer than the expiry", func(t *testing.T) {
		held := within(t, eventTimeout, begin(t, redsyncLocked(r, time.Second), "long"), "the work")
		within(t, eventTimeout, begin(t, redsyncLocked(r, time.Second), "long"),
			"the second one's work, beside the first one's")
		notYet(t, held.lost, "the first one's context ended")

		short := dialZamok(t, zamokServer, client.Config{TTL: 4 * time.Second})
		held = within(t, eventTimeout, begin(t, zamokLocked(short), "long"), "the work")
		keepsOn(t, held, begin(t, zamokLocked(z), "long"), 5*time.Second)
	})

	t.Run("unlock after the expiry", func(t *testing.T) {
		mutex := redsync.New(goredis.NewPool(r)).NewMutex("late",
			redsync.WithExpiry(100*time.Millisecond))
		require.NoError(t, mutex.LockContext(t.Context()))
		require.Eventually(t, func() bool { return r.Exists(t.Context(), "late").Val() == 0 },
			eventTimeout, 10*time.Millisecond)
		ok, err := mutex.UnlockContext(t.Context())
		require.False(t, ok)
		require.ErrorIs(t, err, redsync.ErrLockAlreadyExpired)
	})

	t.Run("commands", func(t *testing.T) {
		installed(t, "redis-cli", "apt install redis-tools")
		runCommands(t, "from-redis.md", zamokServer, "REDIS=redis://"+address)
	})

	// The last one: it restarts the servers.
	t.Run("the server is killed and started again", func(t *testing.T) {
		held := within(t, eventTimeout, begin(t, redsyncLocked(r, time.Minute), "restart"),
			"the work")
		redisServer.Kill(0)
		require.NoError(t, redisServer.Restart(0))
		dialRedis(t, address)
		within(t, eventTimeout, begin(t, redsyncLocked(r, time.Minute), "restart"),
			"the second one's work, beside the first one's")
		notYet(t, held.lost, "the first one's context ended")

		held = within(t, eventTimeout, begin(t, zamokLocked(z), "restart"), "the work")
		zamokServer.Kill(0)
		require.NoError(t, zamokServer.Restart(0))
		other := dialZamok(t, zamokServer, client.Config{})
		keepsOn(t, held, begin(t, zamokLocked(other), "restart"), time.Second)
		require.NoError(t, held.finish())
	})
}
