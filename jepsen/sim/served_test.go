package sim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api"
	"zamok/client"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// What Go programs see: package client against whole nodes, over the simulated network.

// servedCluster is a cluster that serves clients.
type servedCluster struct {
	*Sim
	servers  []*server
	measured bool // the timeouts follow what is measured
}

// server is a machine on which a whole node runs, or not. Its data survives the process.
type server struct {
	id      string
	cluster *servedCluster
	memory  *store.Memory
	stack   *Stack
	node    *api.Node // nil while it is down
}

// runServed runs a story with a cluster of so many nodes, all of them up and one leading.
func runServed(t *testing.T, size int, story func(*servedCluster)) {
	runServedWith(t, size, false, story)
}

func runServedWith(t *testing.T, size int, measured bool, story func(*servedCluster)) {
	t.Helper()
	Run(t, Config{}, func(s *Sim) {
		w := &servedCluster{Sim: s, measured: measured}
		for i := range size {
			w.servers = append(w.servers, &server{id: fmt.Sprintf("n%d", i+1), cluster: w, memory: &store.Memory{}})
		}
		defer func() {
			for _, n := range w.servers {
				w.cleanup(n.kill) // last of all: who closes cleanly needs them
			}
		}()
		w.start(w.servers...)
		w.leader()
		story(w)
	})
}

// start starts processes and waits until they serve.
func (w *servedCluster) start(servers ...*server) {
	var all sync.WaitGroup
	for _, n := range servers {
		all.Go(n.start)
	}
	all.Wait()
}

func (n *server) start() {
	w := n.cluster
	n.stack = w.Network.NewStack(n.id)
	clients, err := n.stack.Listen("5750")
	require.NoError(w, err)
	peers, err := n.stack.Listen("5751")
	require.NoError(w, err)
	var members []string
	for _, other := range w.servers {
		members = append(members, other.id+"="+other.id+":5751")
	}
	list, err := peer.ParseList(strings.Join(members, ","))
	require.NoError(w, err)
	cfg := api.NodeConfig{Listener: clients, Config: raftnode.Config{
		ID: n.id, Store: store.Config{Memory: n.memory}, Peers: peer.Config{List: list, Listener: peers, Dial: n.stack.Dial},
		Source: clock.Runtime(), Logger: w.Trace.logger(n.id), ElectionTimeout: electionTimeout,
		Fatal: func(err error) { w.Errorf("%s: %v", n.id, err) },
	}}
	if w.measured {
		cfg.ElectionTimeout = 0
	}
	n.node, err = api.StartNode(w.Within(electionTimeMax), cfg)
	require.NoError(w, err)
}

// kill ends the process as kill -9 does.
func (n *server) kill() {
	if n.node == nil {
		return
	}
	n.stack.CloseAll()
	_ = n.node.Kill()
	n.node = nil
}

// leader waits until one node leads.
func (w *servedCluster) leader() (leads *server) {
	w.Helper()
	w.Await(electionTimeMax, "a node leads", func() bool {
		leads = nil
		for _, n := range w.servers {
			if n.node != nil && n.node.Raft().Status().Leading {
				if leads != nil {
					return false
				}
				leads = n
			}
		}
		return leads != nil
	})
	return leads
}

// clientMachine is a machine with a client on it.
type clientMachine struct {
	*client.Client
	host  string
	stack *Stack
	clock *jumpingClock
}

// program makes a client on a host of its own, which knows all nodes. It is closed at the end of the run, or
// before by whoever wants that.
func (w *servedCluster) program(host string, change func(*client.Config)) *clientMachine {
	p := &clientMachine{host: host, stack: w.Network.NewStack(host), clock: &jumpingClock{real: clock.Runtime()}}
	cfg := client.Config{
		Dialer: p.stack.Dial, Clock: p.clock, Label: host,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, n := range w.servers {
		cfg.Endpoints = append(cfg.Endpoints, n.id)
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	p.Client, err = client.New(cfg)
	require.NoError(w, err)
	w.cleanup(func() { _ = p.Close() })
	return p
}

// cut takes a host off the network when nothing is under way in any program, and heal puts it back.
func (w *servedCluster) cut(host string) {
	synctest.Wait()
	w.Network.Isolate(host)
}

func (w *servedCluster) heal() { w.Network.HealAll() }

// jumpingClock is a clock that can be put forward, as after sleep.
type jumpingClock struct {
	real   clock.Source
	mu     sync.Mutex
	offset clock.Span // guarded by mu
}

func (l *jumpingClock) Now() clock.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.real.Now().Add(l.offset)
}

func (l *jumpingClock) jump(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offset += clock.FromDuration(d)
}

// lock takes a lock within a minute of virtual time.
func (w *servedCluster) lock(p *clientMachine, name string, opts ...client.Option) *client.Lock {
	w.Helper()
	l, err := p.Lock(w.Within(time.Minute), name, opts...)
	require.NoError(w, err)
	return l
}

// pendingLock is a call of Lock in a goroutine of its own.
type pendingLock struct {
	lock *client.Lock
	err  error
	at   time.Time
	done chan struct{}
}

// wait begins to wait for a lock, and returns when the cluster knows of it.
func (w *servedCluster) wait(ctx context.Context, p *clientMachine, name string, opts ...client.Option) *pendingLock {
	w.Helper()
	before := w.waiters(name)
	a := &pendingLock{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.lock, a.err = p.Lock(ctx, name, opts...)
		a.at = time.Now()
	}()
	w.Await(10*time.Second, "somebody waits for "+name, func() bool { return w.waiters(name) == before+1 })
	return a
}

// waiters is how many wait for a lock, as the leader knows it.
func (w *servedCluster) waiters(name string) (n int) {
	for _, s := range w.servers {
		if s.node == nil {
			continue
		}
		if status := s.node.Raft().Status(); status.Leading {
			s.node.Raft().View(func(m *fsm.Machine) {
				if view, ok := m.Lock(name, 1); ok {
					n = view.Waiters
				}
			})
		}
	}
	return n
}

// awaitResult waits for the end of a wait.
func (w *servedCluster) awaitResult(a *pendingLock, within time.Duration) *client.Lock {
	w.Helper()
	select {
	case <-a.done:
	case <-time.After(within):
		w.Fatalf("at %v, a wait is not over after %v", w.Elapsed(), within)
	}
	require.NoError(w, a.err)
	return a.lock
}

// awaitLost waits for a loss, and tells when it came.
func (w *servedCluster) awaitLost(l *client.Lock, within time.Duration) time.Time {
	w.Helper()
	select {
	case <-l.Lost():
	case <-time.After(within):
		w.Fatalf("at %v, not lost after %v", w.Elapsed(), within)
	}
	require.ErrorIs(w, l.Err(), client.ErrLost)
	return time.Now()
}
