package driver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	etcd "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"zamok/cmd/zamok/loadgen"
)

// The two algorithms of the original report, over an ordered store with prefix reads. Their store
// was Cassandra; etcd is faster and more consistent, so they do better here.

const (
	// the longest sleep of the retry lock after it found a holder
	retrySleepMax = time.Second
	// times the attempt, after a collision with another client
	collisionBackoff  = 50 * time.Millisecond
	queuePollInterval = 50 * time.Millisecond // how often the queue lock polls
)

type rowStore struct{ *concurrency.Session }

// columns returns the keys of a row, oldest first.
func (c rowStore) columns(ctx context.Context, row string, limit int64) ([]string, error) {
	response, err := c.Client().Get(ctx, row, etcd.WithPrefix(), etcd.WithKeysOnly(),
		etcd.WithLimit(limit),
		etcd.WithSort(etcd.SortByKey, etcd.SortAscend))
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, kv := range response.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys, nil
}

func (c rowStore) put(ctx context.Context, key string) error {
	_, err := c.Client().Put(ctx, key, "", etcd.WithLease(c.Lease()))
	return err
}

func (c rowStore) remove(ctx context.Context, key string) error {
	_, err := c.Client().Delete(ctx, key)
	return err
}

// openShadowRow is the first algorithm: a client adds a column to a shadow row. If it is alone
// there and the main row is empty, it adds a column to that; else it sleeps and tries again.
func openShadowRow(ctx context.Context, s Session) (Client, error) {
	session, err := etcdSession(ctx, s)
	if err != nil {
		return Client{}, err
	}
	rows := rowStore{session}
	return Client{
		Lock: retry(rows.tryShadowRow, func(attempt int, failed error) time.Duration {
			if errors.Is(failed, ErrHeld) {
				return mathrand.N(retrySleepMax)
			}
			return mathrand.N(time.Duration(attempt) * collisionBackoff)
		}),
		TryLock: func(ctx context.Context, key string) (Unlock, error) {
			unlock, err := rows.tryShadowRow(ctx, key)
			if errors.Is(err, errCollision) {
				// TryLock may fail although the lock is free: one of the report's complaints
				err = ErrHeld
			}
			return unlock, err
		},
		Close: func() error { return closeEtcd(session) },
	}, nil
}

var errCollision = errors.New("another client tries at the same time")

func (c rowStore) tryShadowRow(ctx context.Context, key string) (Unlock, error) {
	main, shadow, me := "/main/"+key+"/", "/shadow/"+key+"/", rand.Text()
	for _, row := range []string{main, shadow} { // look before writing
		columns, err := c.columns(ctx, row, 1)
		switch {
		case err != nil:
			return nil, err
		case len(columns) > 0 && row == main:
			return nil, ErrHeld
		case len(columns) > 0:
			return nil, errCollision
		}
	}
	if err := c.put(ctx, shadow+me); err != nil {
		return nil, err
	}
	won, err := c.claimMainRow(ctx, main, shadow, me)
	if gone := c.remove(ctx, shadow+me); err == nil {
		err = gone
	}
	switch {
	case err != nil:
		return nil, err
	case !won:
		return nil, errCollision
	}
	return func(ctx context.Context) error { return c.remove(ctx, main+me) }, nil
}

func (c rowStore) claimMainRow(ctx context.Context, main, shadow, me string) (bool, error) {
	trying, err := c.columns(ctx, shadow, 2)
	if err != nil || len(trying) != 1 {
		return false, err
	}
	holding, err := c.columns(ctx, main, 1)
	if err != nil || len(holding) > 0 {
		return false, err
	}
	return true, c.put(ctx, main+me)
}

// openRowQueue is the second algorithm: a row ordered by time, whose first column holds the lock.
// The time is that of the writer's clock, so the order is only as good as the clocks; here there is
// one clock.
func openRowQueue(ctx context.Context, s Session) (Client, error) {
	session, err := etcdSession(ctx, s)
	if err != nil {
		return Client{}, err
	}
	rows := rowStore{session}
	return Client{
		Lock: func(ctx context.Context, key string) (Unlock, error) {
			first, unlock, err := rows.enqueue(ctx, key)
			if err != nil {
				return nil, err
			}
			for {
				if ours, err := first(ctx); err != nil || ours {
					return unlock, err
				}
				if !loadgen.Sleep(ctx, queuePollInterval) {
					return nil, errors.Join(ctx.Err(), unlock(context.WithoutCancel(ctx)))
				}
			}
		},
		TryLock: func(ctx context.Context, key string) (Unlock, error) {
			first, unlock, err := rows.enqueue(ctx, key)
			if err != nil {
				return nil, err
			}
			if ours, err := first(ctx); err != nil || ours {
				return unlock, err
			}
			return nil, errors.Join(ErrHeld, unlock(ctx))
		},
		Close: func() error { return closeEtcd(session) },
	}, nil
}

// enqueue adds a column to the row. first reports whether it is the first column.
func (c rowStore) enqueue(ctx context.Context,
	key string) (first func(context.Context) (bool, error), unlock Unlock, err error) {
	row := "/queue/" + key + "/"
	mine := fmt.Sprintf("%s%020d-%s", row, time.Now().UnixNano(), rand.Text())
	first = func(ctx context.Context) (bool, error) {
		oldest, err := c.columns(ctx, row, 1)
		return len(oldest) > 0 && oldest[0] == mine, err
	}
	return first, func(ctx context.Context) error { return c.remove(ctx, mine) }, c.put(ctx, mine)
}
