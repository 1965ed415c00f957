package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zamok/api"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// electionTimeout is the nodes' election timeout unless timeouts adapt: the one of a fast network.
const electionTimeout = 250 * time.Millisecond

// The ports of a node.
const (
	clientPort = "5750"
	peerPort   = "5751"
	httpPort   = "5752"
)

// Tune changes the configuration of a node before it starts.
type Tune func(*raftnode.Config)

// Node is a machine with a host, a clock and a disk. At most one process runs on it. The disk
// belongs to one node id.
type Node struct {
	ID, Host string
	Clock    *Clock
	Disk     *Disk

	sim        *Sim
	alone      bool  // it holds a restored backup: its list names no other node
	replacedBy *Node // the machine that replaced it; nil = none; guarded by sim.mu

	mu            sync.Mutex // guards what follows
	process       *process   // the latest; nil = there was none
	starts        int
	joinedCluster store.ID // the cluster that it was added to; zero = an initial member
}

// process is one run of the node on the machine.
type process struct {
	cancel   context.CancelFunc
	stack    *Stack
	opened   chan struct{} // closed when StartNode has returned
	server   *api.Node     // set when opened; nil = it did not start
	err      error         // of StartNode, set when opened
	stopping chan struct{} // closed with its sockets: nothing that it sends arrives from then on
	ended    chan struct{} // closed when all of it has ended

	disconnected sync.Once // stopping is closed
	ending       atomic.Bool
	// its disk was captured: nothing reads what it does from then on
	dead  atomic.Bool
	fatal atomic.Pointer[error] // why it exited by itself
}

// AddNode adds a machine with an empty disk to the network. An id may be added again, for a node
// whose disk was lost. The earlier one must have ended.
func (s *Sim) AddNode(id, host string) *Node {
	n := &Node{ID: id, Host: host, Clock: newClock(s.rateOf(host)), Disk: s.newDisk(id), sim: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes = append(s.nodes, n)
	return n
}

// Node is the latest machine with this id.
func (s *Sim) Node(id string) *Node {
	for _, n := range slices.Backward(s.Nodes()) {
		if n.ID == id {
			return n
		}
	}
	s.Fatalf("there is no node %s", id)
	return nil
}

// Nodes are all machines, also those whose id a later one has.
func (s *Sim) Nodes() []*Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.nodes)
}

// InitialMembers are the nodes of the cluster's list.
func (s *Sim) InitialMembers() []*Node { return s.Nodes()[:s.initialMembers] }

// Members are the machines of the cluster: the initial members, or those that replaced them.
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

// Replace replaces a machine, whose process must have ended, by one with an empty disk. The id is
// the old one's or a new one. The new machine is not started, and the cluster does not know of it.
func (s *Sim) Replace(old *Node, id string, cluster store.ID) *Node {
	n := s.AddNode(id, old.Host)
	s.Audit.diskLost(old.ID)
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

// waitFor prepares an empty data directory as that of a node that has found its cluster before: it
// starts and waits to be added even if no member responds.
func waitFor(c store.Config, id string, cluster store.ID) error {
	c.NodeID, c.Format, c.Wrap, c.Fatal = id, fsm.Format(), store.Wrap{}, func(error) {}
	st, err := store.Open(c)
	if err != nil {
		return err
	}
	if !st.HoldsData() {
		err = st.Join(cluster)
	}
	return errors.Join(err, st.Close())
}

// StartProcess starts a process on the machine, and returns before it has opened. Its configuration
// is that of an initial member; tune changes it, after the run's own Tune.
func (n *Node) StartProcess(tune ...Tune) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil && !isClosed(n.process.ended) {
		n.sim.Fatalf("%s runs already", n.ID)
	}
	stack := n.sim.Network.NewStack(n.Host)
	peers, err := stack.Listen(peerPort)
	clients, err2 := stack.Listen(clientPort)
	http, err3 := stack.Listen(httpPort)
	if err := errors.Join(err, err2, err3); err != nil {
		n.sim.Fatal(err)
	}
	n.starts++
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{
		cancel: cancel, stack: stack,
		opened: make(chan struct{}), stopping: make(chan struct{}), ended: make(chan struct{}),
	}
	n.process = p
	n.Disk.onWrite.set(nil) // a hook belongs to one process
	cfg := api.NodeConfig{Listener: clients, HTTPListener: http, Advertise: n.Host,
		Config: raftnode.Config{
			ID:    n.ID,
			Store: store.Config{Dir: n.Disk.dir, Memory: n.Disk.memory, Wrap: n.Disk.wrap()},
			Peers: peer.Config{List: n.sim.InitialList(), Listener: peers, Dial: stack.Dial},
			Applied: func(m *fsm.Machine, a fsm.Applied) {
				if !p.dead.Load() { // else no later process will have its effect
					n.sim.Audit.applied(n.ID, m, a)
				}
			},
			Restored: func(m *fsm.Machine) {
				if !p.dead.Load() {
					n.sim.Audit.restored(n.ID, m)
				}
			},
			Version: "sim", Logger: n.sim.Trace.logger(n.ID, n.sim.countMoves), Source: n.Clock,
			ElectionTimeout: electionTimeout,
			Fatal:           func(err error) { n.exitProcess(p, err) },
		}}
	if n.joinedCluster != (store.ID{}) {
		cfg.Peers.List, cfg.Join = peer.List{}, cfg.Peers.List
		if err := waitFor(cfg.Store, n.ID, n.joinedCluster); err != nil {
			n.sim.Fatal(err)
		}
	}
	if n.alone {
		cfg.Peers.List = n.aloneList()
	}
	if n.sim.config.AdaptiveTimeouts {
		cfg.ElectionTimeout = 0
	}
	if n.sim.config.Tune != nil {
		n.sim.config.Tune(&cfg.Config)
	}
	for _, t := range tune {
		t(&cfg.Config)
	}
	n.sim.Trace.Logf(n.ID, "start %d", n.starts)
	go func() {
		defer close(p.opened)
		if p.server, p.err = api.StartNode(ctx, cfg); p.err != nil {
			n.sim.Trace.Logf(n.ID, "did not start: %v", p.err)
		}
	}()
}

