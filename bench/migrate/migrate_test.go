package migrate

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/bench/server"
	"zamok/client"
	"zamok/client/admin"
)

const (
	eventTimeout = 30 * time.Second       // for events that must happen
	quietTime    = 250 * time.Millisecond // for events that must not happen
)

// work is what a program does under a lock. Its context ends if the program learns that the lock is
// lost; number rises from grant to grant, and is 0 where the system has no such number.
type work func(ctx context.Context, number int64) error

// program does its work under the lock of a name.
type program func(ctx context.Context, name string, work work) error

// zamokLocked is the program of all guides.
func zamokLocked(c *client.Client) program {
	return func(ctx context.Context, name string, work work) error {
		return c.Do(ctx, name, func(ctx context.Context, lock *client.Lock) error {
			return work(ctx, int64(lock.Token()))
		})
	}
}

func zamokTry(ctx context.Context, c *client.Client, name string, work func() error) error {
	lock, err := c.TryLock(ctx, name)
	switch {
	case errors.Is(err, client.ErrNotAcquired):
		return nil // another process does it
	case err != nil:
		return err
	}
	defer lock.Unlock(ctx)
	return work()
}

// zamokCandidate works while it is elected.
func zamokCandidate(c *client.Client, value string) program {
	return func(ctx context.Context, name string, work work) error {
		lock, err := c.Election(name).Campaign(ctx, []byte(value))
		if err != nil {
			return err
		}
		defer lock.Unlock(ctx)
		return work(lock.Context(), int64(lock.Token()))
	}
}

func zamokObserve(ctx context.Context, c *client.Client, name string,
	elected func(value string)) error {
	for leader, err := range c.Election(name).Observe(ctx) {
		if err != nil {
			return err
		}
		elected(string(leader.Value)) // without a leader it is empty
	}
	return ctx.Err()
}

// both is a program during a transition. The lock of the old system comes first, in every program.
func both(old, new program) program {
	return func(ctx context.Context, name string, work work) error {
		return old(ctx, name, func(ctx context.Context, _ int64) error {
			return new(ctx, name, work)
		})
	}
}

// holding is a program in the middle of its work.
type holding struct {
	number int64
	lost   <-chan struct{}
	finish func() error // returns what the program does
}

// begin starts a program. The channel delivers when its work has begun.
func begin(t *testing.T, p program, name string) <-chan holding {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	working, end, ended := make(chan holding, 1), make(chan struct{}), make(chan error, 1)
	finish := sync.OnceValue(func() error { close(end); return <-ended })
	go func() { // ends with finish
		ended <- p(ctx, name, func(ctx context.Context, number int64) error {
			working <- holding{number, ctx.Done(), finish}
			<-end
			return nil
		})
	}()
	t.Cleanup(func() { cancel(); _ = finish() })
	return working
}

// within is what the channel delivers. It fails if that takes longer than d.
func within[T any](t *testing.T, d time.Duration, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(d):
		require.FailNow(t, what+" did not happen", "within %v", d)
		panic("unreachable")
	}
}

// notYet fails if the channel delivers, or is closed, within quietTime.
func notYet[T any](t *testing.T, c <-chan T, what string) {
	t.Helper()
	select {
	case <-c:
		require.FailNow(t, what)
	case <-time.After(quietTime):
	}
}

// exclude tests that a second program waits for the first one, and then works. It returns the
// numbers of both.
func exclude(t *testing.T, first, second program) (a, b int64) {
	t.Helper()
	name := lockName(t)
	one := within(t, eventTimeout, begin(t, first, name), "the first one's work")
	waiting := begin(t, second, name)
	notYet(t, waiting, "two work at once")
	require.NoError(t, one.finish())
	two := within(t, eventTimeout, waiting, "the second one's work")
	require.NoError(t, two.finish())
	return one.number, two.number
}

// testMove tests each step of a migration: programs that may run at the same time exclude each
// other. numbered is whether the old system has numbers that rise.
func testMove(t *testing.T, old, new program, numbered bool) {
	t.Helper()
	for _, c := range []struct {
		step          string
		first, second program
	}{
		{"old, both", old, both(old, new)}, {"both, old", both(old, new), old},
		{"both, both", both(old, new), both(old, new)},
		{"both, new", both(old, new), new}, {"new, both", new, both(old, new)},
	} {
		t.Run(c.step, func(t *testing.T) { exclude(t, c.first, c.second) })
	}
	t.Run("new, new", func(t *testing.T) {
		first, second := exclude(t, new, new)
		require.Greater(t, second, first)
	})
	t.Run("old, new, which must not be", func(t *testing.T) {
		name := lockName(t)
		within(t, eventTimeout, begin(t, old, name), "the old one's work")
		within(t, eventTimeout, begin(t, new, name), "the new one's work")
	})
	t.Run("old, old", func(t *testing.T) {
		if first, second := exclude(t, old, old); numbered {
			require.Greater(t, second, first)
		}
	})
}

