package conns

import (
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// givenUp is a connection that the kernel gave up: Write waits, and then has the one error, and
// Read has the other.
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

// Of a connection that the kernel gave up, a reader or a writer gets that reason, and the other
// finds an end, perhaps before: no client has closed it.
func TestTheEndOfAGivenUpConnectionIsNotTheClients(t *testing.T) {
	t.Run("the reader finds an end first", func(t *testing.T) {
		conn := &givenUp{writing: make(chan struct{}), write: make(chan struct{}), read: io.EOF,
			wrote: syscall.ETIMEDOUT}
		tracked := &Conn{Conn: conn}
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
		conn := &givenUp{writing: make(chan struct{}), write: make(chan struct{}),
			read: syscall.ETIMEDOUT, wrote: syscall.EPIPE}
		close(conn.write)
		tracked := &Conn{Conn: conn}
		_, err := tracked.Write(nil)
		require.ErrorIs(t, err, syscall.EPIPE)
		assert.False(t, tracked.hungUp.Load())
		_, err = tracked.Read(nil)
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		assert.True(t, tracked.closed.Load())
	})
	t.Run("the client closes it", func(t *testing.T) {
		tracked := &Conn{Conn: &givenUp{read: io.EOF}}
		_, err := tracked.Read(nil)
		require.ErrorIs(t, err, io.EOF)
		assert.True(t, tracked.hungUp.Load())
	})
}
