package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"zamok/api/conns"
	"zamok/api/gate"
	"zamok/api/gate/identity"
	"zamok/api/gate/limits"
	"zamok/api/gate/rules"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// Node is a node of a cluster: the replicated state machine, and the server of its clients.
type Node struct {
	cfg    *NodeConfig
	raft   *raftnode.Node
	server *server
	http   *http.Server   // nil: there is none
	served sync.WaitGroup // http accepts connections

	started chan struct{} // closed when StartNode returns
	endOnce sync.Once
	done    chan struct{}   // closed when nothing of the node runs any more
	err     error           // of the end; set before done is closed
	failed  context.Context // cancelled by fail: the cause is why it ended itself
	fail    context.CancelCauseFunc
}

// StartNode starts a node and serves clients. With an empty directory and a Peers.List it waits,
// until ctx ends, for the other nodes of the list; with data, or alone, it does not wait. Close or
// Kill ends the node; ctx ends the start only.
func StartNode(ctx context.Context, config NodeConfig) (*Node, error) {
	cfg := &config
	err := cfg.complete()
	if err == nil {
		err = cfg.listen(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, cfg.closeListeners())
	}
	n := &Node{
		cfg: cfg, server: newServer(cfg), started: make(chan struct{}), done: make(chan struct{}),
	}
	n.failed, n.fail = context.WithCancelCause(context.Background())
	defer close(n.started)
	n.serveHTTP() // before the node starts, which may have to wait
	s, c := n.server, cfg.Config
	c.Timing, c.Store.Observe, c.Fatal, c.Applied, c.Restored = s.metrics.Entry,
		s.metrics.DiskWrite, n.fatal, s.applied, s.restored
	c.GaveWay = s.metrics.GaveWay
	c.Epoch = func(leads bool) {
		s.hub.SetLeading(leads)
		s.metrics.SetLeading(leads)
		s.grants.SetLeading(leads)
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

// Close ends the node cleanly. A leader transfers leadership first, which takes up to an election
// timeout, so that its clients find the next leader at once.
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
		if n.http != nil {
			_ = n.http.Close() // an error of a listener that is closed anyway
		}
		n.server.kill()
		return n.raft.Kill()
	})
}

func (n *Node) end(how func() error) error {
	n.endOnce.Do(func() {
		n.err = how()
		if n.http != nil { // requests in flight have until httpStopWait
			ctx, cancel := context.WithTimeout(context.Background(), httpStopWait)
			defer cancel()
			if n.http.Shutdown(ctx) != nil {
				_ = n.http.Close()
			}
			n.served.Wait()
		}
		n.server.grants.stop()
		n.server.limits.Stop()
		n.server.audit.Stop()
		close(n.done)
	})
	<-n.done
	return n.err
}

