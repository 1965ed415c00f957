package peer

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	// handshakeTimeoutDefault bounds a handshake: several round trips between far continents.
	handshakeTimeoutDefault = 2 * time.Second
	// handshakesMaxDefault is far above what a cluster needs at once (three connections to each
	// peer) and far below what would hurt.
	handshakesMaxDefault = 64
	// acceptPause is the rest after a failed Accept, which mostly means no free descriptors.
	acceptPause = 50 * time.Millisecond
)

// ErrClosed is what calls return once the Network, or the Transport that they came through, is
// closed at this end.
var ErrClosed = errors.New("closed at this end")

// Config says who this node is and how it reaches others.
type Config struct {
	// ID is this node's name. Required; see CheckID.
	ID string
	// Incarnation is what was written when the data directory was made. Required.
	Incarnation Incarnation
	// Cluster is the cluster's id. Zero: not known yet; SetCluster tells it later.
	Cluster ClusterID
	// List is the --cluster list that this node was given. Zero: it was given none.
	List List

	// Condition returns what this node says about its data to one that asks. Required, called from
	// many goroutines, for each connection. Holds must be true before this node's first vote, and
	// Initial members must be on disk. It must look at Holds before it looks at Initial members: in the other order,
	// initial members that are replaced in between would pass as those that the node has begun with.
	Condition func(asker Server) Condition
	// Term returns the term that this node is in: what other nodes say is measured against it. Required,
	// called from many goroutines, must not block, not even on a disk that hangs.
	Term func() uint64
	// Handle answers what another node says with Tell. It is called from many goroutines, must end
	// when ctx does, and gives at most 16 KiB less one byte. Zero: every answer is empty.
	Handle func(ctx context.Context, from Server, what []byte) []byte
	// Lost is called for each append that is not sent because the log of the server, at this address,
	// ends below the entry that it acknowledged. It is called from many goroutines and must not block.
	// Zero: nothing is called.
	Lost func(server Node, acknowledged uint64)

	// Listener accepts peers. Required; the Network closes it. See ListenTCP.
	Listener net.Listener
	// Advertise is the address that others reach this node by. Zero: the listener's.
	Advertise string
	// Dial connects to an address. It must end when ctx does. Zero: DialTCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// TLS makes both ends of every connection show a certificate that names its node. Zero: plain
	// connections, fit for a network that only the nodes can reach.
	TLS *tls.Config

	// HandshakeTimeout bounds a handshake, TLS and all, at both ends. Zero: 2 s.
	HandshakeTimeout time.Duration
	// HandshakesMax bounds the connections accepted and not yet authenticated. Zero: 64.
	HandshakesMax int
	// Logger is told of refusals, each at most once in 10 s. Zero: nobody is.
	Logger *slog.Logger
}

// Network is one node's share of the peer network: it listens, makes both ends of the handshake,
// answers what this node holds, and lends verified connections to a Transport. Its methods may be
// called from many goroutines.
type Network struct {
	config     Config
	generation generation
	log        *RateLimitedLog
	handshakes handshakeLimiter
	clones     cloneDetector

	ctx  context.Context // ends when Close begins
	stop context.CancelCauseFunc
	busy sync.WaitGroup // the accept loop and every handshake with a caller

	mu        sync.Mutex // guards what follows
	cluster   ClusterID
	transport *Transport // the open one, or nil
}

// New begins to listen: from here on this node answers what it holds. Connections for Raft are
// refused as not ready until Transport opens. On an error nothing was started and the listener is
// still the caller's.
func New(c Config) (*Network, error) {
	if err := CheckID(c.ID); err != nil {
		return nil, fmt.Errorf("peer: ID: %w", err)
	}
	if c.Incarnation == (Incarnation{}) {
		return nil, errors.New("peer: Incarnation is zero: draw one when the data directory is made, " +
			"and keep it")
	}
	if c.Condition == nil || c.Term == nil || c.Listener == nil {
		return nil, errors.New("peer: Condition, Term and Listener are required")
	}
	if c.HandshakeTimeout < 0 || c.HandshakesMax < 0 {
		return nil, errors.New("peer: HandshakeTimeout and HandshakesMax can't be negative")
	}
	if err := checkTLS(c.TLS); err != nil {
		return nil, err
	}
	if c.Advertise == "" {
		c.Advertise = c.Listener.Addr().String()
	}
	if c.Dial == nil {
		c.Dial = DialTCP
	}
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = handshakeTimeoutDefault
	}
	if c.HandshakesMax == 0 {
		c.HandshakesMax = handshakesMaxDefault
	}
	if c.Handle == nil {
		c.Handle = func(context.Context, Server, []byte) []byte { return nil }
	}
	if c.Lost == nil {
		c.Lost = func(Node, uint64) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Network{config: c, cluster: c.Cluster, log: NewRateLimitedLog(c.Logger)}
	n.handshakes.max = c.HandshakesMax
	rand.Read(n.generation[:])
	n.ctx, n.stop = context.WithCancelCause(context.Background())
	n.busy.Go(n.accept)
	return n, nil
}

// Addr is the advertised address.
func (n *Network) Addr() net.Addr { return advertised(n.config.Advertise) }

// SetCluster tells the cluster's id, once the first LeaderStart is applied and the marker that
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
		return fmt.Errorf("peer: this node belongs to cluster %v and can't become part of %v; nothing "+
			"was changed. Close this network and open another from the data directory", n.cluster, id)
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
	n.busy.Wait()
	return err
}

func (n *Network) accept() {
	for {
		raw, err := n.config.Listener.Accept()
		if n.ctx.Err() != nil {
			if err == nil {
				raw.Close()
			}
			return
		}
		if err != nil {
			n.log.Warn("accept", "could not accept a peer connection; retrying", "error", err)
			pause := time.NewTimer(acceptPause)
			select {
			case <-pause.C:
			case <-n.ctx.Done():
				pause.Stop()
			}
			continue
		}
		ctx, cancel := context.WithCancelCause(n.ctx)
		release, evicted := n.handshakes.enter(cancel)
		if evicted {
			n.log.Warn("crowded", "too many pending handshakes: closed the oldest",
				"limit", n.config.HandshakesMax, "from", raw.RemoteAddr())
		}
		n.busy.Go(func() {
			defer cancel(nil)
			n.receive(ctx, raw, release)
		})
	}
}

// advertised is an address as it was configured, in whatever form.
type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }
