package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"zamok/api/access"
	"zamok/api/metrics"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// NodeConfig configures a node. ID alone is enough for a cluster of one node in memory; the zero value of
// every other field is its default.
type NodeConfig struct {
	// ID is the node's name in the cluster: 1 to 64 lower-case letters, digits, '.', '_' and '-'. A node
	// that lost its data keeps its name, and joins. Required.
	ID string
	// Dir is the data directory; it is made if it is missing. Empty: the data lives in memory and ends
	// with the node.
	Dir string
	// LogStore is how Dir keeps the log of entries, "bolt" or "wal"; it is settled when Dir is made.
	// Empty: as Dir was begun, a new one with "bolt".
	LogStore string
	// ElectionTimeout is how long nodes wait for a leader; of different ones the longest is in force. Zero:
	// it adapts to what is measured.
	ElectionTimeout time.Duration

	// Cluster names every node that a new cluster begins with, this one too, as the others reach them:
	// "n1=host:5751,n2=host:5751,n3=host:5751", the same on every node. It may stay when the cluster has
	// long begun. Empty: the node has data already, or joins; in memory, it is a cluster of its own.
	Cluster string
	// Join: if a node of Cluster has data and this one has none, it waits until Join is called there, instead
	// of refusing to start.
	Join bool
	// JoinCluster is the id of a running cluster (MembersResponse.cluster) that is to take this node
	// in: it starts, and waits until Join is called there. Empty: it begins a cluster, or has data.
	JoinCluster string

	// Listen is where clients are served. Empty: any port of 127.0.0.1.
	Listen string
	// Peer is where other nodes are served. Empty: the address that Cluster has for this node; without
	// one, any port of 127.0.0.1.
	Peer string
	// Advertise is the host name or IP under which clients and nodes reach this one. Empty: the host
	// that Cluster has for this node; without one, the host that it listens on, and where that means
	// every address, the host name.
	Advertise string
	// Listener and PeerListener are used instead of Listen and Peer. The node closes them. Nil: TCP.
	Listener, PeerListener net.Listener
	// Dial connects to other nodes: to their peer ports, and to the leader's client port where calls
	// are relayed. Nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// HTTP is where /metrics, /healthz and /readyz are served, without authentication. Empty: nowhere.
	HTTP string
	// Profile adds /debug/pprof there. Profiles show the inside of the process, and cost it time.
	Profile bool

	// ClientTLS is the server side for clients; it may demand certificates of them. A node that relays
	// calls is a client of the leader: its RootCAs are those of the other nodes' certificates, and its
	// Certificates are shown to them. Nil: plain.
	ClientTLS *tls.Config
	// PeerTLS makes both ends of a connection between nodes show a certificate. Nil: plain.
	PeerTLS *tls.Config
	// Authorize decides which requests are allowed. Nil: all.
	Authorize access.Authorize

	// ConnsMax is how many clients may be connected at once; one more is disconnected. Zero: 16384.
	ConnsMax int
	// TokenBase is the token that a new cluster's are above. Zero: seconds since 1970 × 2²⁰, with their
	// fraction (raftnode.TokenClock), so that storage which remembers an older cluster's tokens does not
	// refuse the new one's.
	TokenBase uint64

	// Version is announced to the other nodes, for people. Empty: not announced.
	Version string
	// Logger receives what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
	// Fatal is called when the node can't continue: its disk failed, its state differs from the
	// majority's, it was removed, or it is stuck. It ends the process, since a hanging disk may keep
	// anything less from happening, and must not return. Nil: the node ends as by Kill, and Done is closed.
	Fatal func(error)
	// Tune changes the node's settings last of all; for tests and simulations. Nil: nothing.
	Tune func(*raftnode.Config)
}

// nodeSettings is a NodeConfig that was validated, with its defaults.
type nodeSettings struct {
	NodeConfig
	list   peer.List
	joins  store.ID
	host   string // to advertise; "" = the listeners'
	atPeer string // the address of this node in the list

	httpListener net.Listener // nil: there is no HTTP
	metrics      *metrics.Metrics
}

// wrong is the error of a field.
func wrong(field, reason string, args ...any) error {
	return fmt.Errorf("api: NodeConfig.%s: %w; nothing was started", field, fmt.Errorf(reason, args...))
}

