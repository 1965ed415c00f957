package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"zamok/jepsen/workload"
)

const (
	// A message takes at least delayMin and up to delaySpread more, as between two machines of one
	// building. SetDelay changes a link.
	delayMin    = 200 * time.Microsecond
	delaySpread = 300 * time.Microsecond
	// synRetry is the pause before a connection attempt without an answer is repeated.
	synRetry = time.Second
	// retransmitDelayMax bounds how long after a heal the bytes that were held back arrive.
	retransmitDelayMax = 200 * time.Millisecond
	// backlogMax is how many calls wait at a port to be accepted.
	backlogMax = 128
)

// Network joins hosts, each pair by one link in each direction. What is sent into a link that is
// cut is held back, as TCP does, and arrives after the link has healed, if the connection still
// lives by then: a cut causes no error. Connections keep no goroutine.
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
	spread         time.Duration // and up to so much more
	bytesPerSecond int           // bytes; 0 = without limit
	cutAt          time.Time     // since when nothing passes; zero = all passes
	streams        map[*stream]struct{}
}

// NewNetwork makes a network without hosts; a host exists from its first mention on.
func NewNetwork(random *rand.Rand) *Network {
	return &Network{rand: random, hosts: map[string]bool{}, listeners: map[string]*Listener{}, links: map[route]*link{}}
}

// link is that of one direction; the caller holds the lock.
func (n *Network) link(from, to string) *link {
	r := route{from, to}
	l := n.links[r]
	if l == nil {
		l = &link{delay: delayMin, spread: delaySpread, streams: map[*stream]struct{}{}}
		n.links[r] = l
	}
	return l
}

// transmissionTime is how long the next bytes take on a link; the caller holds the lock.
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

// Dial connects to an address. It retries until the host answers: over a link that is cut, either way, there is
// no answer.
func (s *Stack) Dial(ctx context.Context, address string) (net.Conn, error) {
	n := s.network
	for {
		n.mu.Lock()
		there, back := n.link(s.host, hostOf(address)), n.link(hostOf(address), s.host)
		open := there.cutAt.IsZero() && back.cutAt.IsZero()
		pause := synRetry
		if open {
			pause = n.transmissionTime(there) + n.transmissionTime(back)
		}
		n.mu.Unlock()
		if !workload.Sleep(ctx, pause) {
			return nil, context.Cause(ctx)
		}
		if !open {
			continue
		}
		near, err := n.connect(s, address)
		if err != nil {
			return nil, err
		}
		if near != nil {
			return near, nil
		}
	}
}

// connect makes the two ends of a connection; nil without error: the backlog is full.
func (n *Network) connect(s *Stack, address string) (*conn, error) {
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
	near := &conn{network: n, stack: s, out: there, in: back, local: addr(from), remote: addr(address)}
	far := &conn{network: n, stack: port.stack, out: back, in: there, local: addr(address), remote: addr(from)}
	s.conns[near], port.stack.conns[far] = struct{}{}, struct{}{}
	port.incoming <- far // has room: only here, under the lock, is put in
	return near, nil
}

// Listener is an open port. While it is registered, connections are put into incoming under the network's lock.
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

// changeLink changes the link of one direction.
func (n *Network) changeLink(from, to string, change func(*link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n.link(from, to))
}

// Cut lets nothing pass from one host to the other. The other direction is not touched.
func (n *Network) Cut(from, to string) { n.changeLink(from, to, (*link).cut) }

func (l *link) cut() {
	if l.cutAt.IsZero() {
		l.cutAt = time.Now()
	}
}

// Heal undoes Cut. What was held back arrives a moment later, in order.
func (n *Network) Heal(from, to string) { n.changeLink(from, to, n.heal) }

func (n *Network) heal(l *link) {
	if l.cutAt.IsZero() {
		return
	}
	resent := time.Now().Add(n.transmissionTime(l) + time.Duration(n.rand.Int64N(int64(retransmitDelayMax))))
	for s := range l.streams {
		s.delayRetransmitted(l.cutAt, resent)
	}
	l.cutAt = time.Time{}
}

// SetDelay sets how long bytes take from one host to the other: at least delay, up to spread more.
func (n *Network) SetDelay(from, to string, delay, spread time.Duration) {
	n.changeLink(from, to, func(l *link) { l.delay, l.spread = delay, spread })
}

// LimitRate sets how many bytes a second one connection takes from one host to the other; 0 = any.
func (n *Network) LimitRate(from, to string, perSecond int) {
	n.changeLink(from, to, func(l *link) { l.bytesPerSecond = perSecond })
}

// HealAll makes every link as it was at the beginning.
func (n *Network) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		n.heal(l)
		l.delay, l.spread, l.bytesPerSecond = delayMin, delaySpread, 0
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

// Stack is the ports and connections that the kernel of a host keeps for one process. When the process ends,
// they are closed at once.
type Stack struct {
	network *Network
	host    string

	// Guarded by network.mu.
	closed bool
	conns  map[*conn]struct{}
}

// NewStack is for a process that starts on a host.
func (n *Network) NewStack(host string) *Stack {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[host] = true
	return &Stack{network: n, host: host, conns: map[*conn]struct{}{}}
}

// CloseAll closes everything that the process has open, and lets it open nothing more.
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

// closeConns closes what is open; the process lives and may connect again.
func (s *Stack) closeConns() {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	for c := range s.conns {
		c.closeLocked()
	}
}
