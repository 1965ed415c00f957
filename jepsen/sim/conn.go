package sim

import (
	"io"
	"net"
	"os"
	"slices"
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
	reset         bool // the other end answered a write with a reset
}

// stream is one direction of a connection: bytes under way, each segment with the time of its arrival.
type stream struct {
	network        *Network
	link           *link
	segments       []segment
	size           int
	closedByWriter bool // the writer has closed; the end is under way as a segment
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

// await attempts something until it is done, fails, or a deadline passes. attempt returns when it is to be repeated
// at the latest; zero: at the next signal.
func (c *conn) await(signal <-chan struct{}, deadline *time.Time, attempt func(now time.Time) (done bool, again time.Time, err error)) error {
	for {
		c.network.mu.Lock()
		now, done, again, err := time.Now(), false, time.Time{}, net.ErrClosed
		if !c.closed {
			done, again, err = attempt(now)
		}
		if limit := *deadline; !done && err == nil && !limit.IsZero() {
			if !limit.After(now) {
				err = os.ErrDeadlineExceeded
			}
			if again.IsZero() || limit.Before(again) {
				again = limit
			}
		}
		c.network.mu.Unlock()
		if done || err != nil {
			return err
		}
		awaitSignal(signal, again)
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (n int, err error) {
	s := c.in
	err = c.await(s.readable, &s.readDeadline, func(now time.Time) (done bool, again time.Time, err error) {
		switch {
		case c.reset: // also if the end of what was sent before is still under way
			return false, again, syscall.ECONNRESET
		case len(s.segments) == 0:
			return len(p) == 0, again, nil
		}
		head := &s.segments[0]
		switch held := !s.link.cutAt.IsZero() && head.at.After(s.link.cutAt); {
		case held: // Heal signals
			return false, again, nil
		case head.at.After(now):
			return false, head.at, nil
		case head.data == nil:
			return false, again, io.EOF
		}
		n = copy(p, head.data)
		head.data = head.data[n:]
		s.size -= n
		if len(head.data) == 0 {
			s.segments = s.segments[1:]
		}
		notify(s.writable)
		return true, again, nil
	})
	return n, err
}

// Write implements net.Conn. It returns when the bytes are under way.
func (c *conn) Write(p []byte) (written int, err error) {
	s := c.out
	err = c.await(s.writable, &s.writeDeadline, func(time.Time) (done bool, again time.Time, err error) {
		switch {
		case s.closedByReader && c.in.link.cutAt.IsZero():
			c.reset = true
			notify(c.in.readable)
			return false, again, syscall.EPIPE
		case s.closedByReader: // the reset can't come back
			written = len(p)
		case s.size < windowMax && written < len(p):
			n := min(len(p)-written, windowMax-s.size)
			s.send(slices.Clone(p[written : written+n]))
			written += n
		}
		return written == len(p), again, nil
	})
	return written, err
}

// send puts a segment under way, behind those before it.
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
	return c.setDeadline(&c.in.readDeadline, t, c.in.readable)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.out.writeDeadline, t, c.out.writable)
}

func (c *conn) setDeadline(deadline *time.Time, t time.Time, waiting chan struct{}) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	*deadline = t
	notify(waiting)
	return nil
}

// awaitSignal waits for a signal, at most until a time; zero: as long as it takes.
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