func lockName(t *testing.T) string {
	return strings.NewReplacer("/", "-", ", ", "-").Replace(t.Name())
}

// testTry tests a program that works only if no other program does.
func testTry(t *testing.T, locked program,
	try func(ctx context.Context, name string, work func() error) error) {
	t.Helper()
	tried := func() (worked bool) {
		require.NoError(t, try(t.Context(), "try", func() error { worked = true; return nil }))
		return worked
	}
	require.True(t, tried())
	held := within(t, eventTimeout, begin(t, locked, "try"), "the work")
	require.False(t, tried())
	require.NoError(t, held.finish())
	require.True(t, tried())
}

// testElection tests that an observer sees which program is elected.
func testElection(t *testing.T, candidate func(value string) program,
	observe func(ctx context.Context, name string, elected func(string)) error) {
	t.Helper()
	elected := make(chan string, 16)
	go func() { // ends with the test
		_ = observe(t.Context(), "election", func(value string) { elected <- value })
	}()
	sees := func(value string) {
		for within(t, eventTimeout, elected, "the election of "+value) != value {
			continue
		}
	}
	a := within(t, eventTimeout, begin(t, candidate("a"), "election"), "a's election")
	sees("a")
	waiting := begin(t, candidate("b"), "election")
	notYet(t, waiting, "two are elected")
	require.NoError(t, a.finish())
	sees("b")
	require.NoError(t, within(t, eventTimeout, waiting, "b's election").finish())
}

// keepsOn fails if a waiting program begins within d, or the holder's lock is lost.
func keepsOn(t *testing.T, held holding, waiting <-chan holding, d time.Duration) {
	t.Helper()
	select {
	case <-waiting:
		require.FailNow(t, "two work at once")
	case <-held.lost:
		require.FailNow(t, "the lock was lost")
	case <-time.After(d):
	}
}

// testCut cuts the holder's cable, waits for the next program, and returns whether the holder knew
// of its loss by then.
func testCut(t *testing.T, line *cable, holder, next program) (knew bool) {
	t.Helper()
	name := lockName(t)
	held := within(t, eventTimeout, begin(t, holder, name), "the holder's work")
	waiting := begin(t, next, name)
	notYet(t, waiting, "two work at once")
	line.setCut(true)
	t.Cleanup(func() { line.setCut(false) }) // before the holder is ended, which must release
	cut := time.Now()
	within(t, 2*eventTimeout, waiting, "the next one's work")
	t.Logf("the next one works %v after the cut", time.Since(cut).Round(10*time.Millisecond))
	select {
	case <-held.lost:
		return true
	default:
		return false
	}
}

// testFailover kills the leader while one program works and another waits: both continue.
func testFailover(t *testing.T, nodes *server.Cluster, holder, next program) {
	t.Helper()
	held := within(t, eventTimeout, begin(t, holder, "failover"), "the work")
	waiting := begin(t, next, "failover")
	notYet(t, waiting, "two work at once")
	leader, err := nodes.Leader(t.Context())
	require.NoError(t, err)
	nodes.Kill(leader)
	_, err = nodes.Leader(t.Context())
	require.NoError(t, err)
	keepsOn(t, held, waiting, quietTime)
	require.NoError(t, held.finish())
	within(t, eventTimeout, waiting, "the next one's work")
}

// cable makes connections that can go silent, like a cable that is pulled out: nothing arrives,
// without an error.
type cable struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (c *cable) setCut(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	for _, conn := range c.conns {
		if !cut {
			_ = conn.Close() // else the lost bytes would be missing
		}
	}
}

func (c *cable) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *cable) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.isCut() {
		return nil, errors.New("the cable is cut")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	return &cableConn{conn, c}, nil
}

type cableConn struct {
	net.Conn
	*cable
}

func (c *cableConn) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.isCut() {
			return n, err
		}
	}
}

