package migrate

import (
	"context"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"zamok/bench/server"
	"zamok/client"
	"zamok/client/admin"
)

// dialZooKeeper opens a session. The context ends when the client reports that the session is over.
func dialZooKeeper(t *testing.T, nodes *server.Cluster, sessionTimeout time.Duration,
	dial func(context.Context, string, string) (net.Conn, error)) (*zk.Conn, context.Context) {
	t.Helper()
	dialer := func(network, address string, timeout time.Duration) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		return dial(ctx, network, address)
	}
	conn, events, err := zk.Connect(nodes.Endpoints, sessionTimeout, zk.WithDialer(dialer),
		zk.WithLogger(log.New(io.Discard, "", 0)), zk.WithLogInfo(false))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	session, lost := context.WithCancel(context.Background())
	t.Cleanup(lost)
	go func() { // ends with the connection
		for event := range events {
			if event.State == zk.StateExpired {
				lost()
			}
		}
	}()
	ready(t, func(context.Context) error {
		_, _, err := conn.Exists("/")
		return err
	})
	return conn, session
}

// zkLocked is a program that uses go-zookeeper. session ends when the session is reported to be
// over.
func zkLocked(conn *zk.Conn, session context.Context) program {
	return func(_ context.Context, name string, work work) error {
		lock := zk.NewLock(conn, "/"+name, zk.WorldACL(zk.PermAll))
		if err := lock.Lock(); err != nil { // no context ends this wait
			return err
		}
		defer lock.Unlock()
		return work(session, 0)
	}
}

func TestZooKeeper(t *testing.T) {
	if _, err := os.Stat("/usr/share/java/zookeeper.jar"); err != nil {
		t.Skipf("%v: apt install zookeeper", err)
	}
	installed(t, "java", "apt install default-jre-headless")
	t.Parallel()
	node, zamok := start(t, "zookeeper", 1, server.Programs{}), startZamok(t, 1)
	// the shortest that servers grant, and one for a failover
	const short, long = 4 * time.Second, 20 * time.Second
	plain := (&net.Dialer{}).DialContext
	conn, session := dialZooKeeper(t, node, short, plain)
	z := dialZamok(t, zamok, client.Config{})

	testMove(t, zkLocked(conn, session), zamokLocked(z), false)

	t.Run("cut off", func(t *testing.T) {
		t.Parallel()
		line := new(cable)
		holder, expired := dialZooKeeper(t, node, short, line.dial)
		require.False(t, testCut(t, line, zkLocked(holder, expired), zkLocked(conn, session)),
			"only the server reports the end, and it can't be reached")
		line.setCut(false)
		within(t, eventTimeout, expired.Done(), "the report, after the next connection")
	})

	t.Run("a leader that is killed", func(t *testing.T) {
		t.Parallel()
		nodes := start(t, "zookeeper", 3, server.Programs{})
		testFailover(t, nodes, zkLocked(dialZooKeeper(t, nodes, long, plain)),
			zkLocked(dialZooKeeper(t, nodes, long, plain)))
	})

	t.Run("Curator", func(t *testing.T) {
		t.Parallel()
		installed(t, "javac", "apt install default-jdk-headless")
		const folder = "/usr/share/java/"
		if _, err := os.Stat(folder + "curator-recipes.jar"); err != nil {
			t.Skipf("%v: apt install libcurator-recipes-java", err)
		}
		jars := folder + strings.Join([]string{"curator-recipes", "curator-framework",
			"curator-client", "zookeeper", "guava", "slf4j-nop"}, ".jar:"+folder) + ".jar"
		runProgram(t, "java", "-cp", jars, "testdata/Curator.java", node.Endpoints[0])
	})

	t.Run("Kazoo", func(t *testing.T) {
		t.Parallel()
		const python = "/usr/bin/python3" // the packages are Debian's
		if err := exec.Command(python, "-c", "import kazoo").Run(); err != nil {
			t.Skipf("no Kazoo (%v): apt install python3-kazoo", err)
		}
		members, _, err := admin.New(z).Members(t.Context())
		require.NoError(t, err)
		runProgram(t, "env", "PYTHONPATH=../../client/python", python, "testdata/kazoo_locks.py",
			node.Endpoints[0], "http://"+members[0].HTTP)
	})

	t.Run("permits", func(t *testing.T) { // as Curator's and Kazoo's semaphores
		permit := func(ctx context.Context, name string, work work) error {
			return zamokPermit(ctx, z, name,
				func(ctx context.Context) error { return work(ctx, 0) })
		}
		a := within(t, eventTimeout, begin(t, permit, "permits"), "the first work")
		within(t, eventTimeout, begin(t, permit, "permits"), "the second work")
		within(t, eventTimeout, begin(t, permit, "permits"), "the third work")
		fourth := begin(t, permit, "permits")
		notYet(t, fourth, "four work at once")
		_, err := z.TryLock(t.Context(), "permits", client.Permits(1, 4))
		require.ErrorIs(t, err, client.ErrKindMismatch, "another limit")
		require.NoError(t, a.finish())
		within(t, eventTimeout, fourth, "the fourth work")
	})

	t.Run("commands", func(t *testing.T) { runCommands(t, "from-zookeeper.md", zamok) })
}

func zamokPermit(ctx context.Context, c *client.Client, name string,
	work func(ctx context.Context) error) error {
	lock, err := c.Lock(ctx, name, client.Permits(1, 3))
	if err != nil {
		return err
	}
	defer lock.Unlock(ctx)
	return work(lock.Context())
}

// runProgram runs a program in another language, which checks itself.
func runProgram(t *testing.T, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*eventTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "ok", strings.TrimSpace(string(out)))
}
