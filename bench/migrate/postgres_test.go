package migrate

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"zamok/bench/server"
	"zamok/client"
	"zamok/client/admin"
)

func dialPostgres(t *testing.T, url string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = 16
	change(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	ready(t, pool.Ping)
	return pool
}

// advisoryLocked is a program that uses advisory locks of a connection.
func advisoryLocked(pool *pgxpool.Pool) program {
	return func(ctx context.Context, name string, work work) error {
		conn, err := pool.Acquire(ctx) // kept for as long as the lock is held
		if err != nil {
			return err
		}
		defer conn.Release()
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended($1, 0))`,
			name); err != nil {
			return err
		}
		defer conn.Exec(context.WithoutCancel(ctx),
			`SELECT pg_advisory_unlock(hashtextextended($1, 0))`, name)
		return work(ctx, 0)
	}
}

// readerLocked is a program that only reads.
func readerLocked(pool *pgxpool.Pool) program {
	return func(ctx context.Context, name string, work work) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx,
				`SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 0))`, name); err != nil {
				return err
			}
			return work(ctx, 0)
		})
	}
}

func zamokReader(c *client.Client) program {
	return func(ctx context.Context, name string, work work) error {
		return c.Do(ctx, name, func(ctx context.Context, lock *client.Lock) error {
			return work(ctx, int64(lock.Token()))
		}, client.Shared())
	}
}

func advisoryTry(ctx context.Context, pool *pgxpool.Pool, name string, work func() error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		won := false
		err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`,
			name).Scan(&won)
		if err != nil || !won {
			return err // nil: another process does it
		}
		return work()
	})
}

// nextJob works on one row that no other program works on.
func nextJob(ctx context.Context, pool *pgxpool.Pool, work func(job int64) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var job int64
		err :=
			tx.QueryRow(ctx, `SELECT id FROM job ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1`).Scan(
				&job)
		if err != nil {
			return err
		}
		if err := work(job); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM job WHERE id = $1`, job)
		return err
	})
}

const (
	fenceTable = `CREATE TABLE account (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0)`
	fenced     = `UPDATE account SET amount = amount - 150, fence = $1 WHERE id = 200 AND fence <= $1 AND amount >= 150`

	// During a migration, by programs that hold the old lock, both, and zamok's.
	fencedOld  = `UPDATE moved SET amount = amount - 1, fence_old = $1 WHERE fence_old <= $1`
	fencedBoth = `UPDATE moved SET amount = amount - 1, fence_old = $1, fence = $2 WHERE fence_old <= $1 AND fence <= $2`
	fencedNew  = `UPDATE moved SET amount = amount - 1, fence = $1 WHERE fence <= $1`
)

func TestPostgres(t *testing.T) {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) == 0 {
		t.Skip("PostgreSQL's server is not installed: apt install postgresql")
	}
	t.Parallel()
	url := "postgres://bench@" + start(t, "postgres", 1, server.Programs{}).Endpoints[0] +
		"/postgres?sslmode=disable"
	zamok := startZamok(t, 1)
	p, z := dialPostgres(t, url, func(*pgxpool.Config) {}), dialZamok(t, zamok, client.Config{})

	testMove(t, advisoryLocked(p), zamokLocked(z), false)

	t.Run("try", func(t *testing.T) {
		testTry(t, advisoryLocked(p),
			func(ctx context.Context, name string, work func() error) error {
				return advisoryTry(ctx, p, name, work)
			})
	})

	t.Run("readers", func(t *testing.T) {
		for name, c := range map[string]struct{ reader, writer program }{
			"PostgreSQL": {readerLocked(p), advisoryLocked(p)},
			"zamok":      {zamokReader(z), zamokLocked(z)},
		} {
			a := within(t, eventTimeout, begin(t, c.reader, name), "a reader's work")
			b := within(t, eventTimeout, begin(t, c.reader, name), "another reader's work")
			writer := begin(t, c.writer, name)
			notYet(t, writer, "a writer works beside readers")
			require.NoError(t, a.finish())
			require.NoError(t, b.finish())
			require.NoError(t, within(t, eventTimeout, writer, "the writer's work").finish())
		}
	})

	testConnections(t, url, p)
	testData(t, p, z)

	t.Run("commands", func(t *testing.T) {
		installed(t, "psql", "apt install postgresql-client")
		runCommands(t, "from-postgresql.md", zamok, "DATABASE="+url)
	})
}

// testConnections tests what holding by a connection means.
func testConnections(t *testing.T, url string, p *pgxpool.Pool) {
	t.Run("advisory locks of a connection stack", func(t *testing.T) {
		conn, err := p.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		for range 2 {
			_, err = conn.Exec(t.Context(), `SELECT pg_advisory_lock(1)`)
			require.NoError(t, err)
		}
		free := func() (free bool) {
			require.NoError(t,
				p.QueryRow(t.Context(), `SELECT pg_try_advisory_xact_lock(1)`).Scan(&free))
			return free
		}
		for _, last := range []bool{false, true} {
			_, err = conn.Exec(t.Context(), `SELECT pg_advisory_unlock(1)`)
			require.NoError(t, err)
			require.Equal(t, last, free())
		}
	})

	t.Run("another connection of the pool can't unlock", func(t *testing.T) {
		held := within(t, eventTimeout, begin(t, advisoryLocked(p), "pool"), "the work")
		ok := true
		require.NoError(t,
			p.QueryRow(t.Context(), `SELECT pg_advisory_unlock(hashtextextended('pool', 0))`).Scan(
				&ok))
		require.False(t, ok)
		require.NoError(t, held.finish())
	})

	t.Run("a connection that is terminated", func(t *testing.T) {
		held := within(t, eventTimeout, begin(t, advisoryLocked(p), "terminated"), "the work")
		_, err := p.Exec(t.Context(),
			`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'`)
		require.NoError(t, err)
		within(t, eventTimeout, begin(t, advisoryLocked(p), "terminated"),
			"the second one's work, beside the first one's")
		notYet(t, held.lost, "the first one's context ended")
	})

	t.Run("cut off", func(t *testing.T) { // zamok is tested with the same ttl
		t.Parallel()
		line := new(cable)
		holder := dialPostgres(t, url,
			func(c *pgxpool.Config) { c.ConnConfig.DialFunc = line.dial })
		held := within(t, eventTimeout, begin(t, advisoryLocked(holder), "cut"), "the work")
		line.setCut(true)
		t.Cleanup(func() { line.setCut(false) })
		keepsOn(t, held, begin(t, advisoryLocked(p), "cut"), 5*time.Second)
	})
}

