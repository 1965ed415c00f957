package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// What takes a node minutes is tested in a bubble of testing/synctest, where time is free: nodes in
// this process, on a network of pipes, with disks in memory that a test can make ill.

// bubble is the inside of one.
type bubble struct {
	*testing.T
	network
	tune  func(*Config) // changes the configuration of each node; nil: nothing does
	list  peer.List
	nodes []*bubbleNode
}

type bubbleNode struct {
	*Node
	self  peer.Node
	dir   string // of its data; what else a node keeps in memory, it can't come back to
	disk  *sickDisk
	ended chan error // what it ended itself for
	diary diary
	door  *door

	mu       sync.Mutex // guards outcomes
	outcomes []string   // of the progress rule; see Config.GaveWay
}

// diary is what a node logged.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, string(p)) // a handler writes a line at once
	return len(p), nil
}

// new returns what was logged since the last call.
func (d *diary) new() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := d.lines
	d.lines = nil
	return lines
}

// inBubble runs a test on three nodes that have begun a cluster, in parallel with others. At its
// end they are killed.
func inBubble(t *testing.T, test func(*bubble)) { inBubbleTuned(t, nil, test) }

func inBubbleTuned(t *testing.T, tune func(*Config), test func(*bubble)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		list, err := peer.ParseList("n1=h1:1,n2=h2:1,n3=h3:1")
		require.NoError(t, err)
		b := &bubble{T: t, network: network{doors: make(map[string]*door)}, tune: tune, list: list}
		for _, self := range list.Nodes() {
			b.nodes = append(b.nodes,
				&bubbleNode{self: self, dir: t.TempDir(), disk: newSickDisk(),
					ended: make(chan error, 1)})
		}
		// also after a failure: what is left in a bubble ends all tests
		defer func() { b.kill(b.nodes...) }()
		b.start(b.nodes...)
		test(b)
	})
}

// start opens nodes, all at once.
func (b *bubble) start(nodes ...*bubbleNode) {
	opened := make(chan error)
	for _, n := range nodes {
		go func() { opened <- b.open(n) }()
	}
	for range nodes {
		require.NoError(b, <-opened)
	}
}

func (b *bubble) kill(nodes ...*bubbleNode) {
	for _, n := range nodes {
		n.disk.heal()
		if n.Node != nil { // it was opened
			require.NoError(b, n.Kill())
		}
	}
}

func (b *bubble) open(n *bubbleNode) (err error) {
	d := b.listen(n.self.Address)
	cfg := Config{
		ID: n.self.ID, Store: store.Config{Dir: n.dir, Wrap: n.disk.wrap()},
		Peers: peer.Config{List: b.list, Listener: d, Dial: b.dialer(d)}, Source: clock.Runtime(),
		Fatal: func(err error) {
			d.cut()
			select {
			case n.ended <- err:
			default: // it ends once
			}
		},
		Logger: slog.New(slog.NewTextHandler(io.MultiWriter(b.Output(), &n.diary), nil)),
		GaveWay: func(outcome string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.outcomes = append(n.outcomes, outcome)
		},
	}
	n.door = d
	if b.tune != nil {
		b.tune(&cfg)
	}
	// A process that another test starts has what was open here until its own program begins. That
	// takes real time, and a second of a bubble takes none.
	syscall.ForkLock.RLock()
	//lint:ignore SA2001 it is only waited for
	syscall.ForkLock.RUnlock()
	n.Node, err = Open(b.Context(), cfg)
	return err
}

// leader waits for an epoch at one of nodes.
func (b *bubble) leader(nodes ...*bubbleNode) *bubbleNode {
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		for _, n := range nodes {
			if n.Status().Leading {
				return n
			}
		}
	}
	b.Fatal("no epoch opens")
	return nil
}

