package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// fabric is the network of a run: in front of every port of every node stands a proxy, and what goes
// through it is treated as the directed link from the process that sends to the one that receives.
type fabric struct {
	// owner says whose the far end of an accepted connection is; "" = nobody's any more.
	owner  func(net.Conn) string
	spaces *spaces // nil; or there are no proxies

	mu        sync.Mutex // guards what follows
	links     map[pair]*link
	wires     map[*wire]struct{}
	listeners []net.Listener
	closed    bool
	work      sync.WaitGroup
}

// pair names a directed link.
type pair struct{ from, to string }

// back is the other direction.
func (p pair) back() pair { return pair{p.to, p.from} }

// condition is what is wrong with a link. Several may be imposed on one: holes and cuts count if one has
// them, delays add up, the lowest rate holds.
type condition struct {
	hole   bool          // nothing arrives, and nobody is told: it arrives when the condition is lifted
	cut    bool          // what is open breaks, nothing can be opened
	delay  time.Duration // and up to jitter more
	jitter time.Duration
	rate   int // bytes a second; 0 = as fast as it goes
}

type link struct {
	mu         sync.Mutex // guards what follows
	conditions map[*condition]struct{}
	changed    chan struct{} // closed when the conditions change
	last       time.Duration // when it last delivered something
}

const (
	chunkBytes  = 16 << 10
	chunksMost  = 64 // on their way in one direction of one connection
	reachWithin = 2 * time.Second
)

func newFabric(owner func(net.Conn) string) *fabric {
	return &fabric{owner: owner, links: map[pair]*link{}, wires: map[*wire]struct{}{}}
}

// link is the one of a pair, made at its first use.
func (f *fabric) link(p pair) *link {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.links[p]
	if l == nil {
		l = &link{conditions: map[*condition]struct{}{}, changed: make(chan struct{})}
		f.links[p] = l
	}
	return l
}

// impose puts a condition on links, until lift is called.
func (f *fabric) impose(c condition, pairs ...pair) (lift func()) {
	if f.spaces != nil {
		return f.spaces.impose(pairs...)
	}
	for _, p := range pairs {
		f.link(p).change(func(all map[*condition]struct{}) { all[&c] = struct{}{} })
	}
	if c.cut {
		f.reset(pairs...)
	}
	return func() {
		for _, p := range pairs {
			f.link(p).change(func(all map[*condition]struct{}) { delete(all, &c) })
		}
	}
}

func (l *link) change(do func(map[*condition]struct{})) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do(l.conditions)
	close(l.changed)
	l.changed = make(chan struct{})
}

// state is what all conditions come to, and a channel that is closed when that changes.
func (l *link) state() (sum condition, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conditions {
		sum.hole = sum.hole || c.hole
		sum.cut = sum.cut || c.cut
		sum.delay += c.delay
		sum.jitter += c.jitter
		if c.rate > 0 && (sum.rate == 0 || c.rate < sum.rate) {
			sum.rate = c.rate
		}
	}
	return sum, l.changed
}

// reset breaks the connections that run over any of the links, whoever opened them. It returns how many.
func (f *fabric) reset(pairs ...pair) (broken int) {
	over := map[pair]bool{}
	for _, p := range pairs {
		over[p] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.wires {
		if over[w.pair] || over[w.pair.back()] {
			w.end()
			broken++
		}
	}
	return broken
}

// delivered is when something of a process last arrived anywhere; 0 = never.
func (f *fabric) delivered(from string) (last time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p, l := range f.links {
		if p.from == from {
			l.mu.Lock()
			last = max(last, l.last)
			l.mu.Unlock()
		}
	}
	return last
}

// serve stands before a node's port: who connects to front is led to back.
func (f *fabric) serve(to, front, back string) error {
	if f.spaces != nil {
		return nil
	}
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
			f.begin(conn, to, back)
		}
	})
	return nil
}

// begin carries a connection in a goroutine of its own.
func (f *fabric) begin(conn net.Conn, to, back string) {
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
		w := &wire{pair: pair{from, to}, done: make(chan struct{}), near: conn}
		f.mu.Lock()
		f.wires[w] = struct{}{}
		if f.closed {
			w.end()
		}
		f.mu.Unlock()
		w.carry(f.link(w.pair), f.link(w.pair.back()), back)
		w.end()
		f.mu.Lock()
		delete(f.wires, w)
		f.mu.Unlock()
	})
}

// close ends all connections and waits until nothing runs any more.
func (f *fabric) close() {
	f.mu.Lock()
	f.closed = true
	for _, in := range f.listeners {
		in.Close()
	}
	for w := range f.wires {
		w.end()
	}
	f.mu.Unlock()
	f.work.Wait()
}

// wire is one connection through the fabric.
type wire struct {
	pair pair
	done chan struct{} // closed at its end

	mu        sync.Mutex // guards what follows
	near, far net.Conn
	ended     bool
}

// end breaks it, at both ends with a reset.
func (w *wire) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	close(w.done)
	for _, conn := range []net.Conn{w.near, w.far} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
		}
	}
}

// carry opens the far end and moves what is sent, until both ends are through or the wire is ended.
func (w *wire) carry(there, back *link, target string) {
	for _, l := range []*link{there, back} { // the way of a SYN and of its answer
		if open, err := l.pass(w.done, time.Now(), 0); !open || err != nil {
			return
		}
	}
	far, err := net.DialTimeout("tcp", target, reachWithin)
	if err != nil {
		return // nobody listens: who dialled is told by a reset
	}
	w.mu.Lock()
	w.far = far
	if w.ended {
		far.Close()
	}
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.pump(w.near, far, there) })
	both.Go(func() { w.pump(far, w.near, back) })
	both.Wait()
}

// chunk is what was read at once.
type chunk struct {
	data []byte
	at   time.Time
}

// pump moves bytes one way. An end of the stream is passed on after all that was sent before it.
func (w *wire) pump(from, to net.Conn, l *link) {
	chunks := make(chan chunk, chunksMost)
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
		open, err := l.pass(w.done, c.at, len(c.data))
		if c.data == nil || !open || err != nil {
			w.end()
			break
		}
		if _, err := to.Write(c.data); err != nil {
			w.end()
			break
		}
		l.mu.Lock()
		l.last = now()
		l.mu.Unlock()
	}
	for range chunks { // whoever reads must not be stuck
	}
	reader.Wait()
	if tcp, ok := to.(*net.TCPConn); ok {
		if open, _ := l.pass(w.done, time.Now(), 0); open {
			_ = tcp.CloseWrite()
		}
	}
}

var errCut = errors.New("this link is cut")

// pass waits until what was sent at a moment may arrive. False: the wire has ended.
func (l *link) pass(done <-chan struct{}, sent time.Time, bytes int) (open bool, err error) {
	spread := rand.Float64() // of what jitter there is
	for {
		is, changed := l.state()
		if is.cut {
			return true, errCut
		}
		wait := time.Until(sent.Add(is.delay + time.Duration(spread*float64(is.jitter))))
		if is.rate > 0 {
			wait = max(wait, time.Duration(bytes)*time.Second/time.Duration(is.rate))
			bytes = 0 // so long it occupies the line, once
		}
		if !is.hole && wait <= 0 {
			return true, nil
		}
		if is.hole {
			wait = time.Hour // until it changes
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			if !is.hole && is.rate > 0 {
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
