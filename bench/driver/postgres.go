package driver

import (
	"context"
	"hash/fnv"

	"github.com/jackc/pgx/v5/pgxpool"
)

// openPostgres opens a pool: an advisory lock belongs to the connection that took it, so each
// goroutine keeps one while it holds a lock. A client of one goroutine has one connection, which
// may hold any number of locks.
func openPostgres(ctx context.Context, s Session) (Client, error) {
	config, err := pgxpool.ParseConfig("postgres://bench@" + s.Endpoints[0] +
		"/postgres?sslmode=disable")
	if err != nil {
		return Client{}, err
	}
	config.MaxConns = int32(s.Width)
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return Client{}, err
	}
	only, err := pool.Acquire(ctx)
	if err != nil {
		pool.Close()
		return Client{}, err
	}
	if s.Width > 1 {
		only.Release()
		only = nil
	}
	// acquire acquires a lock on a connection, which it keeps while the lock is held.
	acquire := func(ctx context.Context, name string,
		lock func(*pgxpool.Conn, int64) error) (Unlock, error) {
		conn, release := only, func() {}
		if conn == nil {
			var err error
			if conn, err = pool.Acquire(ctx); err != nil {
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
	return Client{
		Lock: func(ctx context.Context, name string) (Unlock, error) {
			return acquire(ctx, name, func(conn *pgxpool.Conn, key int64) error {
				_, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", key)
				return err
			})
		},
		TryLock: func(ctx context.Context, name string) (Unlock, error) {
			return acquire(ctx, name, func(conn *pgxpool.Conn, key int64) error {
				won := false
				err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", key).Scan(&won)
				if err == nil && !won {
					err = ErrHeld
				}
				return err
			})
		},
		Close: func() error {
			if only != nil {
				only.Release()
			}
			pool.Close()
			return nil
		},
	}, nil
}
