package account

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"zamok/api"
	"zamok/client"
	"zamok/client/admin"
	"zamok/raftnode"
)

const name = "account/200"

var (
	errStale     = errors.New("the account has seen a later token: the lock was lost")
	errNotEnough = errors.New("not enough money")
)

// withdraw takes an amount off the account, if the holder of token is not too late. Balance, mark
// and both conditions are one statement, so nothing can come between them.
func withdraw(ctx context.Context, db *sql.DB, amount int, token client.Token) error {
	result, err := db.ExecContext(ctx,
		`UPDATE account SET amount = amount - ?, fence = ? WHERE name = ? AND fence <= ? AND amount >= ?`,
		amount, int64(token), name, int64(token), amount)
	if err != nil {
		return err
	}
	if changed, err := result.RowsAffected(); err != nil || changed == 1 {
		return err
	}
	_, fence, err := look(ctx, db)
	if err != nil {
		return err
	}
	if fence > token {
		return fmt.Errorf("%w: %d after %d", errStale, token, fence)
	}
	return errNotEnough
}

func look(ctx context.Context, db *sql.DB) (amount int, fence client.Token, err error) {
	var mark int64
	err = db.QueryRowContext(ctx, `SELECT amount, fence FROM account WHERE name = ?`, name).Scan(
		&amount, &mark)
	return amount, client.Token(mark), err
}

// Two cash machines draw 150 each from an account of 200. Each looks at the balance and pays out
// later, and only the lock keeps the other from looking in between.
func TestTwoCashMachines(t *testing.T) {
	db, _, dial := bed(t)
	paid := make([]bool, 2)
	var machines sync.WaitGroup
	for i := range paid {
		c := dial(t)
		machines.Go(func() {
			err := c.Do(t.Context(), name, func(ctx context.Context, lock *client.Lock) error {
				amount, _, err := look(ctx, db)
				if err != nil || amount < 150 {
					return err
				}
				paid[i] = true
				return withdraw(ctx, db, 150, lock.Token())
			})
			assert.NoError(t, err)
		})
	}
	machines.Wait()
	amount, _, err := look(t.Context(), db)
	require.NoError(t, err)
	assert.Equal(t, 50, amount)
	assert.NotEqual(t, paid[0], paid[1], "exactly one paid out")
}

// A machine looks, and is stopped: it does not run, so it can't know that an operator gave its lock
// to another. When it continues, the account refuses it.
func TestALateWriterIsRefused(t *testing.T) {
	db, operator, dial := bed(t)
	ctx := t.Context()
	late, err := dial(t).Lock(ctx, name)
	require.NoError(t, err)
	token := late.Token() // all that the stopped process still has

	_, err = admin.New(operator).ForceRelease(ctx, name, token, "it does not answer")
	require.NoError(t, err)
	next, err := dial(t).Lock(ctx, name)
	require.NoError(t, err)
	require.NoError(t, withdraw(ctx, db, 150, next.Token()))

	require.ErrorIs(t, withdraw(ctx, db, 10, token), errStale)
	require.ErrorIs(t, withdraw(ctx, db, 150, next.Token()), errNotEnough)
	require.NoError(t, withdraw(ctx, db, 10, next.Token()), "one grant may write more than once")
}

// bed is a database with one account, and a cluster of one node in memory.
func bed(t *testing.T) (db *sql.DB, operator *client.Client, dial func(*testing.T) *client.Client) {
	db, err := sql.Open("sqlite",
		filepath.Join(t.TempDir(), "bank.db")+"?_pragma=busy_timeout(5000)")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	_, err = db.Exec(
		`CREATE TABLE account (name TEXT PRIMARY KEY, amount INT NOT NULL, fence BIGINT NOT NULL DEFAULT 0);
		INSERT INTO account (name, amount) VALUES ('account/200', 200)`)
	require.NoError(t, err)

	node, err := api.StartNode(t.Context(), api.NodeConfig{Config: raftnode.Config{ID: "n1"}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, node.Close()) })
	dial = func(t *testing.T) *client.Client {
		c, err := client.Dial(t.Context(), node.Client())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() }) // whose word may come too late
		return c
	}
	return db, dial(t), dial
}