// quietLeader waits until all nodes are announced, so that no node proposes anything by itself any
// more, and returns the leader.
func (b *bubble) quietLeader() *bubbleNode {
	require.NoError(b, b.fence(b.leader(b.nodes...)))
	time.Sleep(3 * maintenanceTick)
	return b.leader(b.nodes...)
}

func (b *bubble) others(than *bubbleNode) (others []*bubbleNode) {
	for _, n := range b.nodes {
		if n != than {
			others = append(others, n)
		}
	}
	return others
}

// ends waits for a node to end itself, and returns what for.
func (b *bubble) ends(n *bubbleNode) error {
	limit := time.NewTimer(2 * watchdogInterval)
	defer limit.Stop()
	select {
	case err := <-n.ended:
		return err
	case <-limit.C:
		return nil
	}
}

// fence fences a node within a second, or says why not.
func (b *bubble) fence(n *bubbleNode) error {
	ctx, cancel := context.WithTimeout(b.Context(), time.Second)
	defer cancel()
	_, _, err := n.ReadBarrier(ctx)
	return err
}

// network connects the doors of nodes by pipes.
type network struct {
	mu    sync.Mutex
	doors map[string]*door
	trip  atomic.Int64 // how long a question and its answer take longer, in ns
}

// farConn is the calling end of a connection between nodes that may be far apart, on a slow line,
// or behind a black hole.
type farConn struct {
	net.Conn
	trip *atomic.Int64
	from *door
	to   *door
	lost bool // some of what was sent, so nothing arrives behind it
}

// passes is the longest message that passes a black hole.
const passes = 1400

func (c *farConn) Write(b []byte) (int, error) {
	if c.to.deaf.Load() {
		return 0, errUnreachable
	}
	c.from.messages.Add(1)
	time.Sleep(time.Duration(c.trip.Load() + c.from.delays.Swap(0)))
	if rate := c.from.bytesPerSecond.Load(); rate > 0 {
		time.Sleep(time.Duration(len(b)) * time.Second / time.Duration(rate))
	}
	if c.lost = c.lost || c.from.blackHole.Load() && len(b) > passes; c.lost {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// door is where a node listens, and all its connections.
type door struct {
	address string
	calls   chan net.Conn
	closed  chan struct{}

	messages       atomic.Int64 // that this node has sent on connections that it made
	blackHole      atomic.Bool  // large messages of this node are lost
	deaf           atomic.Bool  // nothing that others begin reaches this node
	delays         atomic.Int64 // the next message of this node, by so many ns
	bytesPerSecond atomic.Int64 // of each connection from this node; 0 = any number

	mu    sync.Mutex
	shut  bool
	conns []net.Conn
}

func (w *network) listen(address string) *door {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := &door{address: address, calls: make(chan net.Conn), closed: make(chan struct{})}
	w.doors[address] = d
	return d
}

var errUnreachable = errors.New("no node answers")

func (w *network) dialer(from *door) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		w.mu.Lock()
		to := w.doors[address]
		w.mu.Unlock()
		if to == nil {
			return nil, errUnreachable
		}
		near, far := net.Pipe()
		if !from.keep(near) || !to.keep(far) {
			return nil, errors.Join(errUnreachable, near.Close())
		}
		select {
		case to.calls <- far:
			return &farConn{Conn: near, trip: &w.trip, from: from, to: to}, nil
		case <-to.closed:
		case <-ctx.Done():
		}
		return nil, errors.Join(errUnreachable, near.Close(), far.Close())
	}
}

func (d *door) keep(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, c)
	return !d.shut
}

func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.calls:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// cut ends every connection, as the end of a process does, and lets no other begin.
func (d *door) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.shut {
		d.shut = true
		close(d.closed)
	}
	for _, c := range d.conns {
		_ = c.Close()
	}
}

func (d *door) Close() error {
	d.cut()
	return nil
}

func (d *door) Addr() net.Addr  { return d }
func (d *door) Network() string { return "pipe" }
func (d *door) String() string  { return d.address }

var _ fmt.Stringer = (*door)(nil)