// NodeConfig configures a node. ID alone is enough for a cluster of one node in memory; the zero
// value of every other field is its default. Other than raftnode.Open, StartNode fills in what is
// missing:
//
//   - Store: without a directory the data lives in memory and ends with the node.
//   - Peers.Listener and Peers.Advertise come from ListenPeers and Advertise.
//   - TokenBase: seconds since 1970 × 2²⁰, with their fraction (raftnode.TokenClock), so that
//     storage which remembers an older cluster's tokens does not refuse the new one's.
//   - Client and HTTP are what is listened on.
//   - Fatal: the node ends as by Kill, and Done is closed.
//   - Applied and Restored are called before the node looks at the same; Epoch and Timing are the
//     node's own.
type NodeConfig struct {
	raftnode.Config

	// Listen is where clients are served. Empty: any port of 127.0.0.1.
	Listen string
	// ListenPeers is where other nodes are served. Empty: the address that Peers.List has for this
	// node; without one, any port of 127.0.0.1.
	ListenPeers string
	// ListenHTTP is where locks over HTTP are served to the same callers as on Listen, and
	// /metrics, /healthz and /readyz to everyone. Empty: nowhere.
	ListenHTTP string
	// HTTPHosts are further names under which HTTP is reached, as through a proxy: a request for
	// another name than these, Advertise, the host name, localhost and IP addresses is refused.
	HTTPHosts []string
	// Profile adds /debug/pprof there, for operators. Profiles show the inside of the process, and
	// cost it time.
	Profile bool
	// Advertise is the host name or IP under which clients and nodes reach this one. Empty: the
	// host that Peers.List has for this node; without one, the host that it listens on, and where
	// that means every address, the host name.
	Advertise string
	// Listener is used instead of Listen. The node closes it, and Peers.Listener. Nil: TCP.
	Listener net.Listener
	// HTTPListener is used instead of ListenHTTP. The node closes it. Nil: TCP, if ListenHTTP is
	// set.
	HTTPListener net.Listener

	// ClientTLS is the TLS configuration for clients, over gRPC and HTTP. It is called for each new
	// connection, so that certificates can be renewed; open connections stay. If it requires
	// certificates, each call needs one, or a token that Identity verifies. Nil: no TLS.
	ClientTLS func() *tls.Config
	// Identity authenticates clients. Zero: by the common name of their certificates. Required is
	// set if ClientTLS requires certificates.
	Identity gate.Identifier
	// Rules returns the access rules in force; it is called for each request. Nil, or a nil result:
	// everything is allowed.
	Rules func() *rules.Set
	// Files returns for metrics which files (rules, tokens, keys, certificates) are valid as they
	// are now.
	Files func() map[string]bool
	// Audit gets a line of JSON for each operator call and each denial; beyond the limits of these,
	// one for many denials of a caller. Lines that can't be written are counted and logged, and the
	// call proceeds. Nil: the Logger gets them.
	Audit io.Writer
	// AuditGrants adds a line for each grant and for the end of each hold, from the node that led.
	AuditGrants bool
	// ConnsMax is how many clients may be connected at once, by gRPC and by HTTP. One more takes
	// the place of a connection without an admitted call (package conns). Zero: 16384.
	ConnsMax int
	// Limits are the configured limits; limits.Parse reads them. Others have their defaults.
	Limits limits.Set
	// UnreadBytesMax bounds the memory of unread answers and incomplete requests of all clients.
	// Beyond it, the connection with the most bytes for the longest time is closed. Connections of
	// nodes that relay calls have four times as much. Zero: 64 MiB.
	UnreadBytesMax int64

	hostname string // of the machine
	tokens   bool   // Identity verifies tokens
}

// wrong is the error of a field.
func wrong(field, reason string, args ...any) error {
	return &raftnode.ConfigError{Field: field, Reason: fmt.Errorf(reason, args...)}
}

// complete validates the fields and fills in the defaults; the others' defaults are raftnode's.
func (s *NodeConfig) complete() error {
	atPeer := "" // the address that the list has for this node
	for _, n := range s.Peers.List.Nodes() {
		if n.ID == s.ID {
			atPeer = n.Address
		}
	}
	switch err := peer.CheckID(s.ID); {
	case err != nil:
		return wrong("ID", "%w", err)
	case s.isAlone() && s.Store.Dir != "" && isEmptyDir(s.Store.Dir):
		return wrong("Store.Dir",
			"%s holds nothing, and neither Peers.List nor Join is set: name the nodes of a new "+
				"cluster, or those of the cluster that this node joins, also if its disk was lost",
			s.Store.Dir)
	case s.ConnsMax < 0:
		return wrong("ConnsMax", "%d is below zero; 0 means %d", s.ConnsMax, ConnsDefault)
	case s.UnreadBytesMax < 0:
		return wrong("UnreadBytesMax", "%d is below zero; 0 means %d", s.UnreadBytesMax,
			UnreadBytesDefault)
	}
	atHost, _, _ := net.SplitHostPort(atPeer) // ParseList split it already
	s.Advertise, s.Peers.Advertise = cmp.Or(s.Advertise, atHost), atPeer
	s.Listen = cmp.Or(s.Listen, "127.0.0.1:0")
	s.ListenPeers = cmp.Or(s.ListenPeers, atPeer, "127.0.0.1:0")
	s.ConnsMax = cmp.Or(s.ConnsMax, ConnsDefault)
	s.UnreadBytesMax = cmp.Or(s.UnreadBytesMax, UnreadBytesDefault)
	s.hostname, _ = os.Hostname() // without one, HTTP is reached by Advertise
	if s.Rules == nil {
		s.Rules = func() *rules.Set { return nil }
	}
	if s.Files == nil {
		s.Files = func() map[string]bool { return nil }
	}
	if s.ClientTLS != nil && s.ClientTLS().ClientAuth == tls.RequireAndVerifyClientCert {
		s.Identity.Required = true
	}
	if s.tokens = s.Identity.Verifier != nil; !s.tokens {
		s.Identity.Verifier = func() identity.Verifier { return identity.Verifier{} }
	}
	s.Identity.Certificate = cmp.Or(s.Identity.Certificate, identity.CommonName)
	s.Logger = cmp.Or(s.Logger, slog.New(slog.DiscardHandler))
	if s.Audit == nil {
		s.Audit = auditToLog{s.Logger}
	}
	if s.TokenBase == 0 {
		s.TokenBase, _ = raftnode.TokenClock(time.Now())
	}
	if s.Store.Dir == "" && s.Store.Memory == nil {
		s.Store.Memory = &store.Memory{}
	}
	return nil
}

