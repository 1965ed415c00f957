package api

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc/peer"
)

// trackedConn is a client's connection that records which end broke it: gRPC reports to its streams only that it broke.
type trackedConn struct {
	net.Conn
	done    func() // called once, at its end
	once    sync.Once
	reading chan struct{} // capacity 1: full while one of its calls reads much, or waits for that

	hungUp atomic.Bool // the client's end closed or reset it
	closed atomic.Bool // this end closed it, for whatever reason, or gave it up
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

// noteError looks at an error of the connection. What is neither an end nor a reset, such as a time limit,
// is this machine's own opinion.
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
	l.once.Do(l.done)
	return err
}

// RemoteAddr is where a call finds its line.
func (l *trackedConn) RemoteAddr() net.Addr { return trackedAddr{l.Conn.RemoteAddr(), l} }

type trackedAddr struct {
	net.Addr
	conn *trackedConn
}

// closedByPeer reports of a call whose stream broke whether the client caused it: it reset the
// stream, or closed the connection. What this end broke, as when a client did not answer pings, says
// nothing about the client.
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
