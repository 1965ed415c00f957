package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	// deliveryTimeout is long, because a busy machine may be slow.
	deliveryTimeout = time.Minute
	// silenceDuration is how long nothing must happen to count as silence.
	silenceDuration = 150 * time.Millisecond
)

// echoed is a node b that echoes, behind a proxy that takes every client for a.
type echoed struct {
	*testing.T
	*proxyNetwork
	front string
}

func newEcho(t *testing.T) *echoed {
	back, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { // ends when back is closed
		for conn, err := back.Accept(); err == nil; conn, err = back.Accept() {
			go func() { // ends with the proxy's connection
				_, _ = io.Copy(conn, conn)
				conn.Close()
			}()
		}
	}()
	f := newProxyNetwork(func(net.Conn) string { return "a" })
	front, err := f.serve("b", "127.0.0.1:0", back.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { f.close(); back.Close() })
	return &echoed{t, f, front.String()}
}

func (e *echoed) dial() net.Conn {
	conn, err := net.Dial("tcp", e.front)
	require.NoError(e, err)
	e.Cleanup(func() { conn.Close() })
	return conn
}

// open opens a connection over which something was sent and came back.
func (e *echoed) open() net.Conn {
	conn := e.dial()
	e.send(conn, "one")
	e.requireReceived(conn, "one")
	return conn
}

func (e *echoed) send(conn net.Conn, text string) {
	_, err := io.WriteString(conn, text)
	require.NoError(e, err)
}

// receive reads what arrives within a time; "" = nothing.
func (e *echoed) receive(conn net.Conn, within time.Duration) (string, error) {
	require.NoError(e, conn.SetReadDeadline(time.Now().Add(within)))
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

func (e *echoed) requireReceived(conn net.Conn, text string) {
	got, err := e.receive(conn, deliveryTimeout)
	require.NoError(e, err)
	assert.Equal(e, text, got)
}

func (e *echoed) requireSilence(conn net.Conn) {
	got, err := e.receive(conn, silenceDuration)
	assert.Empty(e, got)
	require.ErrorContains(e, err, "timeout", "it is open, and nothing comes")
}

func (e *echoed) requireBroken(conn net.Conn) {
	_, err := e.receive(conn, deliveryTimeout)
	require.Error(e, err)
	assert.NotContains(e, err.Error(), "timeout")
}

// awaitDelivered waits until something of a has arrived since a moment, and returns when the last
// did.
func (e *echoed) awaitDelivered(since time.Duration) (last time.Duration) {
	require.Eventually(e, func() bool { return e.lastDelivery("a") > since }, deliveryTimeout,
		time.Millisecond)
	return e.lastDelivery("a")
}

func TestProxyDelivers(t *testing.T) {
	e := newEcho(t)
	before := monotonicNow()
	conn := e.open()
	e.awaitDelivered(before)
	assert.Zero(t, e.lastDelivery("another process"))
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	_, err := e.receive(conn, deliveryTimeout)
	assert.ErrorIs(t, err, io.EOF, "the end of a stream comes through too")
}

// A black hole is in one direction only, whichever side opened the connection, and loses nothing.
func TestBlackholeOneDirection(t *testing.T) {
	e := newEcho(t)
	conn := e.open()
	delivered := e.awaitDelivered(0)

	lift := e.inject(linkFault{blackhole: true}, linkID{"a", "b"})
	e.send(conn, "two")
	e.requireSilence(conn)
	assert.Equal(t, delivered, e.lastDelivery("a"), "nothing of a arrives")
	lift()
	e.requireReceived(conn, "two")
	delivered = e.awaitDelivered(delivered)

	lift = e.inject(linkFault{blackhole: true}, linkID{"b", "a"})
	e.send(conn, "three")
	e.awaitDelivered(delivered) // b receives, and its answer does not arrive
	e.requireSilence(conn)
	lift()
	e.requireReceived(conn, "three")
}

func TestBlackholeBlocksDial(t *testing.T) {
	e := newEcho(t)
	lift := e.inject(linkFault{blackhole: true}, linkID{"b", "a"})
	conn := e.dial()
	e.send(conn, "one")
	e.requireSilence(conn)
	lift()
	e.requireReceived(conn, "one")
}

func TestRefuseBreaksOpenAndNewConnections(t *testing.T) {
	e := newEcho(t)
	conn := e.open()
	lift := e.inject(linkFault{refuse: true}, linkID{"a", "b"})
	e.requireBroken(conn)
	// or it is refused so soon that nothing is opened
	if tried, err := net.Dial("tcp", e.front); err == nil {
		e.requireBroken(tried)
		tried.Close()
	}
	lift()
	e.open()
}

func TestResetIsOneShot(t *testing.T) {
	e := newEcho(t)
	conn := e.open()
	assert.Zero(t, e.resetConns(linkID{"a", "c"}))
	assert.Equal(t, 1, e.resetConns(linkID{"b", "a"}), "either direction names it")
	e.requireBroken(conn)
	e.open()
}

func TestLinkFaultsCombine(t *testing.T) {
	e := newEcho(t)
	const delay = 80 * time.Millisecond
	there := e.inject(linkFault{delay: delay}, linkID{"a", "b"})
	both := e.inject(linkFault{delay: delay}, linkID{"a", "b"}, linkID{"b", "a"})
	began := monotonicNow()
	conn := e.open()
	assert.GreaterOrEqual(t, monotonicNow()-began, 3*delay)
	there()
	both()
	is, _ := e.effectiveFault(linkID{"a", "b"})
	assert.Equal(t, linkFault{}, is)

	narrow := e.inject(linkFault{rate: 10 << 10}, linkID{"a", "b"})
	defer narrow()
	began = monotonicNow()
	e.send(conn, string(make([]byte, 3<<10)))
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(deliveryTimeout)))
	_, err := io.ReadFull(conn, make([]byte, 3<<10))
	require.NoError(t, err)
	assert.GreaterOrEqual(t, monotonicNow()-began, 250*time.Millisecond, "3 KiB at 10 KiB a second")
}

// A proxy knows a node by the process that has the socket.
func TestSocketBetween(t *testing.T) {
	conn := newEcho(t).dial()
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
	assert.Empty(t, between(from, &net.TCPAddr{IP: to.IP, Port: 1}),
		"the same port, towards another one")
}

// In a black hole for large messages a large one does not arrive, nor anything after it on the same
// connection; small ones do. When the hole is healed all arrives in order.
func TestLargeMessagesAreLost(t *testing.T) {
	e := newEcho(t)
	heal := e.inject(linkFault{passes: 10}, linkID{"a", "b"})
	small, large := e.open(), e.open()
	e.send(large, "more than ten bytes")
	e.requireSilence(large)
	e.send(large, "!")
	e.requireSilence(large)
	e.send(small, "two")
	e.requireReceived(small, "two")
	heal()
	all := make([]byte, len("more than ten bytes!"))
	require.NoError(t, large.SetReadDeadline(time.Now().Add(deliveryTimeout)))
	_, err := io.ReadFull(large, all)
	require.NoError(t, err)
	assert.Equal(t, "more than ten bytes!", string(all))
}

// Without control groups nothing is made in their place.
func TestNoControlGroupIsMadeOfFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "cpu.max")
	assert.ErrorIs(t, writeExisting(name, "1"), os.ErrNotExist)
	assert.NoFileExists(t, name)
}
