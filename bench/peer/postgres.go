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

func (c *postgresClient) conn(ctx context.Context) (conn *pgxpool.Conn, release func(), err error) {
	if c.pinned != nil {
		return c.pinned, func() {}, nil
	}
	conn, err = c.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	return conn, conn.Release, nil
}

func advisoryKey(key string) int64 {
	h := fnv.New64a()
	h.Write([]byte(key))
	return int64(h.Sum64())
}

func (c *postgresClient) Lock(ctx context.Context, key string) (Unlock, error) {
	conn, release, err := c.conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", advisoryKey(key)); err != nil {
		release()
		return nil, err
	}
	return unlockPostgres(conn, release, key), nil
}

func (c *postgresClient) TryLock(ctx context.Context, key string) (Unlock, error) {
	conn, release, err := c.conn(ctx)
	if err != nil {
		return nil, err
	}
	won := false
	err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", advisoryKey(key)).Scan(&won)
	if err == nil && !won {
		err = ErrHeld
	}
	if err != nil {
		release()
		return nil, err
	}
	return unlockPostgres(conn, release, key), nil
}

func unlockPostgres(conn *pgxpool.Conn, release func(), key string) Unlock {
	return func(ctx context.Context) error {
		defer release()
		_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", advisoryKey(key))
		return err
	}
}

func (c *postgresClient) Close() error {
	if c.pinned != nil {
		c.pinned.Release()
	}
	c.pool.Close()
	return nil
}