// testData tests deadlocks, and locks beside the data.
func testData(t *testing.T, p *pgxpool.Pool, z *client.Client) {
	t.Run("deadlock", func(t *testing.T) {
		opposite := func(t *testing.T, lock func(owner, name string) error) (refused error) {
			require.NoError(t, lock("a", "x"))
			require.NoError(t, lock("b", "y"))
			ended := make(chan error, 2)
			go func() { ended <- lock("a", "y") }()
			go func() { ended <- lock("b", "x") }()
			for refused == nil { // the refusal frees a lock, whose waiter may be answered first
				refused = within(t, eventTimeout, ended, "a refusal")
			}
			return refused
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		txs := map[string]pgx.Tx{}
		for _, owner := range []string{"a", "b"} {
			tx, err := p.Begin(ctx)
			require.NoError(t, err)
			defer tx.Rollback(t.Context())
			txs[owner] = tx
		}
		err := opposite(t, func(owner, name string) error {
			_, err := txs[owner].Exec(ctx,
				`SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, name)
			return err
		})
		refused := new(pgconn.PgError)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, "40P01", refused.Code)

		require.ErrorIs(t, opposite(t, func(owner, name string) error {
			_, err := z.Lock(ctx, name, client.WithOwner(owner))
			return err
		}), client.ErrDeadlock)
	})

	t.Run("rows", func(t *testing.T) {
		_, err := p.Exec(t.Context(), `CREATE TABLE job AS SELECT generate_series(1, 2) AS id`)
		require.NoError(t, err)
		var jobs []int64
		require.NoError(t, nextJob(t.Context(), p, func(first int64) error {
			return nextJob(t.Context(), p, func(second int64) error {
				jobs = append(jobs, first, second)
				return nil
			})
		}))
		require.Equal(t, []int64{1, 2}, jobs)
		err = nextJob(t.Context(), p, func(int64) error { return errors.New("there was a job") })
		require.ErrorIs(t, err, pgx.ErrNoRows)
	})

	t.Run("fence", func(t *testing.T) {
		_, err := p.Exec(t.Context(), fenceTable)
		require.NoError(t, err)
		_, err = p.Exec(t.Context(), `INSERT INTO account VALUES (200, 400)`)
		require.NoError(t, err)
		withdraw := func(token client.Token) (rows int64) {
			done, err := p.Exec(t.Context(), fenced, int64(token))
			require.NoError(t, err)
			return done.RowsAffected()
		}
		late, err := z.Lock(t.Context(), "account/200")
		require.NoError(t, err)
		require.NoError(t, admin.New(z).ExpireSession(t.Context(), late.Session(), "it was paused"))
		next, err := z.Lock(t.Context(), "account/200")
		require.NoError(t, err)
		require.EqualValues(t, 1, withdraw(next.Token()))
		require.Zero(t, withdraw(late.Token()))
	})

	t.Run("fences of two systems", func(t *testing.T) {
		_, err := p.Exec(t.Context(),
			`CREATE TABLE moved AS SELECT 400 AS amount, 0::BIGINT AS fence_old, 0::BIGINT AS fence`)
		require.NoError(t, err)
		for i, write := range []struct {
			sql      string
			numbers  []any
			accepted bool
		}{
			{fencedOld, []any{5}, true},
			{fencedBoth, []any{6, 1001}, true},
			{fencedOld, []any{5}, false}, // late
			{fencedOld, []any{7}, true},
			{fencedBoth, []any{6, 1001}, false}, // late
			{fencedBoth, []any{8, 1002}, true},
			{fencedNew, []any{1003}, true},
			{fencedBoth, []any{8, 1002}, false}, // late
			{fencedBoth, []any{9, 1004}, true},
			{fencedNew, []any{1003}, false}, // late
		} {
			done, err := p.Exec(t.Context(), write.sql, write.numbers...)
			require.NoError(t, err)
			require.Equal(t, write.accepted, done.RowsAffected() == 1, i)
		}
	})
}
