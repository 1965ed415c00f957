package peer

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"zamok/raftnode/tail"
)

const (
	// handshakeTimeoutDefault bounds a handshake: several round trips between far continents.
	handshakeTimeoutDefault = 2 * time.Second
	// handshakesMax bounds the connections accepted and not yet authenticated. It is far above what
	// a cluster needs at once (three connections to each peer, and those of relayed calls) and far
	// below what would hurt.
	handshakesMax = 64
	// acceptRetry is how long the listener waits after a failed Accept, which mostly means no free
	// descriptors.
	acceptRetry = 50 * time.Millisecond
)

// ErrClosed is what calls return once the Network, or the Transport that they came through, is
// closed at this end.
var ErrClosed = errors.New("closed at this end")

// Config is the identity of this node and how it reaches others. What is not optional is required.
type Config struct {
	// ID is this node's name; see CheckID.
	ID string
	// Incarnation is what was written when the data directory was made.
	Incarnation Incarnation
	// Cluster is the cluster's id. Zero: not known yet; SetCluster sets it later.
	Cluster ClusterID
	// List is the --cluster list that this node was given. Zero: it was given none.
	List List
	// Format names what this binary writes into the log. Nodes of other formats are refused.
	Format string

	// Knows reports whether the cluster has a server of that name, as far as this node knows (P14).
	// It is called from many goroutines, for each message of Raft, and must not block.
	Knows func(Server) bool
	// AllowedNames are patterns of path.Match for names of nodes that may call this one without
	// being known. If there are any, questions of other unknown nodes are refused, too.
	AllowedNames []string

	// Condition returns the state of this node's data for a node that asks. It is called from
	// many goroutines, for each connection. HasData must be true before this node's first vote, and
	// Initial must be on disk. It must read HasData before it reads Initial: in the other order,
	// initial members that are replaced in between would pass as those that the node has begun
	// with.
	Condition func(asker Server) Condition
	// Term returns the term that this node is in, against which the terms of other nodes are
	// measured. It is called from many goroutines, and must return at once even if the disk hangs.
	Term func() uint64
	// Handle answers a Call of another node. It is called from many goroutines, must end
	// when ctx does, and returns at most 16 KiB.
	Handle func(ctx context.Context, from Server, request []byte) []byte
	// Tail returns where this node's log ends, and what it owes (package tail). It is called from
	// many goroutines, for each vote.
	Tail func() tail.State
	// Owe has another server owe the end of what it acknowledged to this node as its leader, since
	// its log ends below that. It returns nil when that is on the server's disk. It is called from
	// many goroutines, and must end when ctx does.
	Owe func(ctx context.Context, server Node, acknowledged tail.End) error

	// HeartbeatStatus returns what this node tells its leader with each answer to a heartbeat. It
	// is called from many goroutines, and must not block. Nil: nothing.
	HeartbeatStatus func() HeartbeatStatus

	// MayCampaign reports whether this node may request votes. Nil: it always may.
	MayCampaign func() bool

	// WaitWritten returns nil once this node's disk has every entry up to index. It returns an
	// error if ctx ends, or it is known that the disk will not have them. Nil: the disk has what
	// Raft reads from its log.
	WaitWritten func(ctx context.Context, index uint64) error

	// Listener accepts peers; the Network closes it. See ListenTCP.
	Listener net.Listener
	// Advertise is the address that others reach this node by. Zero: the listener's.
	Advertise string
	// Dial connects to an address. It must end when ctx does. Zero: DialTCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// TLS makes both ends of every connection present a certificate with the name of its node. It
	// is called for each new connection, so that certificates can be renewed; open connections
	// stay. Zero: no TLS, for a network that only the nodes can reach.
	TLS func() *tls.Config

	// HandshakeTimeout bounds a handshake, TLS included, at both ends. Zero: 2 s.
	HandshakeTimeout time.Duration
	// Logger gets refusals, each at most once in 10 s.
	Logger *slog.Logger
}

// ConfigError is what is wrong with a field of Config. Nothing was started.
type ConfigError struct {
	Field  string
	Reason error
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("peer: %s: %v; nothing was started", e.Field, e.Reason)
}

func (e *ConfigError) Unwrap() error { return e.Reason }

// Network is one node's part of the peer network: it listens, makes both ends of the handshake,
// answers questions about this node's data, and lends verified connections to a Transport. Its
// methods may be called from many goroutines.
type Network struct {
	config     Config
	generation generation
	log        *RateLimitedLog
	clones     cloneDetector
	relays     chan *stream // to the listener of Relays, one at a time

	ctx        context.Context // ends when Close begins
	stop       context.CancelCauseFunc
	background sync.WaitGroup // the accept loop and every handshake with a caller

	mu        sync.Mutex // guards what follows
	cluster   ClusterID
	transport *Transport // the open one, or nil
	// context.CancelCauseFunc of the connections accepted and not authenticated yet, oldest first
	handshakes list.List
}

