package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"zamok/jepsen/workload"
)

const (
	// A message takes at least delayMin and up to delaySpread more, as between two machines of one
	// building. SetDelay changes that for a link.
	delayMin    = 200 * time.Microsecond
	delaySpread = 300 * time.Microsecond
	// synRetry is the time after which a connection attempt without an answer is repeated.
	synRetry = time.Second
	// retransmitDelayMax is how late after a heal the bytes may arrive that were held back.
	retransmitDelayMax = 200 * time.Millisecond
	// backlogMax is how many connections wait at a port to be accepted.
	backlogMax = 128
)

// Network connects hosts, each pair by one link in each direction. Bytes that are sent into a link
// that is cut are held back, as by TCP, and arrive after the link has healed, if the connection
// still exists: a cut causes no error. Connections have no goroutines.
type Network struct {
	mu        sync.Mutex // guards everything below, and all of every connection
	rand      *rand.Rand
	hosts     map[string]bool
	listeners map[string]*Listener
	links     map[route]*link
}

// route is one direction between two hosts.
type route struct{ from, to string }

type link struct {
	delay          time.Duration // at least
	spread         time.Duration // and up to this much more
	bytesPerSecond int           // 0 = unlimited
	cutAt          time.Time     // since when nothing passes; zero = all passes
	loss           float64       // the probability that a segment is lost, and sent again
	blackHole      bool          // a write longer than passesMax is lost, each time that it is sent
	streams        map[*stream]struct{}
}

// newNetwork makes a network without hosts. A host exists from its first use on.
func newNetwork(random *rand.Rand) *Network {
	return &Network{rand: random, hosts: map[string]bool{}, listeners: map[string]*Listener{},
		links: map[route]*link{}}
}

// link is the link of one direction. The caller holds the lock.
func (n *Network) link(from, to string) *link {
	r := route{from, to}
	l := n.links[r]
	if l == nil {
		l = &link{delay: delayMin, spread: delaySpread, streams: map[*stream]struct{}{}}
		n.links[r] = l
	}
	return l
}

// transmissionTime is how long the next bytes take on a link. The caller holds the lock.
func (n *Network) transmissionTime(l *link) time.Duration {
	return l.delay + time.Duration(n.rand.Int64N(int64(l.spread)+1))
}

// Listen opens a port of this host.
func (s *Stack) Listen(port string) (*Listener, error) {
	n, address := s.network, s.host+":"+port
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] != nil {
		return nil, fmt.Errorf("sim: listen %s: address already in use", address)
	}
	if s.closed {
		return nil, net.ErrClosed
	}
	p := &Listener{network: n, stack: s, address: address, incoming: make(chan *conn, backlogMax)}
	n.listeners[address] = p
	return p, nil
}

var errRefused = errors.New("connection refused")

// Dial connects to an address. It retries while a link in either direction is cut.
func (s *Stack) Dial(ctx context.Context, address string) (net.Conn, error) {
	n := s.network
	for {
		n.mu.Lock()
		there, back := n.link(s.host, hostOf(address)), n.link(hostOf(address), s.host)
		open := there.cutAt.IsZero() && back.cutAt.IsZero()
		delay := synRetry
		if open {
			delay = n.transmissionTime(there) + n.transmissionTime(back)
		}
		n.mu.Unlock()
		if !workload.Sleep(ctx, delay) {
			return nil, context.Cause(ctx)
		}
		if open {
			if near, err := n.connect(s, address); near != nil || err != nil {
				return near, err
			}
		}
	}
}

// connect makes the two ends of a connection; nil without error: the backlog is full.
func (n *Network) connect(s *Stack, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.closed {
		return nil, net.ErrClosed
	}
	port := n.listeners[address]
	if port == nil {
		return nil, fmt.Errorf("sim: dial %s: %w", address, errRefused)
	}
	if len(port.incoming) == cap(port.incoming) {
		return nil, nil
	}
	from, to := s.host, hostOf(address)
	there, back := newStream(n, n.link(from, to)), newStream(n, n.link(to, from))
	near := &conn{network: n, stack: s, out: there, in: back, local: addr(from),
		remote: addr(address)}
	far := &conn{network: n, stack: port.stack, out: back, in: there, local: addr(address),
		remote: addr(from)}
	s.conns[near], port.stack.conns[far] = struct{}{}, struct{}{}
	port.incoming <- far // it has room: only this line sends, under the lock
	return near, nil
}

// Listener is an open port. While it is registered, connections are put into incoming under the
// network's lock.
type Listener struct {
	network  *Network
	stack    *Stack
	address  string
	incoming chan *conn
}

