package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// NodeConfig says who a node is and where it keeps what. ID alone is enough for a cluster of one node
// in memory; the rest has a meaning when zero.
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
	// ElectionTimeout is how long nodes wait for a leader; of nodes with different ones the longest holds. Zero: it
	// follows what is measured.
	ElectionTimeout time.Duration

	// Cluster names every node that a new cluster begins with, this one too, as the others reach them:
	// "n1=host:5751,n2=host:5751,n3=host:5751", the same on every node. It may stay when the cluster has
	// long begun. Empty: the node has data already, or joins; in memory, it is a cluster of its own.
	Cluster string
	// Join says what a node without data does when a node of Cluster holds data: wait until Join is
	// called there, instead of refusing to start.
	Join bool
	// JoinCluster is the id of a running cluster (MembersResponse.cluster) that is to take this node
	// in: it starts, and waits until Join is called there. Empty: it begins a cluster, or has data.
	JoinCluster string

	// Listen is where clients are served. Empty: any port of 127.0.0.1.
	Listen string
	// Peer is where the other nodes are. Empty: the address that Cluster has for this node; without
	// one, any port of 127.0.0.1.
	Peer string
	// Advertise is the host name or IP under which clients and nodes reach this one. Empty: the host
	// that Cluster has for this node; without one, the host that it listens on, and where that means
	// every address, the machine's name.
	Advertise string
	// Listener and PeerListener are used instead of Listen and Peer. The node closes them. Nil: TCP.
	Listener, PeerListener net.Listener
	// Dial connects to other nodes: to their peer ports, and to the leader's client port where calls
	// are relayed. Nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// HTTP is where /metrics, /healthz and /readyz are served, without authentication. Empty: nowhere.
	HTTP string
	// Profile adds /debug/pprof there. Profiles tell about the process, and cost it time.
	Profile bool

	// ClientTLS is shown to clients, and asks them for a certificate if it says so. A node that relays
	// calls is a client of the leader: its RootCAs are those of the other nodes' certificates, and its
	// Certificates are shown to them. Nil: plain.
	ClientTLS *tls.Config
	// PeerTLS makes both ends of a connection between nodes show a certificate. Nil: plain.
	PeerTLS *tls.Config
	// Authorize is asked before everything that anybody asks for. Nil: everything is allowed.
	Authorize Authorize

	// ConnsMax is how many clients may be connected at once; one more is hung up on. Zero: 16384.
	ConnsMax int
	// TokenBase is the token that a new cluster's are above. Zero: seconds since 1970 × 2²⁰, with their
	// fraction (raftnode.TokenClock), so that storage which remembers an older cluster's tokens does not
	// refuse the new one's.
	TokenBase uint64

	// Version is announced, for people. Empty: not announced.
	Version string
	// Logger is told what an operator wants to know. Nil: nobody is.
	Logger *slog.Logger
	// Observer is told what to count, in the place of /metrics. Nil: /metrics is, if there is HTTP.
	Observer *Observer
	// Fatal is called when the node can't continue: its disk failed, its state differs from the
	// majority's, it was removed, or it is stuck. It ends the process, since a hanging disk may keep
	// anything less from happening, and must not return. Nil: the node ends as by Kill, and Done tells.
	Fatal func(error)
	// Tune changes the node's settings last of all; for tests and simulations. Nil: nothing.
	Tune func(*raftnode.Config)
}

// nodeSettings is a NodeConfig that was looked through.
type nodeSettings struct {
	NodeConfig
	list   peer.List
	joins  store.ID
	host   string // to advertise; "" = the listeners'
	atPeer string // what the list has for this node

	httpListener net.Listener // nil: there is no HTTP
	metrics      *metrics     // nil, likewise
}

// settle fills in what is zero, or says which field is wrong.
func (c NodeConfig) settle() (nodeSettings, error) {
	s := nodeSettings{NodeConfig: c}
	wrong := func(field, reason string, args ...any) (nodeSettings, error) {
		return s, fmt.Errorf("api: NodeConfig.%s: %s; nothing was started", field, fmt.Sprintf(reason, args...))
	}
	if err := peer.CheckID(c.ID); err != nil {
		return wrong("ID", "%v", err)
	}
	if c.Cluster != "" && c.JoinCluster != "" {
		return wrong("Cluster", "it is set beside JoinCluster: a node begins a cluster or joins one; leave one empty")
	}
	if c.Cluster != "" {
		var err error
		if s.list, err = peer.ParseList(c.Cluster); err != nil {
			return wrong("Cluster", "%v", err)
		}
		for _, n := range s.list.Nodes() {
			if n.ID == c.ID {
				s.atPeer = n.Address
			}
		}
		if s.atPeer == "" {
			return wrong("Cluster", "%v does not name this node, %s: add it", s.list, c.ID)
		}
	}
	if c.JoinCluster != "" {
		if err := s.joins.UnmarshalText([]byte(c.JoinCluster)); err != nil {
			return wrong("JoinCluster", "%v: give the id that the running cluster's members call tells", err)
		}
	}
	if c.Dir != "" && c.Cluster == "" && c.JoinCluster == "" && isEmptyDir(c.Dir) {
		return wrong("Dir", "%s holds nothing, and neither Cluster nor JoinCluster says what to begin with: name the nodes of a new "+
			"cluster, or the cluster that this node joins, also if its disk was lost", c.Dir)
	}
	if c.ConnsMax < 0 {
		return wrong("ConnsMax", "%d is below zero; 0 means %d", c.ConnsMax, connsDefault)
	}
	s.host = c.Advertise
	if s.host == "" && s.atPeer != "" {
		s.host, _, _ = net.SplitHostPort(s.atPeer) // ParseList took it apart already
	}
	s.fill()
	return s, nil
}

func (s *nodeSettings) fill() {
	if s.Listen == "" {
		s.Listen = "127.0.0.1:0"
	}
	if s.Peer == "" {
		s.Peer = s.atPeer
	}
	if s.Peer == "" {
		s.Peer = "127.0.0.1:0"
	}
	if s.Dial == nil {
		s.Dial = peer.DialTCP
	}
	if s.Authorize == nil {
		s.Authorize = allowAll
	}
	if s.ConnsMax == 0 {
		s.ConnsMax = connsDefault
	}
	if s.TokenBase == 0 {
		s.TokenBase, _ = raftnode.TokenClock(time.Now())
	}
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	if s.HTTP != "" {
		s.metrics = newMetrics()
	}
	switch {
	case s.Observer != nil:
	case s.metrics != nil:
		s.Observer = s.metrics.observer()
	default:
		s.Observer = &Observer{}
	}
}

// isEmptyDir reports whether nothing was ever kept there.
func isEmptyDir(dir string) bool {
	entries, err := os.ReadDir(dir)
	return os.IsNotExist(err) || err == nil && len(entries) == 0
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
