package migrate

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	etcd "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"zamok/bench/server"
	"zamok/client"
)

func dialEtcd(t *testing.T, nodes *server.Cluster, options ...grpc.DialOption) *etcd.Client {
	t.Helper()
	c, err := etcd.New(etcd.Config{Endpoints: nodes.Endpoints, Logger: zap.NewNop(),
		DialOptions: options})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	ready(t, func(ctx context.Context) error {
		_, err := c.Get(ctx, "ready")
		return err
	})
	return c
}

// etcdLocked is a program of etcd.
func etcdLocked(c *etcd.Client, ttl int) program {
	return func(ctx context.Context, name string, work work) error {
		session, err := concurrency.NewSession(c, concurrency.WithTTL(ttl))
		if err != nil {
			return err
		}
		defer session.Close()
		mutex := concurrency.NewMutex(session, name)
		if err := mutex.Lock(ctx); err != nil {
			return err
		}
		defer mutex.Unlock(context.WithoutCancel(ctx))
		return work(session.Ctx(), mutex.Header().Revision)
	}
}

func etcdTry(ctx context.Context, c *etcd.Client, name string, work func() error) error {
	session, err := concurrency.NewSession(c)
	if err != nil {
		return err
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, name)
	switch err := mutex.TryLock(ctx); {
	case errors.Is(err, concurrency.ErrLocked):
		return nil // another process does it
	case err != nil:
		return err
	}
	defer mutex.Unlock(ctx)
	return work()
}

// etcdCandidate works while it is elected.
func etcdCandidate(c *etcd.Client, value string) program {
	return func(ctx context.Context, name string, work work) error {
		session, err := concurrency.NewSession(c)
		if err != nil {
			return err
		}
		defer session.Close()
		election := concurrency.NewElection(session, name)
		if err := election.Campaign(ctx, value); err != nil {
			return err
		}
		defer election.Resign(context.WithoutCancel(ctx))
		return work(session.Ctx(), election.Rev())
	}
}

func etcdObserve(ctx context.Context, c *etcd.Client, name string,
	elected func(value string)) error {
	session, err := concurrency.NewSession(c)
	if err != nil {
		return err
	}
	defer session.Close()
	election := concurrency.NewElection(session, name)
	for answer := range election.Observe(ctx) {
		elected(string(answer.Kvs[0].Value))
	}
	return ctx.Err()
}

