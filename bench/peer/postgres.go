package peer

import (
	"context"
	"hash/fnv"

	"github.com/jackc/pgx/v5/pgxpool"
)

// postgresClient is a pool: an advisory lock belongs to the connection that took it, so each goroutine
// keeps one while it holds a lock. A client of one goroutine has one connection, which may hold any
// number of locks.
type postgresClient struct {
	pool   *pgxpool.Pool
	pinned *pgxpool.Conn // nil unless Width is 1
}

func openPostgres(ctx context.Context, s Session) (Client, error) {
	config, err := pgxpool.ParseConfig("postgres://bench@" + s.Endpoints[0] + "/postgres?sslmode=disable")
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(s.Width)
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, err
	}
	c := &postgresClient{pool: pool}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		pool.Close()
		return nil, err
	}
	if s.Width == 1 {
		c.pinned = conn
	} else {
		conn.Release()
	}
	return c, nil
}

func (c *postgresClient) Lock(ctx context.Context, key string) (Unlock, error) {
	return c.take(ctx, key, func(conn *pgxpool.Conn, key int64) error {
		_, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", key)
		return err
	})
}

func (c *postgresClient) TryLock(ctx context.Context, key string) (Unlock, error) {
	return c.take(ctx, key, func(conn *pgxpool.Conn, key int64) error {
		won := false
		err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", key).Scan(&won)
		if err == nil && !won {
			err = ErrHeld
		}
		return err
	})
}

// take takes a lock on a connection, and keeps that while the lock is held.
func (c *postgresClient) take(ctx context.Context, name string, lock func(*pgxpool.Conn, int64) error) (Unlock, error) {
	conn, release := c.pinned, func() {}
	if conn == nil {
		var err error
		if conn, err = c.pool.Acquire(ctx); err != nil {
			return nil, err
		}
		release = conn.Release
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	key := int64(h.Sum64())
	if err := lock(conn, key); err != nil {
		release()
		return nil, err
	}
	return func(ctx context.Context) error {
		defer release()
		_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", key)
		return err
	}, nil
}

func (c *postgresClient) Close() error {
	if c.pinned != nil {
		c.pinned.Release()
	}
	c.pool.Close()
	return nil
}
