package sim

import (
	"io"
	"net"
	"os"
	"slices"
	"sync"
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
	changed        *sync.Cond // of the network's lock
}

type segment struct {
	at   time.Time
	data []byte // nil: the end
}

// newStream makes a stream on a link; the caller holds the lock.
func newStream(n *Network, l *link) *stream {
	s := &stream{network: n, link: l, changed: sync.NewCond(&n.mu)}
	l.streams[s] = struct{}{}
	return s
}

// await attempts something with a stream until it is done, fails, or a deadline passes. attempt returns when it is to be
// repeated at the latest; zero: when the stream has changed.
func (c *conn) await(s *stream, deadline *time.Time, attempt func(now time.Time) (done bool, again time.Time, err error)) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	for !c.closed {
		now := time.Now()
		done, again, err := attempt(now)
		if done || err != nil {
			return err
		}
		if limit := *deadline; !limit.IsZero() {
			if !limit.After(now) {
				return os.ErrDeadlineExceeded
			}
			if again.IsZero() || limit.Before(again) {
				again = limit
			}
		}
		s.wait(again)
	}
	return net.ErrClosed
}

// wait waits until the stream has changed, at most until a time to come; zero: as long as it takes. The caller holds the
// lock. Virtual time stands until it waits, so the timer is not too early.
func (s *stream) wait(until time.Time) {
	if !until.IsZero() {
		defer time.AfterFunc(time.Until(until), s.changed.Broadcast).Stop()
	}
	s.changed.Wait()
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (n int, err error) {
	s := c.in
	err = c.await(s, &s.readDeadline, func(now time.Time) (done bool, again time.Time, err error) {
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
		s.changed.Broadcast()
		return true, again, nil
	})
	return n, err
}

// Write implements net.Conn. It returns when the bytes are under way.
func (c *conn) Write(p []byte) (written int, err error) {
	s := c.out
	err = c.await(s, &s.writeDeadline, func(time.Time) (done bool, again time.Time, err error) {
		switch {
		case s.closedByReader && c.in.link.cutAt.IsZero():
			c.reset = true
			c.in.changed.Broadcast()
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
	s.changed.Broadcast()
}

// delayRetransmitted lets what was held back by a cut arrive at a later time.
func (s *stream) delayRetransmitted(cutAt, resent time.Time) {
	for i := range s.segments {
		if s.segments[i].at.After(cutAt) && s.segments[i].at.Before(resent) {
			s.segments[i].at = resent
		}
	}
	s.changed.Broadcast()
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
		s.changed.Broadcast()
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
func (c *conn) SetReadDeadline(t time.Time) error { return c.in.setDeadline(&c.in.readDeadline, t) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.out.setDeadline(&c.out.writeDeadline, t) }

func (s *stream) setDeadline(deadline *time.Time, t time.Time) error {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	*deadline = t
	s.changed.Broadcast()
	return nil
}
