package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/peer"
)

// trackedConn is a client's connection that records which end broke it: gRPC reports to its streams only the
// break.
type trackedConn struct {
	net.Conn
	done    func()        // called at its end, perhaps twice
	reading chan struct{} // capacity 1: full while one of its calls reads much of the state, or waits for that

	hungUp atomic.Bool // the client's end closed or reset it
	closed atomic.Bool // this end closed it or gave it up
}

func (l *trackedConn) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.noteError(err)
	return n, err
}

func (l *trackedConn) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	l.noteError(err)
	return n, err
}

// noteError looks at an error of the connection. An error that is neither an end nor a reset, such as a time
// limit, is this node's decision, not the client's.
func (l *trackedConn) noteError(err error) {
	switch {
	case err == nil:
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		if !l.closed.Load() {
			l.hungUp.Store(true)
		}
	default:
		l.closed.Store(true)
	}
}

func (l *trackedConn) Close() error {
	l.closed.Store(true)
	err := l.Conn.Close()
	l.done()
	return err
}

// RemoteAddr is how a call finds its connection.
func (l *trackedConn) RemoteAddr() net.Addr { return trackedAddr{l.Conn.RemoteAddr(), l} }

type trackedAddr struct {
	net.Addr
	conn *trackedConn
}

// closedByPeer reports, for a call whose stream broke, whether the client caused it: it reset the stream, or
// closed the connection. A break that this node made, as when a client did not answer pings, is none of the
// client's.
func closedByPeer(ctx context.Context) bool {
	l := trackedConnOf(ctx)
	return l != nil && (l.hungUp.Load() || !l.closed.Load())
}

// trackedConnOf is the connection that a call came on, or nil.
func trackedConnOf(ctx context.Context) *trackedConn {
	if p, ok := peer.FromContext(ctx); ok {
		if at, ok := p.Addr.(trackedAddr); ok {
			return at.conn
		}
	}
	return nil
}

// limitedListener is a listener that closes what would be one connection too many.
type limitedListener struct {
	net.Listener
	free       chan struct{} // its capacity is how many there may be
	log        *slog.Logger
	lastLogged time.Time // when a refusal was logged last; Accept is called by one goroutine
}

// refusalEvery is how often refused connections are logged.
const refusalEvery = 10 * time.Second

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &trackedConn{Conn: conn, done: sync.OnceFunc(func() { <-l.free }), reading: make(chan struct{}, 1)}, nil
		default:
		}
		_ = conn.Close()
		if time.Since(l.lastLogged) > refusalEvery {
			l.lastLogged = time.Now()
			l.log.Warn("connection refused: the limit of client connections is reached", "limit", cap(l.free), "from", conn.RemoteAddr())
		}
	}
}
