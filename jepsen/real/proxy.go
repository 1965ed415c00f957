package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// proxyNetwork is the network of a run: in front of every port of every node stands a proxy, and what goes
// through it is treated as the directed link from the process that sends to the one that receives.
type proxyNetwork struct {
	// owner names the process at the far end of an accepted connection; "" = it has ended.
	owner func(net.Conn) string

	mu        sync.Mutex // guards what follows
	links     map[linkID]*link
	conns     map[*proxiedConn]struct{}
	listeners []net.Listener
	closed    bool
	work      sync.WaitGroup
}

// linkID names a directed link.
type linkID struct{ from, to string }

// reverse is the other direction.
func (p linkID) reverse() linkID { return linkID{p.to, p.from} }

// linkFault is what is wrong with a link. Several may be injected into one: holes and cuts count if one has
// them, delays add up, the lowest rate holds.
type linkFault struct {
	blackhole bool          // nothing arrives, without an error: it arrives when the fault is healed
	refuse    bool          // what is open breaks, nothing can be opened
	delay     time.Duration // and up to jitter more
	jitter    time.Duration
	rate      int // bytes a second; 0 = as fast as it goes
}

type link struct {
	mu           sync.Mutex // guards what follows
	faults       map[*linkFault]struct{}
	changed      chan struct{} // closed when the faults change
	lastDelivery time.Duration // when it last delivered something
}

const (
	chunkBytes        = 16 << 10
	chunksInFlightMax = 64 // on their way in one direction of one connection
	dialTimeout       = 2 * time.Second
)

func newProxyNetwork(owner func(net.Conn) string) *proxyNetwork {
	return &proxyNetwork{owner: owner, links: map[linkID]*link{}, conns: map[*proxiedConn]struct{}{}}
}

// link is the one of a pair, made at its first use.
func (f *proxyNetwork) link(p linkID) *link {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.links[p]
	if l == nil {
		l = &link{faults: map[*linkFault]struct{}{}, changed: make(chan struct{})}
		f.links[p] = l
	}
	return l
}

// inject injects a fault into links, until heal is called.
func (f *proxyNetwork) inject(c linkFault, pairs ...linkID) (heal func()) {
	for _, p := range pairs {
		f.link(p).updateFaults(func(all map[*linkFault]struct{}) { all[&c] = struct{}{} })
	}
	if c.refuse {
		f.resetConns(pairs...)
	}
	return func() {
		for _, p := range pairs {
			f.link(p).updateFaults(func(all map[*linkFault]struct{}) { delete(all, &c) })
		}
	}
}

func (l *link) updateFaults(do func(map[*linkFault]struct{})) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do(l.faults)
	close(l.changed)
	l.changed = make(chan struct{})
}

// effectiveFault is the sum of all faults, and a channel that is closed when it changes.
func (l *link) effectiveFault() (sum linkFault, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.faults {
		sum.blackhole = sum.blackhole || c.blackhole
		sum.refuse = sum.refuse || c.refuse
		sum.delay += c.delay
		sum.jitter += c.jitter
		if c.rate > 0 && (sum.rate == 0 || c.rate < sum.rate) {
			sum.rate = c.rate
		}
	}
	return sum, l.changed
}

// resetConns breaks the connections over any of the links, in either direction. It returns how many.
func (f *proxyNetwork) resetConns(pairs ...linkID) (broken int) {
	over := map[linkID]bool{}
	for _, p := range pairs {
		over[p] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.conns {
		if over[w.link] || over[w.link.reverse()] {
			w.reset()
			broken++
		}
	}
	return broken
}

// lastDelivery is when something of a process last arrived anywhere; 0 = never.
func (f *proxyNetwork) lastDelivery(from string) (last time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p, l := range f.links {
		if p.from == from {
			l.mu.Lock()
			last = max(last, l.lastDelivery)
			l.mu.Unlock()
		}
	}
	return last
}

// serve proxies a node's port: connections to front are forwarded to back.
func (f *proxyNetwork) serve(to, front, back string) error {
	in, err := net.Listen("tcp", front)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners = append(f.listeners, in)
	f.work.Go(func() {
		for {
			conn, err := in.Accept()
			if err != nil {
				return // closed
			}
			f.proxyConn(conn, to, back)
		}
	})
	return nil
}

// proxyConn carries a connection in a goroutine of its own.
func (f *proxyNetwork) proxyConn(conn net.Conn, to, back string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		conn.Close()
		return
	}
	f.work.Go(func() {
		from := f.owner(conn)
		if from == "" {
			conn.Close()
			return
		}
		w := &proxiedConn{link: linkID{from, to}, done: make(chan struct{}), client: conn}
		f.mu.Lock()
		f.conns[w] = struct{}{}
		if f.closed {
			w.reset()
		}
		f.mu.Unlock()
		w.relay(f.link(w.link), f.link(w.link.reverse()), back)
		w.reset()
		f.mu.Lock()
		delete(f.conns, w)
		f.mu.Unlock()
	})
}

