package conns

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/peer"

	"zamok/api/gate/limits"
)

// Conn is a client's connection. It records which end broke it: gRPC reports to its streams only
// the break.
type Conn struct {
	net.Conn

	budget   *Budget
	listener *Listener
	network  string      // the name of its network
	writing  sync.Mutex  // held by Write
	hungUp   atomic.Bool // the client's end closed or reset it
	closed   atomic.Bool // this end closed it or gave it up
	framed   *framed     // of gRPC; set by the handshake
	requests atomic.Uint32
	probed   atomic.Bool // Probe was called

	mu    sync.Mutex       // guards what follows, and the calls
	calls map[uint32]*call // by the ids of their streams; of HTTP, by the number of the request
	ended bool             // it was closed, and counts nothing

	// For the Listener.
	from       *network
	class      class // changes under Budget.mu as well
	identified bool  // the caller of an admitted call was authenticated
	busy       int   // admitted calls in flight
	// when the first began or the last ended; of a new connection: when it came
	since     time.Time
	full      string // the limit for which it found no room
	fullSince time.Time
}

func newConn(conn net.Conn, budget *Budget, listener *Listener) *Conn {
	return &Conn{
		Conn: conn, budget: budget, listener: listener, calls: make(map[uint32]*call),
		network: limits.Network(limits.HostOf(conn.RemoteAddr().String())), since: time.Now(),
	}
}

func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	// a concurrent Write may be getting the real error of the connection
	if errors.Is(err, io.EOF) {
		c.writing.Lock()
		defer c.writing.Unlock()
	}
	return n, c.recordBreak(err)
}

func (c *Conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.Conn.Write(b)
	if errors.Is(err, syscall.EPIPE) { // Read gets the real error
		return n, err
	}
	return n, c.recordBreak(err)
}

// recordBreak records which end broke the connection, and returns the error. An error other than
// EOF or a reset, such as a timeout of this node or its kernel, is a decision of this node. The
// kernel reports it once, to a reader or to a writer; the other one gets EOF or EPIPE although the
// client did not close the connection.
func (c *Conn) recordBreak(err error) error {
	switch {
	case err == nil:
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		if !c.closed.Load() {
			c.hungUp.Store(true)
		}
	default:
		c.closed.Store(true)
	}
	return err
}

func (c *Conn) Close() error {
	c.closed.Store(true)
	err := c.Conn.Close()
	c.mu.Lock()
	c.ended = true
	for id := range c.calls {
		c.remove(id)
	}
	c.mu.Unlock()
	c.budget.forget(c)
	return err
}

// RemoteAddr returns an Addr, through which a call finds its connection.
func (c *Conn) RemoteAddr() net.Addr { return Addr{c.Conn.RemoteAddr(), c} }

// Probe lets the kernel probe the connection so from now on, whatever it is used for later. Only
// the first call counts.
func (c *Conn) Probe(config net.KeepAliveConfig) {
	if tcp, is := c.Conn.(*net.TCPConn); is && !c.probed.Swap(true) {
		_ = tcp.SetKeepAliveConfig(config) // it fails if the connection is closed
	}
}

// Network is what stands for the client's address where addresses are counted.
func (c *Conn) Network() string { return c.network }

// Addr is the address of a client.
type Addr struct {
	net.Addr
	conn *Conn
}

type connKey struct{}

// WithConn is the ConnContext of an HTTP server: through it requests find their connection.
func WithConn(ctx context.Context, conn net.Conn) context.Context {
	at, _ := conn.RemoteAddr().(Addr)
	return context.WithValue(ctx, connKey{}, at.conn)
}

// Of returns the connection of a call of gRPC or a request of HTTP, or nil.
func Of(ctx context.Context) *Conn {
	if conn, is := ctx.Value(connKey{}).(*Conn); is {
		return conn
	}
	if p, ok := peer.FromContext(ctx); ok {
		if at, ok := p.Addr.(Addr); ok {
			return at.conn
		}
	}
	return nil
}

