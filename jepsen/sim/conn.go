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
	network  *Network
	link     *link
	parts    []part
	size     int
	over     bool // the writer has closed; the end is under way as a part
	deaf     bool // the reader has closed
	readBy   time.Time
	writeBy  time.Time
	readable chan struct{} // capacity 1: look again
	writable chan struct{} // capacity 1: look again
}

type part struct {
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
		n, again, err := c.read(p)
		c.network.mu.Unlock()
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		waitUntil(c.in.readable, again)
	}
}

// read takes what has arrived, or says when to look again at the latest (zero: when told).
func (c *conn) read(p []byte) (n int, again time.Time, err error) {
	s, now := c.in, time.Now()
	switch {
	case c.closed:
		return 0, again, net.ErrClosed
	case c.reset: // also if the end of what was sent before is still under way
		return 0, again, syscall.ECONNRESET
	}
	if len(s.parts) > 0 {
		head := &s.parts[0]
		switch held := !s.link.cutAt.IsZero() && head.at.After(s.link.cutAt); {
		case held: // the heal tells
		case head.at.After(now):
			again = head.at
		case head.data == nil:
			return 0, again, io.EOF
		default:
			n = copy(p, head.data)
			head.data = head.data[n:]
			s.size -= n
			if len(head.data) == 0 {
				s.parts = s.parts[1:]
			}
			kick(s.writable)
			return n, again, nil
		}
	}
	if !s.readBy.IsZero() {
		if !s.readBy.After(now) {
			return 0, again, os.ErrDeadlineExceeded
		}
		if again.IsZero() || s.readBy.Before(again) {
			again = s.readBy
		}
	}
	return 0, again, nil
}

// Write implements net.Conn. It returns when the bytes are under way.
func (c *conn) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		c.network.mu.Lock()
		n, again, err := c.write(p)
		c.network.mu.Unlock()
		written += n
		if err != nil {
			return written, err
		}
		if p = p[n:]; n == 0 {
			waitUntil(c.out.writable, again)
		}
	}
	return written, nil
}

func (c *conn) write(p []byte) (n int, again time.Time, err error) {
	s, now := c.out, time.Now()
	switch {
	case c.closed:
		return 0, again, net.ErrClosed
	case s.deaf && c.in.link.cutAt.IsZero():
		c.reset = true
		kick(c.in.readable)
		return 0, again, syscall.EPIPE
	case s.deaf:
		return len(p), again, nil // the news of it can't come back
	case s.size >= windowMax:
		if !s.writeBy.IsZero() && !s.writeBy.After(now) {
			return 0, again, os.ErrDeadlineExceeded
		}
		return 0, s.writeBy, nil
	}
	n = min(len(p), windowMax-s.size)
	s.send(append([]byte(nil), p[:n]...))
	return n, again, nil
}

// send puts a part under way, behind those before it.
func (s *stream) send(data []byte) {
	at := time.Now().Add(s.network.travel(s.link))
	if len(s.parts) > 0 {
		if last := s.parts[len(s.parts)-1].at; last.After(at) {
			at = last
		}
	}
	if s.link.perSecond > 0 {
		at = at.Add(time.Duration(len(data)) * time.Second / time.Duration(s.link.perSecond))
	}
	s.parts = append(s.parts, part{at, data})
	s.size += len(data)
	kick(s.readable)
}

// delayHeld lets what was held back by a cut arrive at a later time.
func (s *stream) delayHeld(cutAt, resent time.Time) {
	for i := range s.parts {
		if s.parts[i].at.After(cutAt) && s.parts[i].at.Before(resent) {
			s.parts[i].at = resent
		}
	}
	kick(s.readable)
}

// Close implements net.Conn. The other end learns of it when the end arrives.
func (c *conn) Close() error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.end()
	return nil
}

// end closes; the caller holds the lock.
func (c *conn) end() {
	c.closed = true
	delete(c.stack.conns, c)
	if !c.out.over && !c.out.deaf {
		c.out.over = true
		c.out.send(nil)
	}
	c.in.deaf = true
	c.in.parts, c.in.size = nil, 0
	for _, s := range []*stream{c.in, c.out} {
		kick(s.readable)
		kick(s.writable)
		if s.deaf {
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
	c.in.readBy = t
	kick(c.in.readable)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.out.writeBy = t
	kick(c.out.writable)
	return nil
}

// waitUntil waits to be told to look again, at most until a time; zero: as long as it takes.
func waitUntil(told <-chan struct{}, at time.Time) {
	if at.IsZero() {
		<-told
		return
	}
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-told:
	case <-t.C:
	}
}

func kick(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