func (c *cableConn) Write(b []byte) (int, error) {
	if c.isCut() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

var programs string // a folder for what is built

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "migrate"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

// zamokProgram is the command, built from this tree.
var zamokProgram = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "zamok")
	out, err := exec.Command("go", "build", "-C", "../..", "-o", path,
		"./cmd/zamok").CombinedOutput()
	if err != nil {
		return string(out), err
	}
	return path, nil
})

// installed skips the test if a program is not on this machine.
func installed(t *testing.T, name, install string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%v: %s", err, install)
	}
	return path
}

// start runs servers of a kind.
func start(t *testing.T, kind string, nodes int, p server.Programs) *server.Cluster {
	t.Helper()
	// not t.TempDir: PostgreSQL's user must be able to enter it
	dir, err := os.MkdirTemp("", "migrate")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	cluster, err := server.Start(kind, nodes, dir, p)
	require.NoError(t, err)
	t.Cleanup(cluster.Stop)
	return cluster
}

// startZamok returns when the cluster responds.
func startZamok(t *testing.T, nodes int) *server.Cluster {
	t.Helper()
	path, err := zamokProgram()
	require.NoError(t, err, path)
	cluster := start(t, "zamok", nodes, server.Programs{Zamok: path})
	c := dialZamok(t, cluster, client.Config{})
	ready(t, func(ctx context.Context) error {
		_, err := admin.New(c).Now(ctx)
		return err
	})
	return cluster
}

// dialZamok makes a client. cfg may be zero.
func dialZamok(t *testing.T, nodes *server.Cluster, cfg client.Config) *client.Client {
	t.Helper()
	cfg.Endpoints, cfg.Logger = nodes.Endpoints, slog.New(slog.DiscardHandler)
	c, err := client.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ready waits until a server responds.
func ready(t *testing.T, call func(ctx context.Context) error) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		require.NoError(c, call(ctx))
	}, eventTimeout, 50*time.Millisecond)
}

// The claims of every guide about zamok.
func TestZamok(t *testing.T) {
	t.Parallel()
	node := startZamok(t, 1)
	c := dialZamok(t, node, client.Config{})
	t.Run("an ended session ends the work", func(t *testing.T) {
		held := within(t, eventTimeout, begin(t, zamokLocked(c), "ended"), "the work")
		info, err := c.Get(t.Context(), "ended", 1)
		require.NoError(t, err)
		require.NoError(t, admin.New(c).ExpireSession(t.Context(), info.Held[0].Session, "test"))
		within(t, eventTimeout, held.lost, "the loss")
		require.ErrorIs(t, held.finish(), client.ErrLost)
	})
	t.Run("a holder that is cut off knows before the next one works", func(t *testing.T) {
		t.Parallel()
		line := new(cable)
		holder := dialZamok(t, node,
			client.Config{TTL: 3 * time.Second,
				Dialer: func(ctx context.Context, address string) (net.Conn, error) {
					return line.dial(ctx, "tcp", address)
				}})
		require.True(t, testCut(t, line, zamokLocked(holder),
			zamokLocked(dialZamok(t, node, client.Config{}))))
	})
	t.Run("try", func(t *testing.T) {
		testTry(t, zamokLocked(c), func(ctx context.Context, name string, work func() error) error {
			return zamokTry(ctx, c, name, work)
		})
	})
	t.Run("election", func(t *testing.T) {
		testElection(t, func(value string) program { return zamokCandidate(c, value) },
			func(ctx context.Context, name string, elected func(string)) error {
				return zamokObserve(ctx, c, name, elected)
			})
	})
	t.Run("a leader that is killed", func(t *testing.T) {
		t.Parallel()
		nodes := startZamok(t, 3)
		testFailover(t, nodes, zamokLocked(dialZamok(t, nodes, client.Config{})),
			zamokLocked(dialZamok(t, nodes, client.Config{})))
	})
	t.Run("not reentrant", func(t *testing.T) {
		lock, err := c.Lock(t.Context(), "once", client.WithOwner("thread 1"))
		require.NoError(t, err)
		_, err = c.TryLock(t.Context(), "once")
		require.ErrorIs(t, err, client.ErrNotAcquired)
		_, err = c.Lock(t.Context(), "once", client.WithOwner("thread 1"))
		require.ErrorIs(t, err, client.ErrDeadlock)
		require.NoError(t, lock.Unlock(t.Context()))
	})
}