func TestEtcd(t *testing.T) {
	path := installed(t, "etcd",
		"in bench, go build -o FOLDER/etcd go.etcd.io/etcd/server/v3, or apt install etcd-server")
	t.Parallel()
	node, zamok := start(t, "etcd", 1, server.Programs{Etcd: path}), startZamok(t, 1)
	e, z := dialEtcd(t, node), dialZamok(t, zamok, client.Config{})

	testMove(t, etcdLocked(e, 10), zamokLocked(z), true)

	t.Run("a revoked lease ends the work", func(t *testing.T) {
		held := within(t, eventTimeout, begin(t, etcdLocked(e, 10), "revoked"), "the work")
		answer, err := e.Leases(t.Context())
		require.NoError(t, err)
		for _, lease := range answer.Leases {
			_, err := e.Revoke(t.Context(), lease.ID)
			require.NoError(t, err)
		}
		within(t, eventTimeout, held.lost, "the loss")
	})

	t.Run("cut off", func(t *testing.T) { // when the holder knows is not promised
		t.Parallel()
		line := new(cable)
		holder := dialEtcd(t, node,
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return line.dial(ctx, "tcp", address)
			}))
		t.Logf("the holder knew: %v", testCut(t, line, etcdLocked(holder, 3), etcdLocked(e, 3)))
	})

	t.Run("a leader that is killed", func(t *testing.T) {
		t.Parallel()
		nodes := start(t, "etcd", 3, server.Programs{Etcd: path})
		testFailover(t, nodes, etcdLocked(dialEtcd(t, nodes), 10),
			etcdLocked(dialEtcd(t, nodes), 10))
	})

	t.Run("two mutexes of one session are one", func(t *testing.T) {
		session, err := concurrency.NewSession(e)
		require.NoError(t, err)
		defer session.Close()
		a, b := concurrency.NewMutex(session, "one"), concurrency.NewMutex(session, "one")
		require.NoError(t, a.Lock(t.Context()))
		require.NoError(t, b.Lock(t.Context()), "at once: the key is that of the session")
		require.NoError(t, a.Unlock(t.Context()))

		other, err := concurrency.NewSession(e)
		require.NoError(t, err)
		defer other.Close()
		require.NoError(t, concurrency.NewMutex(other, "one").TryLock(t.Context()),
			"b thinks that it holds it")
		require.NoError(t, b.Unlock(t.Context()), "without an error")

		lock, err := z.Lock(t.Context(), "one")
		require.NoError(t, err)
		_, err = z.TryLock(t.Context(), "one")
		require.ErrorIs(t, err, client.ErrNotAcquired, "of the same client")
		require.NoError(t, lock.Unlock(t.Context()))
	})

	t.Run("try", func(t *testing.T) {
		testTry(t, etcdLocked(e, 10),
			func(ctx context.Context, name string, work func() error) error {
				return etcdTry(ctx, e, name, work)
			})
	})

	t.Run("election", func(t *testing.T) {
		testElection(t, func(value string) program { return etcdCandidate(e, value) },
			func(ctx context.Context, name string, elected func(string)) error {
				return etcdObserve(ctx, e, name, elected)
			})
	})

	t.Run("a waiter whose lease ended", func(t *testing.T) { testWaiterWithoutLease(t, e) })

	t.Run("commands", func(t *testing.T) {
		installed(t, "etcdctl", "apt install etcd-client")
		runCommands(t, "from-etcd.md", zamok, "ETCDCTL_API=3",
			"ETCDCTL_ENDPOINTS="+node.Endpoints[0])
		testEtcdctlAfterLoss(t, node.Endpoints[0], e)
	})
}

// testWaiterWithoutLease tests that a waiter whose lease ended waits on, and then fails.
func testWaiterWithoutLease(t *testing.T, e *etcd.Client) {
	held := within(t, eventTimeout, begin(t, etcdLocked(e, 10), "lease"), "the work")
	session, err := concurrency.NewSession(e)
	require.NoError(t, err)
	defer session.Close()
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	defer cancel()
	waited := make(chan error, 1)
	// ends with ctx at the latest
	go func() { waited <- concurrency.NewMutex(session, "lease").Lock(ctx) }()
	require.Eventually(t, func() bool {
		keys, err := e.Get(t.Context(), "lease/", etcd.WithPrefix(), etcd.WithCountOnly())
		return err == nil && keys.Count == 2
	}, eventTimeout, 10*time.Millisecond)
	_, err = e.Revoke(t.Context(), session.Lease())
	require.NoError(t, err)
	notYet(t, waited, "the wait has ended")
	require.NoError(t, held.finish())
	require.ErrorIs(t, within(t, eventTimeout, waited, "the end of the wait"),
		concurrency.ErrSessionExpired)
}

// testEtcdctlAfterLoss tests that etcdctl's command continues when another client holds its lock.
func testEtcdctlAfterLoss(t *testing.T, address string, e *etcd.Client) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "etcdctl", "lock", "--", "lost", "sh", "-c",
		"until [ -e stop ]; do :; done; touch stopped")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "ETCDCTL_API=3", "ETCDCTL_ENDPOINTS="+address)
	require.NoError(t, cmd.Start())
	var keys *etcd.GetResponse
	require.Eventually(t, func() (held bool) {
		keys, _ = e.Get(t.Context(), "lost/", etcd.WithPrefix())
		return keys != nil && len(keys.Kvs) == 1
	}, eventTimeout, 10*time.Millisecond)
	_, err := e.Revoke(t.Context(), etcd.LeaseID(keys.Kvs[0].Lease))
	require.NoError(t, err)
	next := within(t, eventTimeout, begin(t, etcdLocked(e, 10), "lost"),
		"the next one's work, beside the command")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600))
	_ = cmd.Wait() // its status is that of the unlock
	require.FileExists(t, filepath.Join(dir, "stopped"))
	require.NoError(t, next.finish())
}