// isAlone reports whether no other node of the cluster is named.
func (s *NodeConfig) isAlone() bool {
	return len(s.Peers.List.Nodes()) == 0 && s.Join == (peer.List{})
}

// isEmptyDir reports whether nothing was ever kept there.
func isEmptyDir(dir string) bool {
	entries, err := os.ReadDir(dir)
	return os.IsNotExist(err) || err == nil && len(entries) == 0
}

// listenTCP listens for clients.
func listenTCP(ctx context.Context, address string, probed time.Duration) (net.Listener, error) {
	config := net.ListenConfig{Control: peer.UserTimeout(conns.VanishedAfter),
		KeepAliveConfig: conns.Probes(probed)}
	config.SetMultipathTCP(false) // TCP_USER_TIMEOUT can not be set on such a socket
	return config.Listen(ctx, "tcp", address)
}

// listen opens the ports before anything is written: a port in use is the commonest mistake.
func (s *NodeConfig) listen(ctx context.Context) (err error) {
	if s.Peers.Listener == nil {
		if s.Peers.Listener, err = peer.ListenTCP(ctx, s.ListenPeers); err != nil {
			return wrong("ListenPeers", "%w", err)
		}
	}
	if s.Listener == nil {
		if s.Listener, err = listenTCP(ctx, s.Listen, conns.IdleProbes); err != nil {
			return wrong("Listen", "can't listen for clients on %s: %w", s.Listen, err)
		}
	}
	if s.HTTPListener == nil && s.ListenHTTP != "" {
		if s.HTTPListener, err = listenTCP(ctx, s.ListenHTTP, conns.WaitingProbes); err != nil {
			return wrong("ListenHTTP", "can't listen for HTTP on %s: %w", s.ListenHTTP, err)
		}
	}
	if s.HTTPListener != nil {
		s.HTTP = s.HTTPListener.Addr().String()
		if tcp, ok := s.HTTPListener.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
			s.HTTP = s.reachable(s.HTTPListener)
		}
	}
	s.Client = s.reachable(s.Listener)
	s.Peers.Advertise = cmp.Or(s.Peers.Advertise, s.reachable(s.Peers.Listener))
	if s.Store.Dir == "" && s.isAlone() {
		if s.Peers.List, err = peer.ParseList(s.ID + "=" + s.Peers.Advertise); err != nil {
			return wrong("Peers.Listener", "its address is none that a cluster can have: %w", err)
		}
	}
	return nil
}

// clientTLS is the TLS configuration for clients of a protocol; each connection uses the latest
// certificates. With someWithout, connections without a certificate are accepted, for health checks
// and clients with tokens; other calls on them are refused.
func (s *NodeConfig) clientTLS(protocol string, someWithout bool) *tls.Config {
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := s.ClientTLS().Clone()
		c.NextProtos = []string{protocol}
		if someWithout && c.ClientAuth == tls.RequireAndVerifyClientCert {
			c.ClientAuth = tls.VerifyClientCertIfGiven
		}
		return c, nil
	}}
}

// certificateExpiry returns when this node's certificates expire, by the port that they are for.
func (s *NodeConfig) certificateExpiry() map[string]time.Time {
	expiry := make(map[string]time.Time)
	for shownTo, get := range map[string]func() *tls.Config{"clients": s.ClientTLS,
		"peers": s.Peers.TLS} {
		if get == nil {
			continue
		}
		for _, certificate := range get().Certificates {
			if certificate.Leaf != nil { // package tls sets it
				expiry[shownTo] = certificate.Leaf.NotAfter
			}
		}
	}
	return expiry
}

// closeListeners keeps the promise of NodeConfig that the node closes them.
func (s *NodeConfig) closeListeners() (err error) {
	for _, l := range []net.Listener{s.Listener, s.Peers.Listener, s.HTTPListener} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

// reachable is the address under which others reach a listener of this node.
func (s *NodeConfig) reachable(l net.Listener) string {
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return l.Addr().String() // of a listener in memory
	}
	if s.Advertise != "" {
		return net.JoinHostPort(s.Advertise, port)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			return net.JoinHostPort(name, port)
		}
	}
	return l.Addr().String()
}