// close ends all connections and waits until nothing runs any more.
func (f *proxyNetwork) close() {
	f.mu.Lock()
	f.closed = true
	for _, in := range f.listeners {
		in.Close()
	}
	for w := range f.conns {
		w.reset()
	}
	f.mu.Unlock()
	f.work.Wait()
}

// proxiedConn is one connection through a proxy.
type proxiedConn struct {
	link linkID
	done chan struct{} // closed at its end

	mu             sync.Mutex // guards what follows
	client, server net.Conn
	ended          bool
}

// reset breaks it, at both ends with a reset.
func (w *proxiedConn) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	close(w.done)
	for _, conn := range []net.Conn{w.client, w.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
		}
	}
}

// relay opens the far end and moves what is sent, until both ends are through or the wire is ended.
func (w *proxiedConn) relay(there, back *link, target string) {
	for _, l := range []*link{there, back} { // the way of a SYN and of its answer
		if open, err := l.awaitDelivery(w.done, time.Now(), 0); !open || err != nil {
			return
		}
	}
	far, err := net.DialTimeout("tcp", target, dialTimeout)
	if err != nil {
		return // nothing listens: the connection is reset
	}
	w.mu.Lock()
	w.server = far
	if w.ended {
		far.Close()
	}
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.copyOneWay(w.client, far, there) })
	both.Go(func() { w.copyOneWay(far, w.client, back) })
	both.Wait()
}

// chunk is what was read at once.
type chunk struct {
	data []byte
	at   time.Time
}

// copyOneWay moves bytes one way. An end of the stream is passed on after all that was sent before it.
func (w *proxiedConn) copyOneWay(from, to net.Conn, l *link) {
	chunks := make(chan chunk, chunksInFlightMax)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(chunks)
		buffer := make([]byte, chunkBytes)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				select {
				case chunks <- chunk{append([]byte(nil), buffer[:n]...), time.Now()}:
				case <-w.done:
					return
				}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					chunks <- chunk{nil, time.Now()} // a reset: nothing of the wire is left
				}
				return
			}
		}
	})
	for c := range chunks {
		open, err := l.awaitDelivery(w.done, c.at, len(c.data))
		if c.data == nil || !open || err != nil {
			w.reset()
			break
		}
		if _, err := to.Write(c.data); err != nil {
			w.reset()
			break
		}
		l.mu.Lock()
		l.lastDelivery = monotonicNow()
		l.mu.Unlock()
	}
	for range chunks { // so that the reader can end
	}
	reader.Wait()
	if tcp, ok := to.(*net.TCPConn); ok {
		if open, _ := l.awaitDelivery(w.done, time.Now(), 0); open {
			_ = tcp.CloseWrite()
		}
	}
}

var errLinkRefused = errors.New("this link is cut")

// awaitDelivery waits until what was sent at a moment may arrive. False: the wire has ended.
func (l *link) awaitDelivery(done <-chan struct{}, sent time.Time, bytes int) (alive bool, err error) {
	spread := rand.Float64() // of what jitter there is
	for {
		is, changed := l.effectiveFault()
		if is.refuse {
			return true, errLinkRefused
		}
		wait := time.Until(sent.Add(is.delay + time.Duration(spread*float64(is.jitter))))
		if is.rate > 0 {
			wait = max(wait, time.Duration(bytes)*time.Second/time.Duration(is.rate))
			bytes = 0 // so long it occupies the line, once
		}
		if !is.blackhole && wait <= 0 {
			return true, nil
		}
		if is.blackhole {
			wait = time.Hour // until it changes
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			if !is.blackhole && is.rate > 0 {
				return true, nil
			}
		case <-changed:
		case <-done:
			timer.Stop()
			return false, nil
		}
		timer.Stop()
	}
}