// New begins to listen: from here on this node answers questions about its data. Connections for
// Raft are refused as not ready until Transport opens. On an error nothing was started and the
// listener is still the caller's.
func New(c Config) (*Network, error) {
	if c.TLS != nil {
		if err := checkTLS(c.TLS()); err != nil {
			return nil, &ConfigError{"TLS", err}
		}
	}
	if err := CheckAllowedNames(c.AllowedNames); err != nil {
		return nil, &ConfigError{"AllowedNames", err}
	}
	c.Advertise = cmp.Or(c.Advertise, c.Listener.Addr().String())
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, handshakeTimeoutDefault)
	if c.Dial == nil {
		c.Dial = DialTCP
	}
	n := &Network{config: c, cluster: c.Cluster, log: NewRateLimitedLog(c.Logger),
		relays: make(chan *stream), generation: generation(rand.Uint64())}
	n.ctx, n.stop = context.WithCancelCause(context.Background())
	n.background.Go(n.accept)
	return n, nil
}

// Addr is the advertised address.
func (n *Network) Addr() net.Addr { return advertised(n.config.Advertise) }

// SetCluster sets the cluster's id, once the first LeaderStart is applied and the marker that
// holds it is on disk. Handshakes under way end as they began; connections that are open stay
// open, since both ends have proved the same list. The same id again changes nothing; another one
// is refused and changes nothing.
func (n *Network) SetCluster(id ClusterID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id == (ClusterID{}) {
		return errors.New("peer: the zero cluster id is no cluster; nothing was changed")
	}
	if n.cluster != (ClusterID{}) && n.cluster != id {
		return fmt.Errorf(
			"peer: this node belongs to cluster %v and can't become part of %v; nothing was "+
				"changed. Close this network and open another from the data directory",
			n.cluster, id)
	}
	n.cluster = id
	return nil
}

// Close ends the listener, the Transport and every connection, and waits for all goroutines that
// serve them.
func (n *Network) Close() error {
	n.mu.Lock()
	n.stop(ErrClosed)
	transport := n.transport
	n.mu.Unlock()
	err := n.config.Listener.Close()
	if transport != nil {
		err = errors.Join(err, transport.Close())
	}
	n.background.Wait()
	return err
}

func (n *Network) accept() {
	for {
		raw, err := n.config.Listener.Accept()
		switch {
		case err == nil:
			ctx, cancel := context.WithCancelCause(n.ctx)
			release := n.beginHandshake(cancel, raw.RemoteAddr())
			n.background.Go(func() {
				defer cancel(nil)
				n.receive(ctx, raw, release)
			})
		case n.ctx.Err() != nil:
			return
		default:
			n.log.warn("accept", "could not accept a peer connection; retrying", "error", err)
			sleep(n.ctx, acceptRetry)
		}
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// advertised is an address as it was configured, in whatever form.
type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }

// errTooManyHandshakes ends the handshake of a connection that had to make room.
var errTooManyHandshakes = errors.New(
	"too many connections are in their handshake; this was the oldest")

// beginHandshake adds a connection to those that are not authenticated yet, which are at most
// handshakesMax, and returns how to take it out again. For one more the oldest is closed: an honest
// handshake takes a round trip or two, so the oldest pending connection is the likeliest to be
// idle, and to refuse the new one would let idle connections keep all others out.
func (n *Network) beginHandshake(cancel context.CancelCauseFunc, from net.Addr) (release func()) {
	n.mu.Lock()
	crowded := n.handshakes.Len() >= handshakesMax
	if crowded {
		n.handshakes.Remove(n.handshakes.Front()).(context.CancelCauseFunc)(errTooManyHandshakes)
	}
	element := n.handshakes.PushBack(cancel)
	n.mu.Unlock()
	if crowded {
		n.log.warn("crowded", "too many pending handshakes: closed the oldest", "limit",
			handshakesMax, "from", from)
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.handshakes.Remove(element) // does nothing if it was closed or taken out
	}
}

// keepAliveConfig probes a connection that was idle for a second. That has to be at most a sixth of
// a lease (10 s unless the client sets another); the kernel counts in whole seconds and Go rounds
// up, so of what is below 1.7 s only 1 s is. A machine that vanishes without closing its
// connections is noticed within 1 s × (1 + 3 probes).
var keepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second,
	Count: 3}

// unacknowledgedMax is the time limit for the acknowledgement of sent data: as long as a snapshot
// may stall. TCP does not probe meanwhile.
const unacknowledgedMax = snapshotStallTimeout

// ListenTCP listens on a peer port; what it accepts has keepalives.
func ListenTCP(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAliveConfig,
		Control: UserTimeout(unacknowledgedMax)}
	config.SetMultipathTCP(false) // it does not support TCP_USER_TIMEOUT
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("can't listen for peers on %s: %w", address, err)
	}
	return listener, nil
}

// DialTCP connects to a peer port with keepalives.
func DialTCP(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{KeepAliveConfig: keepAliveConfig, Control: UserTimeout(unacknowledgedMax)}
	dialer.SetMultipathTCP(false)
	return dialer.DialContext(ctx, "tcp", address)
}