// settle validates the fields and fills in the defaults.
func (c NodeConfig) settle() (*nodeSettings, error) {
	s := &nodeSettings{NodeConfig: c, metrics: metrics.New()}
	if err := peer.CheckID(c.ID); err != nil {
		return s, wrong("ID", "%w", err)
	}
	if err := s.settleCluster(); err != nil {
		return s, err
	}
	if c.ConnsMax < 0 {
		return s, wrong("ConnsMax", "%d is below zero; 0 means %d", c.ConnsMax, connsDefault)
	}
	atHost, _, _ := net.SplitHostPort(s.atPeer) // ParseList split it already
	s.host = cmp.Or(s.Advertise, atHost)
	s.Listen = cmp.Or(s.Listen, "127.0.0.1:0")
	s.Peer = cmp.Or(s.Peer, s.atPeer, "127.0.0.1:0")
	s.ConnsMax = cmp.Or(s.ConnsMax, connsDefault)
	s.Logger = cmp.Or(s.Logger, slog.New(slog.DiscardHandler))
	if s.Dial == nil {
		s.Dial = peer.DialTCP
	}
	if s.TokenBase == 0 {
		s.TokenBase, _ = raftnode.TokenClock(time.Now())
	}
	return s, nil
}

// settleCluster decides whether the node begins a cluster, joins one, or has data.
func (s *nodeSettings) settleCluster() (err error) {
	switch {
	case s.Cluster != "" && s.JoinCluster != "":
		return wrong("Cluster", "it is set beside JoinCluster: a node begins a cluster or joins one; leave one empty")
	case s.Cluster != "":
		if s.list, err = peer.ParseList(s.Cluster); err != nil {
			return wrong("Cluster", "%w", err)
		}
		for _, n := range s.list.Nodes() {
			if n.ID == s.ID {
				s.atPeer = n.Address
			}
		}
		if s.atPeer == "" {
			return wrong("Cluster", "%v does not name this node, %s: add it", s.list, s.ID)
		}
	case s.JoinCluster != "":
		if err := s.joins.UnmarshalText([]byte(s.JoinCluster)); err != nil {
			return wrong("JoinCluster", "%w: give the id of the running cluster (zamok members)", err)
		}
	case s.Dir != "" && isEmptyDir(s.Dir):
		return wrong("Dir", "%s holds nothing, and neither Cluster nor JoinCluster is set: name the nodes of a new "+
			"cluster, or the cluster that this node joins, also if its disk was lost", s.Dir)
	}
	return nil
}

// isEmptyDir reports whether nothing was ever kept there.
func isEmptyDir(dir string) bool {
	entries, err := os.ReadDir(dir)
	return os.IsNotExist(err) || err == nil && len(entries) == 0
}

// A client's computer that vanishes is noticed within tcpIdle × (1 + tcpProbes).
const (
	tcpIdle   = time.Second
	tcpProbes = 3
)

// listen opens the ports before anything is written: a port in use is the commonest mistake. After an error
// none is open.
func (s *nodeSettings) listen(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeListeners())
		}
	}()
	if s.PeerListener == nil {
		if s.PeerListener, err = peer.ListenTCP(ctx, s.Peer); err != nil {
			return wrong("Peer", "%w", err)
		}
	}
	if s.Listener == nil {
		config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: tcpIdle, Interval: tcpIdle, Count: tcpProbes,
		}}
		if s.Listener, err = config.Listen(ctx, "tcp", s.Listen); err != nil {
			return wrong("Listen", "can't listen for clients on %s: %w", s.Listen, err)
		}
	}
	if s.HTTP != "" {
		if s.httpListener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", s.HTTP); err != nil {
			return wrong("HTTP", "can't listen for HTTP on %s: %w", s.HTTP, err)
		}
		s.HTTP = s.httpListener.Addr().String()
		if tcp, ok := s.httpListener.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
			s.HTTP = s.reachable(s.httpListener)
		}
	}
	s.atPeer = cmp.Or(s.atPeer, s.reachable(s.PeerListener))
	if s.Dir == "" && s.Cluster == "" && s.JoinCluster == "" {
		if s.list, err = peer.ParseList(s.ID + "=" + s.atPeer); err != nil {
			return wrong("PeerListener", "its address is none that a cluster can have: %w", err)
		}
	}
	return nil
}

// closeListeners keeps the promise of NodeConfig that the node closes them.
func (s *nodeSettings) closeListeners() (err error) {
	for _, l := range []net.Listener{s.Listener, s.PeerListener, s.httpListener} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

// reachable is the address under which others reach a listener of this node.
func (s *nodeSettings) reachable(l net.Listener) string {
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return l.Addr().String() // of a listener in memory
	}
	if s.host != "" {
		return net.JoinHostPort(s.host, port)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			return net.JoinHostPort(name, port)
		}
	}
	return l.Addr().String()
}
