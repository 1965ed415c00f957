package peer

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// fabric is a network in memory whose connections are pipes, so that it runs in a bubble of
// testing/synctest. A host that is cut off drops its connections, and calls to it or from it
// go unanswered.
type fabric struct {
	mu    sync.Mutex
	ports map[string]*port
	off   map[string]bool
	wires map[*wire]struct{}
}

type port struct {
	address string
	fabric  *fabric
	calls   chan net.Conn
	done    chan struct{}
	once    sync.Once
}

type wire struct {
	net.Conn
	from, to string
	fabric   *fabric
}

func newFabric() *fabric {
	return &fabric{ports: map[string]*port{}, off: map[string]bool{}, wires: map[*wire]struct{}{}}
}

// listen opens a port at address; a closed one may be opened again.
func (f *fabric) listen(address string) *port {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &port{address: address, fabric: f, calls: make(chan net.Conn), done: make(chan struct{})}
	f.ports[address] = p
	return p
}

// dialer is how the host at address from calls others.
func (f *fabric) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		f.mu.Lock()
		port, dark := f.ports[to], f.off[from] || f.off[to]
		f.mu.Unlock()
		if dark {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if port == nil {
			return nil, errors.New("connection refused")
		}
		a, b := net.Pipe()
		near, far := &wire{a, from, to, f}, &wire{b, to, from, f}
		f.mu.Lock()
		f.wires[near], f.wires[far] = struct{}{}, struct{}{}
		f.mu.Unlock()
		select {
		case port.calls <- far:
			return near, nil
		case <-port.done:
			near.Close()
			far.Close()
			return nil, errors.New("connection refused")
		case <-ctx.Done():
			near.Close()
			far.Close()
			return nil, ctx.Err()
		}
	}
}

// cut takes a host off the network.
func (f *fabric) cut(host string) {
	f.mu.Lock()
	f.off[host] = true
	f.mu.Unlock()
	f.drop(func(w *wire) bool { return w.from == host || w.to == host })
}

func (f *fabric) heal(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.off, host)
}

// drop closes the connections that which names.
func (f *fabric) drop(which func(*wire) bool) {
	var dropped []*wire
	f.mu.Lock()
	for w := range f.wires {
		if which(w) {
			dropped = append(dropped, w)
		}
	}
	f.mu.Unlock()
	for _, w := range dropped {
		w.Close()
	}
}

func (w *wire) Close() error {
	w.fabric.mu.Lock()
	delete(w.fabric.wires, w)
	w.fabric.mu.Unlock()
	return w.Conn.Close()
}

func (w *wire) RemoteAddr() net.Addr { return advertised(w.to) }

func (p *port) Accept() (net.Conn, error) {
	select {
	case conn := <-p.calls:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *port) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *port) Addr() net.Addr { return advertised(p.address) }

// diary is what a node logged.
type diary struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (d *diary) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.Write(p)
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.String()
}

func (d *diary) logger() *slog.Logger { return slog.New(slog.NewTextHandler(d, nil)) }

// incarnationOf and clusterOf make numbers that a reader of a failure can tell apart.
func incarnationOf(name string) (i Incarnation) { copy(i[:], name); return i }

func clusterOf(name string) (c ClusterID) { copy(c[:], name); return c }

func mustList(t testing.TB, text string) List {
	t.Helper()
	l, err := ParseList(text)
	require.NoError(t, err)
	return l
}

// serverOf is the first server of a name; serverAgain the one with the directory after it.
func serverOf(name string) Server { return Server{name, incarnationOf(name + " first")} }

func serverAgain(name string) Server { return Server{name, incarnationOf(name + " again")} }

// foundersOf are the nodes of a list, each with its first incarnation unless another is given.
func foundersOf(l List, others ...Server) InitialMembers {
	incarnations := map[string]Incarnation{}
	for _, node := range l.Nodes() {
		incarnations[node.ID] = serverOf(node.ID).Incarnation
	}
	for _, s := range others {
		incarnations[s.Name] = s.Incarnation
	}
	return NewInitialMembers(l, incarnations)
}

const threeNodes = "n1=h1:5751,n2=h2:5751,n3=h3:5751"

// member is a Network on a fabric, with what it needs said in a few words. Unless the test says
// otherwise, its host is its name, its directory the first, and the initial members of its list, each with its
// first directory, are on its disk.
type member struct {
	*Network
	diary *diary
}

func open(t testing.TB, f *fabric, c Config) member {
	t.Helper()
	d := &diary{}
	c.Logger = d.logger()
	if c.Advertise == "" {
		c.Advertise = "h" + c.ID[1:] + ":5751"
	}
	if c.Incarnation == (Incarnation{}) {
		c.Incarnation = serverOf(c.ID).Incarnation
	}
	if c.Condition == nil {
		c.Condition = says(Condition{Initial: foundersOf(c.List)})
	}
	if c.Term == nil {
		c.Term = func() uint64 { return 0 }
	}
	if c.Handle == nil {
		c.Handle = noReply
	}
	if c.Lost == nil {
		c.Lost = func(Node, uint64) {}
	}
	if c.Listener == nil {
		c.Listener = f.listen(c.Advertise)
	}
	if c.Dial == nil {
		c.Dial = f.dialer(c.Advertise)
	}
	n, err := New(c)
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	return member{n, d}
}

func noReply(context.Context, Server, []byte) []byte { return nil }

// says is a condition that does not change.
func says(c Condition) func(Server) Condition { return func(Server) Condition { return c } }

// patience bounds what takes real time, on a busy machine too.
const patience = 20 * time.Second

// openTCP opens an initial member of threeNodes on a socket of this machine.
func openTCP(t testing.TB, c Config) member {
	t.Helper()
	listener, err := ListenTCP(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	c.List, c.Listener, c.Dial, c.HandshakeTimeout = mustList(t, threeNodes), listener, DialTCP, patience
	c.Advertise = listener.Addr().String()
	return open(t, nil, c)
}

// transport opens Raft's share of a network. Whatever Raft would be asked is answered "yes". A call may take
// as long as a handshake.
func transport(t testing.TB, m member) *Transport {
	t.Helper()
	tr, err := m.Transport(raft.NetworkTransportConfig{Logger: hclog.NewNullLogger(), Timeout: m.config.HandshakeTimeout})
	require.NoError(t, err)
	tr.Start(new(raft.Raft))
	go func() {
		for {
			select {
			case call := <-tr.Consumer():
				call.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			case <-tr.streams.ctx.Done():
				return
			}
		}
	}()
	return tr
}

// vote asks the first server of a name for its vote, over a fresh connection or one that is in the pool.
func vote(tr *Transport, name, address string) error { return voteOf(tr, serverOf(name), address) }

func voteOf(tr *Transport, server Server, address string) error {
	var resp raft.RequestVoteResponse
	err := tr.RequestVote(server.ID(), raft.ServerAddress(address), &raft.RequestVoteRequest{}, &resp)
	if err == nil && !resp.Granted {
		return errors.New("an answer, and no vote")
	}
	return err
}

// connect lets one node ask another, over a fresh connection, for a vote.
func connect(t testing.TB, from, to member) error {
	t.Helper()
	caller, called := transport(t, from), transport(t, to)
	defer caller.Close()
	defer called.Close()
	return voteOf(caller, to.Mine().Server, to.config.Advertise)
}
