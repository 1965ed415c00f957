package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"zamok/api"
	"zamok/client"
	"zamok/raftnode"
	"zamok/raftnode/peer"
)

// testTimeout is how long a test waits for what should happen soon: the machine may be busy.
const testTimeout = 30 * time.Second

// pollEvery is how often a test looks whether it has happened.
const pollEvery = 5 * time.Millisecond

// steady is the election timeout of nodes that have others: clients get over a change of leader,
// but on a busy machine there must not be one after the other.
const steady = time.Second

// alone is that of a node without others, which it can take nothing from: the shortest there is,
// since most of what these tests take is waiting for first elections.
const alone = 50 * time.Millisecond

// cluster is nodes on loopback, in memory, in this process.
type cluster struct {
	testing.TB
	nodes []*api.Node
}

// TestMain looks that no goroutine is left after all tests. Many run beside others: most of what
// they do is wait.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := noneLeft(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// startCluster starts nodes n1, n2, … and ends them with the test.
func startCluster(t testing.TB, size int) *cluster {
	return startNodes(t, size, func(*api.NodeConfig) {})
}

// startNodes is startCluster for nodes that are made otherwise.
func startNodes(t testing.TB, size int, change func(*api.NodeConfig)) *cluster {
	var listeners []net.Listener
	list := ""
	for i := range size {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		listeners = append(listeners, l)
		list += fmt.Sprintf(",n%d=%v", i+1, l.Addr())
	}
	members, err := peer.ParseList(list[1:])
	require.NoError(t, err)
	c := &cluster{TB: t, nodes: make([]*api.Node, size)}
	started := make(chan error, size)
	for i := range size {
		go func() {
			var err error
			cfg := api.NodeConfig{Config: raftnode.Config{
				ID:    fmt.Sprintf("n%d", i+1),
				Peers: peer.Config{List: members, Listener: listeners[i]}, ElectionTimeout: steady,
				Fatal: func(err error) { t.Errorf("fatal: %v", err) },
			}}
			if size == 1 {
				cfg.ElectionTimeout = alone
			}
			change(&cfg)
			c.nodes[i], err = api.StartNode(t.Context(), cfg)
			started <- err
		}()
	}
	for range size {
		require.NoError(t, <-started)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			require.NoError(t, n.Kill())
		}
	})
	return c
}

// noneLeft waits until no goroutine is left. gRPC's end a little after their connection, and goleak
// by itself waits for less than half a second.
func noneLeft() error {
	began := time.Now()
	err := goleak.Find()
	for err != nil && time.Since(began) < testTimeout {
		err = goleak.Find()
	}
	return err
}

// leader waits until a node leads.
func (c *cluster) leader() (leads *api.Node) {
	require.Eventually(c, func() bool {
		for _, n := range c.nodes {
			if n.Raft().Status().Leading {
				leads = n
				return true
			}
		}
		return false
	}, testTimeout, 5*time.Millisecond)
	return leads
}

func (c *cluster) endpoints() []string {
	var all []string
	for _, n := range c.nodes {
		all = append(all, n.Client())
	}
	return all
}

// client makes a client that is closed with the test. change may be nil. Neither its calls nor its
// locks end because the machine was busy.
func (c *cluster) client(change func(*client.Config)) *client.Client {
	cfg := client.Config{
		Endpoints: c.endpoints(), RequestTimeout: testTimeout, TTL: 2 * testTimeout,
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	cl, err := client.New(cfg)
	require.NoError(c, err)
	c.Cleanup(func() { _ = cl.Close() })
	return cl
}

// hangUp closes a client. The cluster's word may be late on a busy machine, which is all that may
// go wrong; that it comes is seen in virtual time (jepsen/sim).
func hangUp(t testing.TB, cl *client.Client) {
	t.Helper()
	if err := cl.Close(); err != nil {
		mayHaveDone(t, err)
	}
}

// mayHaveDone looks that an error says only that the cluster's word did not come in time.
func mayHaveDone(t testing.TB, err error) {
	t.Helper()
	var one *client.Error
	require.ErrorAs(t, err, &one)
	require.Equal(t, client.Unknown, one.Outcome, "%v", err)
}

// soon is a context for what should happen soon.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// waiting waits until so many wait for a lock.
func (c *cluster) waiting(cl *client.Client, name string, n int) {
	ctx := soon(c)
	require.Eventually(c, func() bool {
		info, err := cl.Get(ctx, name, 0)
		return err == nil && info.Waiters == n
	}, testTimeout, 5*time.Millisecond, "%d waiters of %s", n, name)
}

// free waits until a lock has no holder, waiter or delay.
func (c *cluster) free(cl *client.Client, name string) {
	ctx := soon(c)
	require.Eventually(c, func() bool {
		info, err := cl.Get(ctx, name, 0)
		return err == nil && info.Holders == 0 && info.Waiters == 0
	}, testTimeout, 5*time.Millisecond, "%s is not free", name)
}

// closed reports whether a channel is closed by now.
func closed[T any](ch <-chan T) bool {
	select {
	case _, open := <-ch:
		return !open
	default:
		return false
	}
}

// until waits for a channel.
func until[T any](t testing.TB, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(testTimeout):
		require.FailNow(t, "nothing came", what)
	}
	return v
}

// takesTime leaves a test out of the quick half: it waits for spans of time, and no mutant names
// it.
func takesTime(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it waits for spans of time: left out with -short")
	}
}