// exitProcess ends the process as os.Exit does, and the calling goroutine.
func (n *Node) exitProcess(p *process, reason error) {
	if !p.dead.Load() && p.fatal.CompareAndSwap(nil, &reason) {
		n.sim.Trace.Logf(n.ID, "exited: %v", reason)
		go n.endProcess(p, n.leaveKilled, p.kill)
	}
	runtime.Goexit()
}

// latest is the latest process here, or nil.
func (n *Node) latest() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

// Kill ends the process as kill -9 does, and waits for its end. Writes that have begun land: the
// kernel has them. Entries whose write has not begun are lost.
func (n *Node) Kill() {
	if p := n.latest(); p != nil {
		n.endProcess(p, n.leaveKilled, p.kill)
	}
}

// Close ends the process cleanly.
func (n *Node) Close() {
	if p := n.latest(); p != nil {
		n.endProcess(p, func(*process) {}, func() error { return p.server.Close() })
	}
}

// LosePower ends the process as a power failure of its machine does: the disk keeps what it had
// acknowledged, and writes in flight have a random outcome. A process that is still starting is
// killed.
func (n *Node) LosePower() {
	if p := n.latest(); p != nil {
		n.endProcess(p, func(p *process) { n.leave(p, true) }, p.kill)
	}
}

// CutTail ends the process as LosePower does, and damages the last entries of the log, which the
// next process detects.
func (n *Node) CutTail(entries uint64) {
	if p := n.latest(); p != nil {
		n.endProcess(p, func(p *process) {
			n.leave(p, true)
			n.Disk.cutImage(entries)
		}, p.kill)
	}
}

func (n *Node) leaveKilled(p *process) { n.leave(p, false) }

// leave captures the disk of a process that ends at this moment.
func (n *Node) leave(p *process, powerFails bool) {
	if !isClosed(p.opened) || p.server == nil {
		return
	}
	p.dead.Store(true)
	p.disconnect()
	n.Disk.capture(p.server.Raft().Status().RaftIndex, powerFails)
}

// WriteOutcomes counts the outcomes of writes that were in flight when the power of machines
// failed.
func (s *Sim) WriteOutcomes() map[writeOutcome]int {
	all := map[writeOutcome]int{}
	for _, n := range s.Nodes() {
		n.Disk.mu.Lock()
		for f, times := range n.Disk.outcomes {
			all[f] += times
		}
		n.Disk.mu.Unlock()
	}
	return all
}

// UnbegunWrites is how many entries were lost although raft had counted them as stored, because
// their process ended before it began to write them.
func (s *Sim) UnbegunWrites() (entries int) {
	for _, n := range s.Nodes() {
		n.Disk.mu.Lock()
		entries += n.Disk.unbegun
		n.Disk.mu.Unlock()
	}
	return entries
}

// disconnect closes the sockets, as the kernel does. Nothing that the process still sends arrives.
func (p *process) disconnect() {
	p.stack.CloseAll()
	p.disconnected.Do(func() { close(p.stopping) })
}

func (p *process) kill() error {
	p.disconnect()
	return p.server.Kill()
}

