package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"zamok/api"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// electionTimeout is how long nodes wait for a leader where that is not measured: what they do in a calm place.
const electionTimeout = 250 * time.Millisecond

// peerPort is where a host's node listens to its peers.
const peerPort = "5751"

// Tune changes the configuration of a node before it starts.
type Tune func(*raftnode.Config)

// Node is a machine: a host, a clock, and a disk, on which a process runs or not. The disk belongs
// to one node id.
type Node struct {
	ID, Host string
	Clock    *Clock
	Disk     *Disk

	sim        *Sim
	replacedBy *Node // what took its place; nil = it is in its place. Guarded by sim.mu

	mu            sync.Mutex // guards what follows
	process       *process   // the latest; nil = there was none
	starts        int
	joinedCluster store.ID // the cluster that it was added to; zero = an initial member
}

// process is one run of the node on the machine.
type process struct {
	cancel   context.CancelFunc
	stack    *Stack
	opened   chan struct{}  // closed when Open has returned
	node     *raftnode.Node // set when opened
	server   *api.Node      // likewise, if it serves clients too
	err      error          // of Open, set when opened
	stopping chan struct{}  // closed when the process is told to end: nobody hears from it any more
	ended    chan struct{}  // closed when nothing of it runs any more

	mu           sync.Mutex // guards what follows
	dying        bool
	disconnected bool  // dead is closed
	powerLost    bool  // its machine has no power: what it does is not seen
	fatalErr     error // what it ended itself for
}

// AddNode puts a machine with an empty disk on the network. An id may be added again: that is a node
// whose disk was lost. The one before must have ended.
func (s *Sim) AddNode(id, host string) *Node {
	n := &Node{ID: id, Host: host, Clock: newClock(s.rateOf(host)), Disk: s.newDisk(id), sim: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes = append(s.nodes, n)
	return n
}

// Node is the machine with this id that was added last.
func (s *Sim) Node(id string) *Node {
	for _, n := range slices.Backward(s.Nodes()) {
		if n.ID == id {
			return n
		}
	}
	s.Fatalf("there is no node %s", id)
	return nil
}

// Nodes are all machines, also those whose id was given to another one later.
func (s *Sim) Nodes() []*Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.nodes)
}

// Initial members are the nodes of the cluster's list.
func (s *Sim) InitialMembers() []*Node {
	return s.Nodes()[:s.initialMembers]
}

// Members are the machines of the cluster: the initial members, or what took their places.
func (s *Sim) Members() []*Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	members := slices.Clone(s.nodes[:s.initialMembers])
	for i, n := range members {
		for n.replacedBy != nil {
			n = n.replacedBy
		}
		members[i] = n
	}
	return members
}

// Replace puts a machine with an empty disk in the place of another, whose process must have ended. The id
// is the other's, or a new one. It is not started, and the cluster does not know of it.
func (s *Sim) Replace(old *Node, id string, cluster store.ID) *Node {
	n := s.AddNode(id, old.Host)
	s.mu.Lock()
	defer s.mu.Unlock()
	n.joinedCluster, old.replacedBy = cluster, n
	return n
}

// InitialList is the --cluster list that names all initial members at their hosts.
func (s *Sim) InitialList() peer.List {
	var items []string
	for _, n := range s.InitialMembers() {
		items = append(items, n.ID+"="+n.Address())
	}
	list, err := peer.ParseList(strings.Join(items, ","))
	if err != nil {
		s.Fatal(err)
	}
	return list
}

// Address is where peers reach the node.
func (n *Node) Address() string { return n.Host + ":" + peerPort }

// Peer is the node as a join names it.
func (n *Node) Peer() peer.Node { return peer.Node{ID: n.ID, Address: n.Address()} }

// StartProcess starts a process on the machine and does not wait for it. The config is that of an initial member;
// tune changes it, after the run's own Tune.
func (n *Node) StartProcess(tune ...Tune) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil && !n.process.stopped() {
		n.sim.Fatalf("%s runs already", n.ID)
	}
	stack := n.sim.Network.NewStack(n.Host)
	listener, err := stack.Listen(peerPort)
	if err != nil {
		n.sim.Fatal(err)
	}
	n.starts++
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{
		cancel: cancel, stack: stack,
		opened: make(chan struct{}), stopping: make(chan struct{}), ended: make(chan struct{}),
	}
	n.process = p
	cfg := raftnode.Config{
		ID: n.ID, Store: store.Config{Dir: n.Disk.dir, Memory: n.Disk.memory, Wrap: n.Disk.wrap()},
		Peers: peer.Config{List: n.sim.InitialList(), Listener: listener, Dial: stack.Dial}, Client: n.Host + ":5750", Version: "sim",
		Applied: p.whilePowered(n.sim.Audit.applied(n.ID)), Restored: n.sim.Audit.restoredFrom(n.ID),
		Fatal:  func(err error) { n.exitProcess(p, err) },
		Logger: n.sim.Trace.logger(n.ID), Source: n.Clock,
	}
	if !n.sim.config.AdaptiveTimeouts {
		cfg.ElectionTimeout = electionTimeout
	}
	if n.sim.config.Tune != nil {
		n.sim.config.Tune(&cfg)
	}
	if n.joinedCluster != (store.ID{}) {
		cfg.Peers.List, cfg.JoinCluster = peer.List{}, n.joinedCluster
	}
	for _, t := range tune {
		t(&cfg)
	}
	n.sim.Trace.Note(n.ID, "starts, for the %d. time", n.starts)
	go func() {
		// Open ends with Goexit when Fatal was called inside of it.
		p.err = errors.New("the process ended while it was starting")
		defer close(p.opened)
		if n.sim.config.Serve {
			n.serve(ctx, p, cfg)
		} else {
			p.node, p.err = raftnode.Open(ctx, cfg)
		}
		if p.err != nil {
			n.sim.Trace.Note(n.ID, "did not start: %v", p.err)
		}
	}()
}

