package api

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

// TestTheWrongPort: clients at the peer port and peers at the client port are refused or cut, and both
// ports serve on.
func TestTheWrongPort(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	ctx, node := soon(t), c.leader()

	asked := func() error { // the peer port's own patience is twice as long
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := callAddress(t, node.Peer()).Now(short, &zamokpb.NowRequest{})
		return err
	}
	err := asked()
	for status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil { // the machine was busy
		err = asked()
	}
	t.Log("a client at the peer port: ", err)
	assert.Equal(t, codes.Unavailable, status.Code(err), "at once, not at its deadline")

	// A node whose list has the client port instead of the peer port.
	waits, logger := untilItWaits(t)
	lost, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cfg := nodeConfig("n2", "n1="+node.Client()+",n2="+lost.Addr().String())
	cfg.Logger, cfg.Peers.Listener = logger, lost
	_, err = StartNode(waits, cfg)
	t.Log("a peer at the client port: ", err)
	require.ErrorContains(t, err, "n1 at "+node.Client())

	for _, address := range []string{node.Client(), node.Peer()} {
		for _, nonsense := range []string{"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01", strings.Repeat("\xff", 100_000)} {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			_, _ = io.WriteString(conn, nonsense) // it may hang up before it has read all, or read the end
			_ = conn.(*net.TCPConn).CloseWrite()
			_, err = io.Copy(io.Discard, conn) // until it hangs up
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, conn.Close())
		}
	}
	openSession(t, ctx, call(t, node)).hold("still serving")
}

// givenUp is a connection that the kernel gave up: Write waits, and then has the one error, and Read has the other.
type givenUp struct {
	net.Conn
	writing     chan struct{} // closed when Write has begun
	write       chan struct{} // closed to let Write return
	read, wrote error
}

func (g *givenUp) Read([]byte) (int, error) { return 0, g.read }

func (g *givenUp) Write([]byte) (int, error) {
	close(g.writing)
	<-g.write
	return 0, g.wrote
}

// Of a connection that the kernel gave up, a reader or a writer gets that reason, and the other finds an end, perhaps
// before: no client has closed it.
func TestTheEndOfAGivenUpConnectionIsNotTheClients(t *testing.T) {
	t.Run("the reader finds an end first", func(t *testing.T) {
		conn := &givenUp{writing: make(chan struct{}), write: make(chan struct{}), read: io.EOF, wrote: syscall.ETIMEDOUT}
		tracked := &trackedConn{Conn: conn}
		var both sync.WaitGroup
		both.Go(func() { _, _ = tracked.Write(nil) })
		<-conn.writing
		both.Go(func() { _, _ = tracked.Read(nil) })
		require.Never(t, tracked.hungUp.Load, 300*time.Millisecond, time.Millisecond)
		close(conn.write)
		both.Wait()
		assert.True(t, tracked.closed.Load())
		assert.False(t, tracked.hungUp.Load())
	})
	t.Run("the writer finds an end first", func(t *testing.T) {
		conn := &givenUp{writing: make(chan struct{}), write: make(chan struct{}), read: syscall.ETIMEDOUT, wrote: syscall.EPIPE}
		close(conn.write)
		tracked := &trackedConn{Conn: conn}
		_, err := tracked.Write(nil)
		require.ErrorIs(t, err, syscall.EPIPE)
		assert.False(t, tracked.hungUp.Load())
		_, err = tracked.Read(nil)
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		assert.True(t, tracked.closed.Load())
	})
	t.Run("the client closes it", func(t *testing.T) {
		tracked := &trackedConn{Conn: &givenUp{read: io.EOF}}
		_, err := tracked.Read(nil)
		require.ErrorIs(t, err, io.EOF)
		assert.True(t, tracked.hungUp.Load())
	})
}
