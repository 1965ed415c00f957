package netns

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/jepsen/real/claim"
)

// newForTest is a network for a test. One at a time: the names of a run are its own.
func newForTest(t *testing.T, names ...string) *Network {
	t.Helper()
	n, err := New(names...)
	if errors.Is(err, ErrUnsupported) {
		fmt.Printf("SKIPPED %s: %v\n", t.Name(), err)
		t.Skip("needs root and iproute2")
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

const deliveryTimeout, retransmitTimeout = 300 * time.Millisecond, time.Minute

// echo answers in a namespace each line with the same line.
func echo(t *testing.T, n *Network, name string) (address string) {
	t.Helper()
	var in net.Listener
	require.NoError(t, n.Do(name, func() (err error) {
		in, err = net.Listen("tcp4", net.JoinHostPort(n.Addr(name).String(), "0"))
		return err
	}))
	t.Cleanup(func() { require.NoError(t, in.Close()) })
	go func() {
		for {
			conn, err := in.Accept()
			if err != nil {
				return // closed by the test's end
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					fmt.Fprintln(conn, lines.Text())
				}
			}()
		}
	}()
	return in.Addr().String()
}

// testConn is an open connection from a namespace.
type testConn struct {
	net.Conn
	*bufio.Scanner
}

func dial(t *testing.T, n *Network, name, address string) testConn {
	t.Helper()
	var conn net.Conn
	require.NoError(t, n.Do(name, func() (err error) {
		conn, err = net.DialTimeout("tcp4", address, retransmitTimeout)
		return err
	}))
	t.Cleanup(func() { conn.Close() })
	return testConn{conn, bufio.NewScanner(conn)}
}

// send sends a word and waits for the echo.
func (l testConn) send(t *testing.T, word string, within time.Duration) bool {
	t.Helper()
	_, err := fmt.Fprintln(l, word)
	require.NoError(t, err)
	return l.receive(t, word, within)
}

func (l testConn) receive(t *testing.T, word string, within time.Duration) bool {
	t.Helper()
	require.NoError(t, l.SetReadDeadline(time.Now().Add(within)))
	if !l.Scan() {
		require.ErrorIs(t, l.Err(), os.ErrDeadlineExceeded, "nobody is told")
		return false
	}
	require.Equal(t, word, l.Text())
	return true
}

// A hole is one-way and silent, and loses nothing that TCP can send again.
func TestDrop(t *testing.T) {
	n := newForTest(t, "n1", "n2", "n3")
	address := echo(t, n, "n1")
	for _, h := range []drop{{"n2", "n1"}, {"n1", "n2"}} {
		a, b := dial(t, n, "n2", address), dial(t, n, "n3", address)
		require.True(t, a.send(t, "before", retransmitTimeout))
		require.NoError(t, n.Drop(h.from, h.to))
		require.NoError(t, n.Drop(h.from, h.to), "it is there already")
		require.False(t, a.send(t, "lost", deliveryTimeout))
		require.True(t, b.send(t, "others", retransmitTimeout))
		err := n.Do("n2", func() error {
			conn, err := net.DialTimeout("tcp4", address, deliveryTimeout)
			if err == nil {
				conn.Close()
			}
			return err
		})
		var silent net.Error
		require.ErrorAs(t, err, &silent)
		require.True(t, silent.Timeout(), "not refused, not unreachable: %v", err)
		require.NoError(t, n.Undrop(h.from, h.to))
		a.Scanner = bufio.NewScanner(a.Conn)
		require.True(t, a.receive(t, "lost", retransmitTimeout))
	}
}

func TestLinkDown(t *testing.T) {
	n := newForTest(t, "n1", "n2")
	a := dial(t, n, "n2", echo(t, n, "n1"))
	require.True(t, a.send(t, "before", retransmitTimeout))
	require.NoError(t, n.LinkDown("n1"))
	require.NoError(t, n.Drop("n1", "n2"))
	require.False(t, a.send(t, "late", deliveryTimeout))
	require.NoError(t, n.Heal())
	a.Scanner = bufio.NewScanner(a.Conn)
	require.True(t, a.receive(t, "late", retransmitTimeout))
}

// A process that is started inside sees no other network; who started it still does.
func TestStart(t *testing.T) {
	n := newForTest(t, "n1")
	cmd := exec.Command("ip", "-brief", "addr")
	var said strings.Builder
	cmd.Stdout = &said
	require.NoError(t, n.Start("n1", cmd))
	require.NoError(t, cmd.Wait())
	require.Contains(t, said.String(), n.Addr("n1").String())
	own, err := exec.Command("ip", "-brief", "addr").Output()
	require.NoError(t, err)
	require.NotContains(t, string(own), n.Addr("n1").String())
}

// N2: what a dead run has left goes, what a living one has does not.
func TestDeadRunsAreRemoved(t *testing.T) {
	n := newForTest(t, "n1")
	left := n.run + "0.n1" // as of a process with this pid that began at another moment
	require.NoError(t, ip("", "netns add "+left))
	require.True(t, claim.Dead(left))
	require.NoError(t, removeDeadRuns())
	require.NoFileExists(t, netnsDir+"/"+left)
	require.FileExists(t, netnsDir+"/"+n.namespace("n1"))
}
