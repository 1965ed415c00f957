package api

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync"

	"zamok/raftnode"
)

// Node is a node of a cluster: the replicated state machine, and the server of its clients.
type Node struct {
	cfg    *NodeConfig
	raft   *raftnode.Node
	server *Server
	http   *http.Server // nil: there is none

	httpServed chan struct{} // closed when http accepts nothing any more

	started chan struct{} // closed when StartNode returns
	endOnce sync.Once
	done    chan struct{}   // closed when nothing of the node runs any more
	err     error           // of the end; set before done is closed
	failed  context.Context // cancelled by fail: the cause is why it ended itself
	fail    context.CancelCauseFunc
}

// StartNode starts a node and serves clients. With an empty directory and a Cluster list it waits, until ctx
// ends, for the other nodes of the list; with data, or alone, it does not wait. Close or Kill ends the node;
// ctx ends the start only.
func StartNode(ctx context.Context, config NodeConfig) (*Node, error) {
	cfg := &config
	if err := cfg.settle(); err != nil {
		return nil, errors.Join(err, cfg.closeListeners())
	}
	if err := cfg.listen(ctx); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, server: newServer(cfg), started: make(chan struct{}), done: make(chan struct{}),
	}
	n.failed, n.fail = context.WithCancelCause(context.Background())
	defer close(n.started)
	n.serveHTTP() // before the node starts, which may have to wait
	s, c := n.server, cfg.Config
	c.Timing, c.Store.Observe, c.Fatal, c.Applied, c.Restored = s.metrics.Entry, s.metrics.DiskWrite, n.fatal, s.applied, s.restored
	c.Epoch = func(leads bool) {
		s.hub.SetLeading(leads)
		s.metrics.SetLeading(leads)
	}
	opened := make(chan error, 1)
	go func() {
		// Open ends this goroutine, and returns nothing, if the node can't continue.
		err := errors.New("api: the node ended itself while it started")
		defer func() { opened <- err }()
		n.raft, err = raftnode.Open(ctx, c)
	}()
	if err := <-opened; err != nil {
		err = errors.Join(err, context.Cause(n.failed), cfg.Listener.Close())
		return nil, n.end(func() error { return err })
	}
	s.serve(n.raft)
	return n, nil
}

// fatal ends the process, or the node, and in any case the goroutine that can't continue.
func (n *Node) fatal(err error) {
	n.fail(err)
	if n.cfg.Fatal != nil {
		n.cfg.Fatal(err)
		runtime.Goexit()
	}
	go func() { // it waits for the goroutine that called
		<-n.started
		_ = n.Kill()
	}()
	runtime.Goexit()
}

// Client is the address under which clients reach the node.
func (n *Node) Client() string { return n.cfg.Client }

// Peer is the address under which other nodes reach it.
func (n *Node) Peer() string { return n.cfg.Peers.Advertise }

// HTTP is the address under which HTTP is served; "" = there is none.
func (n *Node) HTTP() string { return n.cfg.HTTP }

// Raft is the replicated state machine: for its status, and to read it.
func (n *Node) Raft() *raftnode.Node { return n.raft }

// Done is closed when nothing of the node runs any more.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err is, once Done is closed, why the node ended itself, or what failed at its end.
func (n *Node) Err() error {
	if !isClosed(n.done) {
		return nil
	}
	return errors.Join(context.Cause(n.failed), n.err)
}

// Close ends the node cleanly. A leader transfers leadership first, which takes up to an election timeout, so
// that its clients find the next leader at once.
func (n *Node) Close() error {
	return n.end(func() error {
		err := n.raft.Close()
		n.server.stop()
		return err
	})
}

// Kill ends the node as a crash would: connections break without a message.
func (n *Node) Kill() error {
	return n.end(func() error {
		n.server.kill()
		return n.raft.Kill()
	})
}

func (n *Node) end(how func() error) error {
	n.endOnce.Do(func() {
		n.err = how()
		n.closeHTTP()
		close(n.done)
	})
	<-n.done
	return n.err
}
