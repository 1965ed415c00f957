package main

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	// deliveryTimeout is long, because a busy machine may be slow.
	deliveryTimeout = time.Minute
	// silenceDuration is how long something must not happen to count as not happening.
	silenceDuration = 150 * time.Millisecond
)

// echo serves a node b that echoes, behind a proxy to which every client is a.
func echo(t *testing.T) (f *proxyNetwork, front string) {
	t.Helper()
	back, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { // ends when back is closed
		for {
			conn, err := back.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the proxy's connection
				_, _ = io.Copy(conn, conn)
				conn.Close()
			}()
		}
	}()
	f = newProxyNetwork(func(net.Conn) string { return "a" })
	address, err := f.serve("b", "127.0.0.1:0", back.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { f.close(); back.Close() })
	return f, address.String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
}

// receive reads what arrives within a time; "" = nothing.
func receive(t *testing.T, conn net.Conn, within time.Duration) (string, error) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(within)))
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

func requireReceived(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	got, err := receive(t, conn, deliveryTimeout)
	require.NoError(t, err)
	assert.Equal(t, text, got)
}

func requireSilence(t *testing.T, conn net.Conn) {
	t.Helper()
	got, err := receive(t, conn, silenceDuration)
	assert.Empty(t, got)
	require.ErrorContains(t, err, "timeout", "it is open, and nothing comes")
}

// awaitDelivered waits until something of a has arrived since a moment, and returns when the last did.
func awaitDelivered(t *testing.T, f *proxyNetwork, since time.Duration) (last time.Duration) {
	t.Helper()
	require.Eventually(t, func() bool { return f.lastDelivery("a") > since }, deliveryTimeout, time.Millisecond)
	return f.lastDelivery("a")
}

func TestProxyDelivers(t *testing.T) {
	f, front := echo(t)
	conn := dial(t, front)
	before := monotonicNow()
	send(t, conn, "one")
	requireReceived(t, conn, "one")
	awaitDelivered(t, f, before)
	assert.Zero(t, f.lastDelivery("somebody else"))
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	_, err := receive(t, conn, deliveryTimeout)
	assert.ErrorIs(t, err, io.EOF, "the end of a stream comes through too")
}

// A hole is in one direction only, whichever side opened the connection, and loses nothing.
func TestBlackholeOneDirection(t *testing.T) {
	f, front := echo(t)
	conn := dial(t, front)
	send(t, conn, "one")
	requireReceived(t, conn, "one")
	delivered := awaitDelivered(t, f, 0)

	lift := f.inject(linkFault{blackhole: true}, linkID{"a", "b"})
	send(t, conn, "two")
	requireSilence(t, conn)
	assert.Equal(t, delivered, f.lastDelivery("a"), "nothing of a arrives")
	lift()
	requireReceived(t, conn, "two")
	delivered = awaitDelivered(t, f, delivered)

	lift = f.inject(linkFault{blackhole: true}, linkID{"b", "a"})
	send(t, conn, "three")
	awaitDelivered(t, f, delivered) // b receives, and its answer does not arrive
	requireSilence(t, conn)
	lift()
	requireReceived(t, conn, "three")
}

func TestBlackholeBlocksDial(t *testing.T) {
	f, front := echo(t)
	lift := f.inject(linkFault{blackhole: true}, linkID{"b", "a"})
	conn := dial(t, front)
	send(t, conn, "one")
	requireSilence(t, conn)
	lift()
	requireReceived(t, conn, "one")
}

func TestRefuseBreaksOpenAndNewConnections(t *testing.T) {
	f, front := echo(t)
	conn := dial(t, front)
	send(t, conn, "one")
	requireReceived(t, conn, "one")
	lift := f.inject(linkFault{refuse: true}, linkID{"a", "b"})
	_, err := receive(t, conn, deliveryTimeout)
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "timeout")
	if tried, err := net.Dial("tcp", front); err == nil { // or it is refused so soon that nothing is opened
		_, err = receive(t, tried, deliveryTimeout)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "timeout")
		tried.Close()
	}
	lift()
	conn = dial(t, front)
	send(t, conn, "two")
	requireReceived(t, conn, "two")
}

func TestResetIsOneShot(t *testing.T) {
	f, front := echo(t)
	conn := dial(t, front)
	send(t, conn, "one")
	requireReceived(t, conn, "one")
	assert.Zero(t, f.resetConns(linkID{"a", "c"}))
	assert.Equal(t, 1, f.resetConns(linkID{"b", "a"}), "either direction names it")
	_, err := receive(t, conn, deliveryTimeout)
	require.Error(t, err)
	again := dial(t, front)
	send(t, again, "two")
	requireReceived(t, again, "two")
}

func TestLinkFaultsCombine(t *testing.T) {
	f, front := echo(t)
	const delay = 80 * time.Millisecond
	there := f.inject(linkFault{delay: delay}, linkID{"a", "b"})
	both := f.inject(linkFault{delay: delay}, linkID{"a", "b"}, linkID{"b", "a"})
	conn := dial(t, front)
	began := monotonicNow()
	send(t, conn, "slow")
	requireReceived(t, conn, "slow")
	assert.GreaterOrEqual(t, monotonicNow()-began, 3*delay)
	there()
	both()
	is, _ := f.link(linkID{"a", "b"}).effectiveFault()
	assert.Equal(t, linkFault{}, is)

	narrow := f.inject(linkFault{rate: 10 << 10}, linkID{"a", "b"})
	defer narrow()
	began = monotonicNow()
	send(t, conn, string(make([]byte, 3<<10)))
	got := 0
	for got < 3<<10 {
		text, err := receive(t, conn, deliveryTimeout)
		require.NoError(t, err)
		got += len(text)
	}
	assert.GreaterOrEqual(t, monotonicNow()-began, 250*time.Millisecond, "3 KiB at 10 KiB a second")
}

// A proxy knows a node by the process that has the socket.
func TestSocketBetween(t *testing.T) {
	_, front := echo(t)
	conn := dial(t, front)
	from, to := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	between := func(from, to *net.TCPAddr) string {
		inode, err := socketBetween(from, to)
		require.NoError(t, err)
		return inode
	}
	inode := between(from, to)
	require.NotEmpty(t, inode)
	assert.True(t, hasSocket(os.Getpid(), inode))
	assert.False(t, hasSocket(os.Getpid(), "1"))
	assert.NotEqual(t, inode, between(to, from), "that is the other end")
	assert.Empty(t, between(from, &net.TCPAddr{IP: to.IP, Port: 1}), "the same port, towards another one")
}