// endProcess ends the process: it calls before, then end. If the process is ending already, it only
// waits.
func (n *Node) endProcess(p *process, before func(*process), end func() error) {
	if p.ending.Swap(true) {
		<-p.ended
		return
	}
	before(p)
	p.cancel()
	n.Disk.Resume()
	n.Clock.Thaw()
	<-p.opened
	if p.server != nil {
		if err := end(); err != nil {
			n.sim.Trace.Logf(n.ID, "ended with %v", err)
		}
	}
	p.disconnect()
	n.Disk.restoreImage()
	n.sim.Trace.Logf(n.ID, "ended")
	close(p.ended)
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// openProcess is the process if it has opened and is not ending, or nil.
func (n *Node) openProcess() *process {
	if p := n.latest(); p != nil && !p.ending.Load() && isClosed(p.opened) && p.server != nil {
		return p
	}
	return nil
}

// Running is the node that runs here, or nil.
func (n *Node) Running() *raftnode.Node {
	if p := n.openProcess(); p != nil {
		return p.server.Raft()
	}
	return nil
}

// processEnded reports whether a process ran here and has ended.
func (n *Node) processEnded() bool {
	p := n.latest()
	return p != nil && isClosed(p.ended)
}

// AwaitOpen waits until the node has opened, and returns the error if it did not.
func (n *Node) AwaitOpen(ctx context.Context) error {
	p := n.latest()
	if p == nil {
		return errors.New("it was never started")
	}
	select {
	case <-p.opened:
	case <-ctx.Done():
		if !isClosed(p.opened) { // ctx may have ended long ago
			return fmt.Errorf("%s is still starting: %w", n.ID, context.Cause(ctx))
		}
	}
	return p.err
}

// Fatal is why the latest process exited by itself; nil = it did not.
func (n *Node) Fatal() error {
	if p := n.latest(); p != nil && p.fatal.Load() != nil {
		return *p.fatal.Load()
	}
	return nil
}

// electionTimeMax is well above the time of an undisturbed election.
const electionTimeMax = 5 * time.Second

// Start starts all initial members, waits until each has opened, and returns the leader.
func (s *Sim) Start(tune ...Tune) *Node {
	s.Helper()
	s.startProcesses(tune...)
	s.awaitAllOpen()
	return s.Leader()
}

func (s *Sim) startProcesses(tune ...Tune) {
	for _, n := range s.InitialMembers() {
		n.StartProcess(tune...)
	}
}

func (s *Sim) awaitAllOpen() {
	s.Helper()
	for _, n := range s.InitialMembers() {
		n.requireOpen()
	}
}

// Start starts a process on the machine and waits until it has opened.
func (n *Node) Start(tune ...Tune) {
	n.sim.Helper()
	n.StartProcess(tune...)
	n.requireOpen()
}

func (n *Node) requireOpen() {
	n.sim.Helper()
	if err := n.AwaitOpen(n.sim.Within(electionTimeMax)); err != nil {
		n.sim.Fatalf("%s did not open: %v", n.ID, err)
	}
}

// Leader waits until exactly one node leads, and returns it.
func (s *Sim) Leader() *Node {
	s.Helper()
	return s.LeaderOtherThan(nil)
}

// LeaderOtherThan waits until exactly one other node than this one leads.
func (s *Sim) LeaderOtherThan(old *Node) *Node {
	s.Helper()
	var leaders []*Node
	s.Await(electionTimeMax, "one node leads", func() bool {
		leaders = slices.DeleteFunc(s.Leaders(), func(n *Node) bool { return n == old })
		return len(leaders) == 1
	})
	return leaders[0]
}

// Leaders are the nodes that consider themselves leader.
func (s *Sim) Leaders() []*Node {
	return slices.DeleteFunc(s.Nodes(), func(n *Node) bool { return !n.Status().Leading })
}

// Others are the members except this node.
func (s *Sim) Others(node *Node) []*Node {
	return slices.DeleteFunc(s.Members(), func(n *Node) bool { return n == node })
}

// AwaitApplied waits until a node has applied all that the leader had applied at the call.
func (s *Sim) AwaitApplied(leader, follower *Node, within time.Duration) {
	s.Helper()
	want := leader.Status().Applied
	s.Await(within, follower.ID+" has caught up", func() bool {
		up := follower.Running()
		return up != nil && !up.Status().Applied.Before(want)
	})
}

// Status is the node's status; the zero Status if it does not run.
func (n *Node) Status() raftnode.Status {
	if up := n.Running(); up != nil {
		return up.Status()
	}
	return raftnode.Status{}
}

// View reads the machine of the process here, if one runs.
func (n *Node) View(read func(*fsm.Machine)) {
	if up := n.Running(); up != nil {
		up.View(read)
	}
}