// ClosedByPeer reports, for a call whose stream broke, whether the client caused it: it reset the
// stream, or closed the connection, which may be nil. Breaks that this node caused, as when pings
// stay unanswered, are not the client's.
func ClosedByPeer(c *Conn) bool {
	return c != nil && (c.hungUp.Load() || !c.closed.Load())
}

// call is a call in progress. The mutex of its connection guards it.
type call struct {
	conn    *Conn
	ended   bool        // it is none of the connection's any more
	waiting *time.Timer // ends it, unless its request comes; nil: nothing does
	in, out flow        // the request, and the answer
}

// flow is the bytes in flight in one direction.
type flow struct {
	bytes  int
	frames int       // in which the bytes arrived
	since  time.Time // of the last progress
	until  int       // bytes that must go for the next progress
}

// weight is the approximate memory of a flow.
func (f *flow) weight() int64 { return int64(f.bytes + f.frames*frameBytes) }

// moveBytes, or all bytes if these are fewer, must go for a flow to make progress: so reading byte
// by byte is none.
const moveBytes = 64 << 10

// add counts bytes.
func (f *flow) add(bytes, frames int) {
	if f.bytes == 0 {
		f.since, f.until = time.Now(), min(bytes, moveBytes)
	}
	f.bytes, f.frames = f.bytes+bytes, f.frames+frames
}

// take removes bytes that were received or sent.
func (f *flow) take(bytes int) {
	f.bytes, f.until = max(f.bytes-bytes, 0), f.until-bytes
	f.frames = min(f.frames, f.bytes)
	if f.until <= 0 {
		f.since, f.until = time.Now(), min(f.bytes, moveBytes)
	}
}

// change changes a flow of a call, and the sum of the budget.
func (c *call) change(f *flow, how func(*flow)) {
	c.conn.mu.Lock()
	grown := int64(0)
	if !c.ended {
		grown = -f.weight()
		how(f)
		grown += f.weight()
	}
	c.conn.mu.Unlock()
	c.conn.budget.grow(grown)
}

func (c *call) receive(bytes, frames int) {
	c.change(&c.in, func(f *flow) { f.add(bytes, frames) })
}
func (c *call) received(bytes int) { c.change(&c.in, func(f *flow) { f.take(bytes) }) }
func (c *call) send(bytes int)     { c.change(&c.out, func(f *flow) { f.add(bytes, 0) }) }
func (c *call) sent(bytes int)     { c.change(&c.out, func(f *flow) { f.take(bytes) }) }

// begin counts a call.
func (c *Conn) begin(id uint32, waiting *time.Timer) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := &call{conn: c, ended: c.ended, waiting: waiting}
	if !c.ended {
		c.calls[id] = begun
	} else {
		begun.stopWaiting()
	}
	return begun
}

// stopWaiting stops the timer, which keeps the context and with it the metadata of a call that has
// ended.
func (c *call) stopWaiting() {
	if c.waiting != nil {
		c.waiting.Stop()
	}
}

func (c *Conn) call(id uint32) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[id]
}

// end removes a call.
func (c *Conn) end(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(id)
}

// remove removes a call. The caller holds the lock.
func (c *Conn) remove(id uint32) {
	if ended := c.calls[id]; ended != nil {
		ended.ended = true
		ended.stopWaiting()
		delete(c.calls, id)
		c.budget.used.Add(-ended.in.weight() - ended.out.weight())
	}
}

// stillMost is for how long what does not move counts more and more. Beyond that the bytes decide:
// a call that lasts for days may keep a few, of a message that its client encoded longer than it
// had to.
const stillMost = time.Minute

// load is what the calls of the connection keep, and that times the seconds for which it has not
// moved, at least one: among clients that have just sent a request, those count that requested
// most.
func (c *Conn) load(now time.Time) (bytes int64, byteSeconds float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		for _, f := range []*flow{&call.in, &call.out} {
			bytes += f.weight()
			byteSeconds += float64(f.weight()) *
				min(max(now.Sub(f.since), time.Second), stillMost).Seconds()
		}
	}
	return bytes, byteSeconds
}
