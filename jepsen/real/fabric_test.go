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
	// soon is long, because a busy machine may be slow.
	soon = time.Minute
	// still is how long something must not happen to count as not happening.
	still = 150 * time.Millisecond
)

// echo serves a node b that says back what it is told, behind a fabric in which everybody else is a.
func echo(t *testing.T) (f *fabric, front string) {
	t.Helper()
	back, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { // ends when back is closed
		for {
			conn, err := back.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the fabric's connection
				_, _ = io.Copy(conn, conn)
				conn.Close()
			}()
		}
	}()
	f = newFabric(func(net.Conn) string { return "a" })
	require.NoError(t, f.serve("b", "127.0.0.1:0", back.Addr().String()))
	t.Cleanup(func() { f.close(); back.Close() })
	return f, f.listeners[0].Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
}

// hear tells what comes within a time; "" = nothing.
func hear(t *testing.T, conn net.Conn, within time.Duration) (string, error) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(within)))
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

func heard(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	got, err := hear(t, conn, soon)
	require.NoError(t, err)
	assert.Equal(t, text, got)
}

func quiet(t *testing.T, conn net.Conn) {
	t.Helper()
	got, err := hear(t, conn, still)
	assert.Empty(t, got)
	require.ErrorContains(t, err, "timeout", "it is open, and nothing comes")
}

// arrived waits until something of a has arrived since a moment, and tells when the last did.
func arrived(t *testing.T, f *fabric, since time.Duration) (last time.Duration) {
	t.Helper()
	require.Eventually(t, func() bool { return f.delivered("a") > since }, soon, time.Millisecond)
	return f.delivered("a")
}

func TestWhatIsSentComesThrough(t *testing.T) {
	f, front := echo(t)
	conn := dial(t, front)
	before := now()
	say(t, conn, "one")
	heard(t, conn, "one")
	arrived(t, f, before)
	assert.Zero(t, f.delivered("somebody else"))
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	_, err := hear(t, conn, soon)
	assert.ErrorIs(t, err, io.EOF, "the end of a stream comes through too")
}

// A hole takes one direction only, whoever opened the connection, and gives back what fell in.
func TestAHoleHoldsOneDirection(t *testing.T) {
	f, front := echo(t)
	conn := dial(t, front)
	say(t, conn, "one")
	heard(t, conn, "one")
	delivered := arrived(t, f, 0)

	lift := f.impose(condition{hole: true}, pair{"a", "b"})
	say(t, conn, "two")
	quiet(t, conn)
	assert.Equal(t, delivered, f.delivered("a"), "nothing of a arrives")
	lift()
	heard(t, conn, "two")
	delivered = arrived(t, f, delivered)

	lift = f.impose(condition{hole: true}, pair{"b", "a"})
	say(t, conn, "three")
	arrived(t, f, delivered) // b hears, and is not heard
	quiet(t, conn)
	lift()
	heard(t, conn, "three")
}

func TestAHoleKeepsNewConnectionsFromOpening(t *testing.T) {
	f, front := echo(t)
	lift := f.impose(condition{hole: true}, pair{"b", "a"})
	conn := dial(t, front)
	say(t, conn, "one")
	quiet(t, conn)
	lift()
	heard(t, conn, "one")
}

func TestACutBreaksWhatIsOpenAndWhatIsTried(t *testing.T) {
	f, front := echo(t)
	conn := dial(t, front)
	say(t, conn, "one")
	heard(t, conn, "one")
	lift := f.impose(condition{cut: true}, pair{"a", "b"})
	_, err := hear(t, conn, soon)
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "timeout")
	if tried, err := net.Dial("tcp", front); err == nil { // or it is refused so soon that nothing is opened
		_, err = hear(t, tried, soon)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "timeout")
		tried.Close()
	}
	lift()
	conn = dial(t, front)
	say(t, conn, "two")
	heard(t, conn, "two")
}

func TestAResetBreaksOnce(t *testing.T) {
	f, front := echo(t)
	conn := dial(t, front)
	say(t, conn, "one")
	heard(t, conn, "one")
	assert.Zero(t, f.reset(pair{"a", "c"}))
	assert.Equal(t, 1, f.reset(pair{"b", "a"}), "either direction names it")
	_, err := hear(t, conn, soon)
	require.Error(t, err)
	again := dial(t, front)
	say(t, again, "two")
	heard(t, again, "two")
}

func TestConditionsAddUp(t *testing.T) {
	f, front := echo(t)
	const delay = 80 * time.Millisecond
	there := f.impose(condition{delay: delay}, pair{"a", "b"})
	both := f.impose(condition{delay: delay}, pair{"a", "b"}, pair{"b", "a"})
	conn := dial(t, front)
	began := now()
	say(t, conn, "slow")
	heard(t, conn, "slow")
	assert.GreaterOrEqual(t, now()-began, 3*delay)
	there()
	both()
	is, _ := f.link(pair{"a", "b"}).state()
	assert.Equal(t, condition{}, is)

	narrow := f.impose(condition{rate: 10 << 10}, pair{"a", "b"})
	defer narrow()
	began = now()
	say(t, conn, string(make([]byte, 3<<10)))
	got := 0
	for got < 3<<10 {
		text, err := hear(t, conn, soon)
		require.NoError(t, err)
		got += len(text)
	}
	assert.GreaterOrEqual(t, now()-began, 250*time.Millisecond, "3 KiB at 10 KiB a second")
}

// The fabric knows a node by the process that has the socket.
func TestASocketHasAnOwner(t *testing.T) {
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
	assert.Empty(t, between(from, &net.TCPAddr{IP: to.IP, Port: 1}), "the same port, towards somebody else")
}