// Accept implements net.Listener.
func (p *Listener) Accept() (net.Conn, error) {
	if c := <-p.incoming; c != nil {
		return c, nil
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener. Connections that were not accepted are closed.
func (p *Listener) Close() error {
	p.network.mu.Lock()
	if p.network.listeners[p.address] == p {
		delete(p.network.listeners, p.address)
		close(p.incoming)
	}
	p.network.mu.Unlock()
	for c := range p.incoming {
		c.Close()
	}
	return nil
}

// Addr implements net.Listener.
func (p *Listener) Addr() net.Addr { return addr(p.address) }

// addr is the address of an end.
type addr string

func (addr) Network() string  { return "sim" }
func (a addr) String() string { return string(a) }

func hostOf(address string) string {
	host, _, _ := strings.Cut(address, ":")
	return host
}

// changeLinks changes the links of these routes, all at one moment.
func (n *Network) changeLinks(routes []route, change func(*link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range routes {
		change(n.link(r.from, r.to))
	}
}

// Cut cuts these routes. The other direction between two hosts stays as it is.
func (n *Network) Cut(routes ...route) { n.changeLinks(routes, (*link).cut) }

func (l *link) cut() {
	if l.cutAt.IsZero() {
		l.cutAt = time.Now()
	}
}

// Heal undoes Cut. Bytes that were held back arrive a moment later, in order.
func (n *Network) Heal(routes ...route) { n.changeLinks(routes, n.heal) }

func (n *Network) heal(l *link) {
	if l.cutAt.IsZero() {
		return
	}
	resent := time.Now().Add(n.transmissionTime(l) + workload.UpTo(n.rand, retransmitDelayMax))
	for s := range l.streams {
		s.delayRetransmitted(l.cutAt, resent)
	}
	l.cutAt = time.Time{}
}

// SetDelay sets how long bytes take on these routes: at least delay, up to spread more.
func (n *Network) SetDelay(delay, spread time.Duration, routes ...route) {
	n.changeLinks(routes, func(l *link) { l.delay, l.spread = delay, spread })
}

// LimitRate sets how many bytes a second one connection takes from one host to the other; 0 = any.
func (n *Network) LimitRate(from, to string, perSecond int) {
	n.changeLinks([]route{{from, to}}, func(l *link) { l.bytesPerSecond = perSecond })
}

// HealAll resets every link to its initial state.
func (n *Network) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		n.heal(l)
		n.fillHole(l)
		l.delay, l.spread, l.bytesPerSecond, l.loss = delayMin, delaySpread, 0, 0
	}
}

// Isolate cuts a host off from all others, both ways.
func (n *Network) Isolate(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for other := range n.hosts {
		if other != host {
			n.link(host, other).cut()
			n.link(other, host).cut()
		}
	}
}

// Stack is the ports and connections that the kernel of a host keeps for one process. When the
// process ends, they are closed at once.
type Stack struct {
	network *Network
	host    string

	// Guarded by network.mu.
	closed bool
	conns  map[*conn]struct{}
}

// NewStack makes the stack of a process that starts on a host.
func (n *Network) NewStack(host string) *Stack {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[host] = true
	return &Stack{network: n, host: host, conns: map[*conn]struct{}{}}
}

// CloseAll closes all ports and connections of the process, which can open no more.
func (s *Stack) CloseAll() {
	s.network.mu.Lock()
	s.closed = true
	ports := slices.Collect(maps.Values(s.network.listeners))
	s.network.mu.Unlock()
	for _, p := range ports {
		if p.stack == s {
			p.Close()
		}
	}
	s.closeConns()
}

// closeConns closes all connections. The process may connect again.
func (s *Stack) closeConns() {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	for c := range s.conns {
		c.closeLocked()
	}
}

// windowMax is how many bytes may be in flight in one direction of a connection.
const windowMax = 256 << 10

// conn is one end of a connection.
type conn struct {
	network       *Network
	stack         *Stack
	in, out       *stream
	local, remote addr
	closed        bool
	reset         bool // the other end replied to a write with a reset
}

// stream is one direction of a connection: the segments in flight, each with its time of arrival.
type stream struct {
	network  *Network
	link     *link
	segments []segment
	size     int
	// segments from then on are lost in a black hole, or follow one; zero = none
	lostFrom       time.Time
	closedByWriter bool // the writer has closed; the end is in flight as a segment
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

// await repeats attempt until it is done, fails, or a deadline passes. attempt returns when it must
// be repeated at the latest; zero: only after the stream has changed.
func (c *conn) await(s *stream, deadline *time.Time,
	attempt func(now time.Time) (done bool, again time.Time, err error)) error {
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

// wait waits until the stream has changed, or a time in the future; zero = without limit. The
// caller holds the lock. Virtual time stands until it waits, so the timer is not too early.
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
		case c.reset: // even if earlier bytes are still in flight
			return false, again, syscall.ECONNRESET
		case len(s.segments) == 0:
			return len(p) == 0, again, nil
		}
		head := &s.segments[0]
		switch held := !s.link.cutAt.IsZero() && head.at.After(s.link.cutAt); {
		case held, !s.lostFrom.IsZero() && !head.at.Before(s.lostFrom): // Heal signals
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

// Write implements net.Conn. It returns when the bytes are in flight.
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

// send sends a segment, behind those before it.
func (s *stream) send(data []byte) {
	at := time.Now().Add(s.network.transmissionTime(s.link))
	if len(s.segments) > 0 {
		if last := s.segments[len(s.segments)-1].at; last.After(at) {
			at = last
		}
	}
	at = s.lose(data, at)
	if s.link.bytesPerSecond > 0 {
		at = at.Add(time.Duration(len(data)) * time.Second / time.Duration(s.link.bytesPerSecond))
	}
	s.segments = append(s.segments, segment{at, data})
	s.size += len(data)
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
func (c *conn) SetWriteDeadline(t time.Time) error {
	return c.out.setDeadline(&c.out.writeDeadline, t)
}

func (s *stream) setDeadline(deadline *time.Time, t time.Time) error {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	*deadline = t
	s.changed.Broadcast()
	return nil
}
