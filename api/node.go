package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// Node is a node of a cluster: the replicated machine, and the server of its clients.
type Node struct {
	cfg    nodeSettings
	raft   *raftnode.Node
	server *Server
	http   *httpPort // nil: there is none
	client string    // the address under which clients reach it
	peer   string    // and other nodes

	started chan struct{} // closed when StartNode returns
	endOnce sync.Once
	done    chan struct{}         // closed when nothing of the node runs any more
	err     error                 // of the end; set before done is closed
	failed  atomic.Pointer[error] // what it ended itself for
}

// StartNode starts a node and serves clients. With an empty directory and a Cluster list it waits,
// until ctx ends, for the other nodes of the list; with data or alone it does not wait for anybody.
// Close or Kill ends it; ctx ends the start only.
func StartNode(ctx context.Context, config NodeConfig) (*Node, error) {
	cfg, err := config.settle()
	if err != nil {
		return nil, errors.Join(err, config.closeListeners())
	}
	if err := cfg.listen(ctx); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, client: cfg.reachable(cfg.Listener), peer: cfg.atPeer,
		started: make(chan struct{}), done: make(chan struct{}),
	}
	if n.peer == "" {
		n.peer = cfg.reachable(cfg.PeerListener)
	}
	defer close(n.started)
	n.server = newServer(cfg)
	n.http = cfg.serveHTTP(n.server.stopping) // before the node starts, which may have to wait
	opened := make(chan error, 1)
	go func() {
		// Open ends this goroutine, and returns nothing, if the node can't continue.
		err := errors.New("api: the node ended itself while it started")
		defer func() { opened <- err }()
		n.raft, err = raftnode.Open(ctx, n.raftConfig())
	}()
	if err := <-opened; err != nil {
		err = errors.Join(err, n.reason(), cfg.Listener.Close())
		return nil, n.end(func() error { return err })
	}
	n.server.start(n.raft)
	n.http.started(n.raft)
	n.server.serve(cfg.Listener, cfg.ClientTLS, cfg.ConnsMax)
	n.server.log.Info("serving clients", "id", cfg.ID, "address", n.client)
	return n, nil
}

// listen opens both ports, before anything is written: a port in use is the commonest mistake.
func (s *nodeSettings) listen(ctx context.Context) (err error) {
	if s.PeerListener == nil {
		if s.PeerListener, err = peer.ListenTCP(ctx, s.Peer); err != nil {
			err = fmt.Errorf("api: NodeConfig.Peer: %w; nothing was started", err)
			s.PeerListener = nil
			return errors.Join(err, s.closeListeners())
		}
	}
	if s.Listener == nil {
		config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: tcpIdle, Interval: tcpIdle, Count: tcpProbes,
		}}
		if s.Listener, err = config.Listen(ctx, "tcp", s.Listen); err != nil {
			err = fmt.Errorf("api: NodeConfig.Listen: can't listen for clients on %s: %w; nothing was started", s.Listen, err)
			s.Listener = nil
			return errors.Join(err, s.closeListeners())
		}
	}
	if err = s.listenHTTP(ctx); err != nil {
		return errors.Join(err, s.closeListeners())
	}
	if s.Dir == "" && s.Cluster == "" && s.JoinCluster == "" {
		s.atPeer = s.reachable(s.PeerListener)
		if s.list, err = peer.ParseList(s.ID + "=" + s.atPeer); err != nil {
			err = fmt.Errorf("api: NodeConfig.PeerListener: its address is none that a cluster can have: %w; nothing was started", err)
			return errors.Join(err, s.closeListeners(), s.closeHTTP())
		}
	}
	return nil
}

// closeListeners keeps the promise of NodeConfig that the node closes them.
func (c *NodeConfig) closeListeners() (err error) {
	for _, l := range []net.Listener{c.Listener, c.PeerListener} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

// A client's machine that vanishes is noticed within tcpIdle × (1 + tcpProbes).
const (
	tcpIdle   = time.Second
	tcpProbes = 3
)

func (n *Node) raftConfig() raftnode.Config {
	s, cfg := n.server, n.cfg
	c := raftnode.Config{
		ID: cfg.ID, Dir: cfg.Dir, Log: store.LogKind(cfg.LogStore), Election: cfg.ElectionTimeout, Cluster: cfg.list, Join: cfg.Join, JoinCluster: cfg.joins,
		Listener: cfg.PeerListener, Advertise: n.peer, Dial: cfg.Dial, TLS: cfg.PeerTLS,
		Client: n.client, HTTP: cfg.HTTP, Version: cfg.Version, TokenBase: cfg.TokenBase,
		Applied: s.applied, Restored: s.restored, Epoch: s.setLeading,
		Measure: cfg.Observer.Measure, DiskWrite: cfg.Observer.DiskWrite,
		Fatal: n.fatal, Logger: cfg.Logger,
	}
	if cfg.Dir == "" {
		c.Memory = &store.Memory{}
	}
	if cfg.Tune != nil {
		cfg.Tune(&c)
	}
	return c
}

// fatal ends the process, or the node, and in any case the goroutine that can't continue.
func (n *Node) fatal(err error) {
	first := n.failed.CompareAndSwap(nil, &err)
	if n.cfg.Fatal != nil {
		n.cfg.Fatal(err)
		runtime.Goexit()
	}
	if first {
		go func() { // on its own: it waits for the goroutine that asked
			<-n.started
			_ = n.Kill()
		}()
	}
	runtime.Goexit()
}

// reason is what the node ended itself for, or nil.
func (n *Node) reason() error {
	if err := n.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Client is the address under which clients reach the node.
func (n *Node) Client() string { return n.client }

// Peer is the address under which other nodes reach it.
func (n *Node) Peer() string { return n.peer }

// HTTP is the address under which HTTP is served; "" = there is none.
func (n *Node) HTTP() string { return n.cfg.HTTP }

// Raft is the replicated machine: for its status, and to read it.
func (n *Node) Raft() *raftnode.Node { return n.raft }

// Server answers the calls of the wire; a gateway calls it directly.
func (n *Node) Server() *Server { return n.server }

// Done is closed when nothing of the node runs any more.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err says, once Done is closed, why the node ended itself, or what went wrong at its end.
func (n *Node) Err() error {
	select {
	case <-n.done:
		return errors.Join(n.reason(), n.err)
	default:
		return nil
	}
}

// Close ends the node cleanly. A leader hands its epoch over first, which takes up to an
// election, so that its clients find the next one at once.
func (n *Node) Close() error {
	return n.end(func() error {
		err := n.raft.Close()
		n.server.stop()
		return err
	})
}

// Kill ends the node as a crash would: connections break and nobody is told.
func (n *Node) Kill() error {
	return n.end(func() error {
		n.server.kill()
		return n.raft.Kill()
	})
}

func (n *Node) end(how func() error) error {
	n.endOnce.Do(func() {
		n.err = how()
		n.http.close()
		close(n.done)
	})
	<-n.done
	return n.err
}
