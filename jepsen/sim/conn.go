package sim

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// windowMax is how many bytes may be on their way in one direction of a connection.
const windowMax = 256 << 10

// conn is one end of a connection.
type conn struct {
	network       *Network
	stack         *Stack
	in, out       *stream
	local, remote addr
	closed        bool
	reset         bool // the other end said, to a write, that it is gone
}

// stream is one direction of a connection: bytes under way, each part with the time of its arrival.
type stream struct {
	network        *Network
	link           *link
	segments       []segment
	size           int
	closedByWriter bool // the writer has closed; the end is under way as a part
	closedByReader bool // the reader has closed
	readDeadline   time.Time
	writeDeadline  time.Time
	readable       chan struct{} // capacity 1: look again
	writable       chan struct{} // capacity 1: look again
}

type segment struct {
	at   time.Time
	data []byte // nil: the end
}

// newStream makes a stream on a link; the caller holds the lock.
func newStream(n *Network, l *link) *stream {
	s := &stream{network: n, link: l, readable: make(chan struct{}, 1), writable: make(chan struct{}, 1)}
	l.streams[s] = struct{}{}
	return s
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for {
		c.network.mu.Lock()
		n, wakeAt, err := c.read(p)
		c.network.mu.Unlock()
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		awaitSignal(c.in.readable, wakeAt)
	}
}

// read takes what has arrived, or says when to look again at the latest (zero: when told).
func (c *conn) read(p []byte) (n int, wakeAt time.Time, err error) {
	s, now := c.in, time.Now()
	switch {
	case c.closed:
		return 0, wakeAt, net.ErrClosed
	case c.reset: // also if the end of what was sent before is still under way
		return 0, wakeAt, syscall.ECONNRESET
	}
	if len(s.segments) > 0 {
		head := &s.segments[0]
		switch held := !s.link.cutAt.IsZero() && head.at.After(s.link.cutAt); {
		case held: // the heal tells
		case head.at.After(now):
			wakeAt = head.at
		case head.data == nil:
			return 0, wakeAt, io.EOF
		default:
			n = copy(p, head.data)
			head.data = head.data[n:]
			s.size -= n
			if len(head.data) == 0 {
				s.segments = s.segments[1:]
			}
			notify(s.writable)
			return n, wakeAt, nil
		}
	}
	if !s.readDeadline.IsZero() {
		if !s.readDeadline.After(now) {
			return 0, wakeAt, os.ErrDeadlineExceeded
		}
		if wakeAt.IsZero() || s.readDeadline.Before(wakeAt) {
			wakeAt = s.readDeadline
		}
	}
	return 0, wakeAt, nil
}

// Write implements net.Conn. It returns when the bytes are under way.
func (c *conn) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		c.network.mu.Lock()
		n, wakeAt, err := c.write(p)
		c.network.mu.Unlock()
		written += n
		if err != nil {
			return written, err
		}
		if p = p[n:]; n == 0 {
			awaitSignal(c.out.writable, wakeAt)
		}
	}
	return written, nil
}

func (c *conn) write(p []byte) (n int, wakeAt time.Time, err error) {
	s, now := c.out, time.Now()
	switch {
	case c.closed:
		return 0, wakeAt, net.ErrClosed
	case s.closedByReader && c.in.link.cutAt.IsZero():
		c.reset = true
		notify(c.in.readable)
		return 0, wakeAt, syscall.EPIPE
	case s.closedByReader:
		return len(p), wakeAt, nil // the news of it can't come back
	case s.size >= windowMax:
		if !s.writeDeadline.IsZero() && !s.writeDeadline.After(now) {
			return 0, wakeAt, os.ErrDeadlineExceeded
		}
		return 0, s.writeDeadline, nil
	}
	n = min(len(p), windowMax-s.size)
	s.send(append([]byte(nil), p[:n]...))
	return n, wakeAt, nil
}

// send puts a part under way, behind those before it.
func (s *stream) send(data []byte) {
	at := time.Now().Add(s.network.transmissionTime(s.link))
	if len(s.segments) > 0 {
		if last := s.segments[len(s.segments)-1].at; last.After(at) {
			at = last
		}
	}
	if s.link.bytesPerSecond > 0 {
		at = at.Add(time.Duration(len(data)) * time.Second / time.Duration(s.link.bytesPerSecond))
	}
	s.segments = append(s.segments, segment{at, data})
	s.size += len(data)
	notify(s.readable)
}

// delayRetransmitted lets what was held back by a cut arrive at a later time.
func (s *stream) delayRetransmitted(cutAt, resent time.Time) {
	for i := range s.segments {
		if s.segments[i].at.After(cutAt) && s.segments[i].at.Before(resent) {
			s.segments[i].at = resent
		}
	}
	notify(s.readable)
}

// Close implements net.Conn. The other end learns of it when the end arrives.
func (c *conn) Close() error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closeLocked()
	return nil
}

// closeLocked closes; the caller holds the lock.
func (c *conn) closeLocked() {
	c.closed = true
	delete(c.stack.conns, c)
	if !c.out.closedByWriter && !c.out.closedByReader {
		c.out.closedByWriter = true
		c.out.send(nil)
	}
	c.in.closedByReader = true
	c.in.segments, c.in.size = nil, 0
	for _, s := range []*stream{c.in, c.out} {
		notify(s.readable)
		notify(s.writable)
		if s.closedByReader {
			delete(s.link.streams, s)
		}
	}
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.in.readDeadline = t
	notify(c.in.readable)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.out.writeDeadline = t
	notify(c.out.writable)
	return nil
}

// awaitSignal waits to be told to look again, at most until a time; zero: as long as it takes.
func awaitSignal(signal <-chan struct{}, at time.Time) {
	if at.IsZero() {
		<-signal
		return
	}
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-signal:
	case <-t.C:
	}
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