// whilePowered leaves out what is applied without power, on a disk that no process will find.
func (p *process) whilePowered(observe func(*fsm.Machine, fsm.Applied)) func(*fsm.Machine, fsm.Applied) {
	return func(m *fsm.Machine, a fsm.Applied) {
		p.mu.Lock()
		dark := p.powerLost
		p.mu.Unlock()
		if !dark {
			observe(m, a)
		}
	}
}

// exitProcess ends the process as os.Exit would, and the goroutine that asks for it.
func (n *Node) exitProcess(p *process, reason error) {
	p.mu.Lock()
	first := p.fatalErr == nil && !p.powerLost
	if first {
		p.fatalErr = reason
	}
	p.mu.Unlock()
	if first {
		n.sim.Trace.Note(n.ID, "ended itself: %v", reason)
		go n.kill(p)
	}
	runtime.Goexit()
}

// Kill ends the process as kill -9 does. Writes that hang land: they were handed to the kernel.
func (n *Node) Kill() {
	n.mu.Lock()
	p := n.process
	n.mu.Unlock()
	if p != nil {
		n.kill(p)
	}
}

func (n *Node) kill(p *process) { n.endProcess(p, func() {}, p.kill) }

// disconnect closes the sockets, as the kernel does, so that whatever the node still thinks or says on
// its way to the end is heard by nobody.
func (p *process) disconnect() {
	p.stack.CloseAll()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.disconnected {
		p.disconnected = true
		close(p.stopping)
	}
}

func (p *process) kill() error {
	p.disconnect()
	if p.server != nil {
		return p.server.Kill()
	}
	return p.node.Kill()
}

func (p *process) close() error {
	if p.server != nil {
		return p.server.Close()
	}
	return p.node.Close()
}

// Close ends the process cleanly.
func (n *Node) Close() {
	n.mu.Lock()
	p := n.process
	n.mu.Unlock()
	if p != nil {
		n.endProcess(p, func() {}, p.close)
	}
}

// endProcess ends the process, or waits until it has ended; what is to be done first is left out then.
func (n *Node) endProcess(p *process, before func(), end func() error) {
	p.mu.Lock()
	mine := !p.dying
	p.dying = true
	p.mu.Unlock()
	if !mine {
		<-p.ended
		return
	}
	before()
	p.cancel()
	n.Disk.Resume()
	n.Clock.Thaw()
	<-p.opened
	if p.node != nil {
		if err := end(); err != nil {
			n.sim.Trace.Note(n.ID, "ended with %v", err)
		}
	}
	p.disconnect()
	n.Disk.restoreImage()
	n.sim.Trace.Note(n.ID, "ended")
	close(p.ended)
}

func (p *process) stopped() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Running is the node that runs here, or nil.
func (n *Node) Running() *raftnode.Node {
	if p := n.openProcess(); p != nil {
		return p.node
	}
	return nil
}

// processEnded reports whether a process ran here and nothing of it is left.
func (n *Node) processEnded() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process != nil && n.process.stopped()
}

// awaitEnded waits for the end of a process that was told to end; one that did not open is over.
func (n *Node) awaitEnded() {
	n.mu.Lock()
	p := n.process
	n.mu.Unlock()
	if p != nil {
		n.kill(p)
	}
}

// openProcess is the process that is open and not told to end yet, or nil.
func (n *Node) openProcess() *process {
	n.mu.Lock()
	p := n.process
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.opened:
		if p.dying || p.node == nil {
			return nil
		}
		return p
	default:
		return nil
	}
}

// AwaitOpen waits until Open has returned, and returns what it said.
func (n *Node) AwaitOpen(ctx context.Context) error {
	n.mu.Lock()
	p := n.process
	n.mu.Unlock()
	if p == nil {
		return errors.New("it was never started")
	}
	select {
	case <-p.opened:
	case <-ctx.Done():
		select {
		case <-p.opened: // ctx may have ended long ago
		default:
			return fmt.Errorf("%s is still starting: %w", n.ID, context.Cause(ctx))
		}
	}
	return p.err
}

// Fatal is what the latest process ended itself for; nil: it did not.
func (n *Node) Fatal() error {
	n.mu.Lock()
	p := n.process
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fatalErr
}
