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

	"zamok/raftnode/tail"
)

// testNetwork is a network in memory whose connections are pipes, so that it runs in a bubble of
// testing/synctest. A host that is cut off drops its connections, and calls to it or from it
// go unanswered.
type testNetwork struct {
	mu           sync.Mutex
	listeners    map[string]*testListener
	disconnected map[string]bool
	conns        map[*testConn]struct{}
}

type testListener struct {
	address  string
	fabric   *testNetwork
	incoming chan net.Conn
	done     chan struct{}
	once     sync.Once
}

type testConn struct {
	net.Conn
	from, to string
	fabric   *testNetwork
}

func newTestNetwork() *testNetwork {
	return &testNetwork{listeners: map[string]*testListener{}, disconnected: map[string]bool{},
		conns: map[*testConn]struct{}{}}
}

// listen opens a port at address; a closed one may be opened again.
func (f *testNetwork) listen(address string) *testListener {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &testListener{address: address, fabric: f, incoming: make(chan net.Conn),
		done: make(chan struct{})}
	f.listeners[address] = p
	return p
}

// dialer is how the host at address from calls others.
func (f *testNetwork) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		f.mu.Lock()
		port, dark := f.listeners[to], f.disconnected[from] || f.disconnected[to]
		f.mu.Unlock()
		if dark {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if port == nil {
			return nil, errors.New("connection refused")
		}
		a, b := net.Pipe()
		near, far := &testConn{a, from, to, f}, &testConn{b, to, from, f}
		f.mu.Lock()
		f.conns[near], f.conns[far] = struct{}{}, struct{}{}
		f.mu.Unlock()
		select {
		case port.incoming <- far:
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

// disconnect takes a host off the network.
func (f *testNetwork) disconnect(host string) {
	f.mu.Lock()
	f.disconnected[host] = true
	f.mu.Unlock()
	f.closeMatching(func(w *testConn) bool { return w.from == host || w.to == host })
}

func (f *testNetwork) reconnect(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.disconnected, host)
}

// closeMatching closes the connections that which names.
func (f *testNetwork) closeMatching(which func(*testConn) bool) {
	var dropped []*testConn
	f.mu.Lock()
	for w := range f.conns {
		if which(w) {
			dropped = append(dropped, w)
		}
	}
	f.mu.Unlock()
	for _, w := range dropped {
		w.Close()
	}
}

func (w *testConn) Close() error {
	w.fabric.mu.Lock()
	delete(w.fabric.conns, w)
	w.fabric.mu.Unlock()
	return w.Conn.Close()
}

func (w *testConn) RemoteAddr() net.Addr { return advertised(w.to) }

func (p *testListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.incoming:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *testListener) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *testListener) Addr() net.Addr { return advertised(p.address) }

// logBuffer is what a node logged.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (d *logBuffer) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.Write(p)
}

func (d *logBuffer) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.String()
}

func (d *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(d, nil)) }

// incarnationOf and clusterOf make numbers that a reader of a failure can tell apart.
func incarnationOf(name string) (i Incarnation) { copy(i[:], name); return i }

func clusterOf(name string) (c ClusterID) { copy(c[:], name); return c }

func mustList(t testing.TB, text string) List {
	t.Helper()
	l, err := ParseList(text)
	require.NoError(t, err)
	return l
}

// serverOf is the first server of a name; serverAfterWipe the one with the directory after it.
func serverOf(name string) Server { return Server{name, incarnationOf(name + " first")} }

func serverAfterWipe(name string) Server { return Server{name, incarnationOf(name + " again")} }

// initialMembersOf are the nodes of a list, each with its first incarnation unless another is
// given.
func initialMembersOf(l List, others ...Server) InitialMembers {
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

// testNode is a Network on a fabric, with what it needs said in a few words. Unless the test says
// otherwise, its host is its name, its directory the first, and the initial members of its list,
// each with its first directory, are on its disk.
type testNode struct {
	*Network
	logs *logBuffer
}

func openNode(t testing.TB, f *testNetwork, c Config) testNode {
	t.Helper()
	d := &logBuffer{}
	c.Logger = d.logger()
	if c.Advertise == "" {
		c.Advertise = "h" + c.ID[1:] + ":5751"
	}
	if c.Incarnation == (Incarnation{}) {
		c.Incarnation = serverOf(c.ID).Incarnation
	}
	if c.Condition == nil {
		c.Condition = fixedCondition(Condition{Initial: initialMembersOf(c.List)})
	}
	if c.Term == nil {
		c.Term = func() uint64 { return 1 }
	}
	if c.Knows == nil {
		c.Knows = func(s Server) bool { return c.List.Has(s.Name) }
	}
	if c.Handle == nil {
		c.Handle = noReply
	}
	if c.Tail == nil {
		c.Tail = func() tail.State { return tail.State{} }
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
	return testNode{n, d}
}

func noReply(context.Context, Server, []byte) []byte { return nil }

// fixedCondition is a condition that does not change.
func fixedCondition(c Condition) func(Server) Condition {
	return func(Server) Condition { return c }
}

// testTimeout bounds what takes real time, on a busy machine too.
const testTimeout = 20 * time.Second

// openTCP opens an initial member of threeNodes on a socket of this machine.
func openTCP(t testing.TB, c Config) testNode {
	t.Helper()
	listener, err := ListenTCP(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	c.List, c.Listener, c.Dial, c.HandshakeTimeout = mustList(t, threeNodes), listener, DialTCP,
		testTimeout
	c.Advertise = listener.Addr().String()
	return openNode(t, nil, c)
}

// openTransport opens Raft's end of a network. The response to every request is "yes". A call may
// take as long as a handshake.
func openTransport(t testing.TB, m testNode) *Transport {
	t.Helper()
	tr, err := m.Transport(hclog.NewNullLogger())
	require.NoError(t, err)
	tr.Start(new(raft.Raft))
	go func() {
		for {
			select {
			case call := <-tr.Consumer():
				call.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			case <-tr.ctx.Done():
				return
			}
		}
	}()
	return tr
}

// header is how the server behind a Transport names itself in a request.
func (t *Transport) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte(t.network.server().ID()),
		Addr: []byte(t.network.config.Advertise)}
}

// vote requests the vote of the first server of a name, over a fresh connection or one that is in
// the pool.
func vote(tr *Transport, name, address string) error { return voteOf(tr, serverOf(name), address) }

func voteOf(tr *Transport, server Server, address string) error {
	var resp raft.RequestVoteResponse
	err := tr.RequestVote(server.ID(), raft.ServerAddress(address),
		&raft.RequestVoteRequest{RPCHeader: tr.header()}, &resp)
	if err == nil && !resp.Granted {
		return errors.New("an answer, and no vote")
	}
	return err
}

// connect has one node request the vote of another, over a fresh connection.
func connect(t testing.TB, from, to testNode) error {
	t.Helper()
	caller, called := openTransport(t, from), openTransport(t, to)
	defer caller.Close()
	defer called.Close()
	return voteOf(caller, to.Mine().Server, to.config.Advertise)
}
