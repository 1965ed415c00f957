package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/credentials"

	"zamok/clock"
)

// Defaults and limits of a Config.
const (
	DefaultTTL            = 10 * time.Second
	DefaultRequestTimeout = 5 * time.Second
	TTLMin                = 2 * time.Second
	// TTLMax is the longest ttl that a cluster can allow. It allows an hour, unless an operator has
	// changed that.
	TTLMax = 7 * 24 * time.Hour
	// MaxHoldMin is the shortest maximum hold. Of 200 ms nothing could be held: see WithMaxHold.
	MaxHoldMin = 250 * time.Millisecond
	// ttlSafe is the ttl below which a session may not outlive a leader change.
	ttlSafe = 5 * time.Second
	// closeTimeout is how long Close waits for the cluster's confirmation.
	closeTimeout = 2 * time.Second
)

// Config configures a Client. All fields but Endpoints may be left zero.
type Config struct {
	// Endpoints are nodes of one cluster, "host:port" or "host". One reachable endpoint is enough:
	// the client learns the other nodes from it.
	//
	// Before its first call a client asks all endpoints for the id of their cluster. After the
	// first answer it waits for the others for a tenth of RequestTimeout, and for at most 100 ms
	// once most have named the same cluster. If the endpoints belong to several clusters, every
	// call fails with ErrWrongCluster. From then on the client belongs to that cluster: nodes of
	// other clusters reject its calls, at whatever address.
	//
	// A host is looked up for each connection; the first of its addresses that accepts one is the
	// endpoint. A name stands for several endpoints, one for each of its addresses:
	// "dns:///host:port" or "dns:///host" for every address of the host,
	// "srv:///_zamok._tcp.example.com" for every target of SRV records. Names are looked up before
	// the first call, by admin.Members, and again when no known node answers: at most once a
	// second, and less often while that lasts. A name without addresses counts as a silent node.
	//
	// With TLS a certificate has to name the host. For a name this is the host in the name,
	// whatever the address, and for SRV records the domain after _service._proto. TLS.ServerName
	// replaces both.
	Endpoints []string
	// Resolver looks up hosts and names; nil = net.DefaultResolver. A Dialer looks up hosts itself.
	Resolver *net.Resolver
	// Cluster is the id that the cluster must have, as admin.Members returns it; "" = the
	// endpoints' cluster. Set it where the first endpoints that answer may belong to a wrong
	// cluster.
	Cluster string
	// TLS is the TLS configuration; nil = no TLS. To renew only the client's certificate,
	// GetClientCertificate is enough.
	TLS *tls.Config
	// GetTLS replaces TLS, unless it is nil. It is called for each new connection, so that
	// certificates and authorities can be renewed. Sessions and their locks stay if the new
	// certificate has the same identity.
	GetTLS func() *tls.Config
	// Credentials are sent with every call; nil = none.
	Credentials credentials.PerRPCCredentials
	// Dialer makes connections; nil = net.Dialer.
	Dialer func(ctx context.Context, address string) (net.Conn, error)
	// RequestTimeout bounds every call but Lock; 0 = 5 s. With WithWait it begins at the end of
	// that wait.
	RequestTimeout time.Duration
	// Logger gets what no call can return; nil = slog.Default().
	Logger *slog.Logger
	// Clock measures leases and deadlines; nil = clock.System(). Others are for tests.
	Clock clock.Source

	// The following fields configure the session. All locks of the client end with it.

	// TTL is how long locks outlive a client that has stopped renewing; 0 = 10 s. A cluster allows
	// up to an hour, unless its operator has changed that. See docs/guide/ttl.md.
	TTL time.Duration
	// Label and Meta describe this client to people: up to 256 and 4096 bytes.
	Label string
	Meta  []byte
	// LockDelay keeps a lock closed for this time after a grant that ended without an Unlock, for
	// resources that check no tokens: up to 60 s; 0 = off.
	LockDelay time.Duration
	// ReleaseOnDisconnect ends the session this long after its connection broke, instead of at its
	// TTL; 0 = off. A server can see a break before the client does. Then another client may be
	// granted a lock while this one still considers it held, so use this with tokens only. The
	// break of a relayed stream does not count.
	ReleaseOnDisconnect time.Duration
}

// Client holds locks of one cluster, in one session. All methods may be called at the same time.
type Client struct {
	cfg     Config
	log     *slog.Logger
	clock   clock.Source
	nodes   *nodes
	running sync.WaitGroup // every goroutine of every session

	mu      sync.Mutex
	session *session // nil until the first lock; replaced after its end
	closed  bool
}

// Dial makes a client with the defaults, and checks that a node of a cluster answers. It fails at
// once if every endpoint refuses the connection: a program that starts together with its cluster
// has to dial again.
func Dial(ctx context.Context, endpoints ...string) (*Client, error) {
	c, err := New(Config{Endpoints: endpoints})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	found, err := c.nodes.survey(ctx) // any node counts, even one that can't serve calls now
	if err == nil && !found {
		if err = c.nodes.roundError(); err == errRoundFailed {
			err = c.nodes.unavailable(NotDone, ctx.Err())
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// New makes a client. It sends nothing.
func New(cfg Config) (*Client, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	nodes, err := newNodes(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.TTL < ttlSafe {
		cfg.Logger.Warn("zamok: the ttl is too short to survive a failover", "ttl", cfg.TTL)
	}
	return &Client{cfg: cfg, log: cfg.Logger, clock: cfg.Clock, nodes: nodes}, nil
}

func (cfg *Config) complete() error {
	cfg.TTL = cmp.Or(cfg.TTL, DefaultTTL)
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, DefaultRequestTimeout)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.Clock = cmp.Or(cfg.Clock, clock.System())
	switch {
	case len(cfg.Endpoints) == 0:
		return invalid("Endpoints", "name at least one node")
	case len(cfg.Endpoints) > nodesMax:
		return invalid("Endpoints", "too many")
	case cfg.TTL < TTLMin || cfg.TTL > TTLMax:
		return invalid("TTL", "from 2 s to 7 days")
	case !utf8.ValidString(cfg.Label):
		return invalid("Label", "is not UTF-8")
	case len(cfg.Meta) > metaBytesMax: // the server rejects a longer frame
		return invalid("Meta", "%d bytes, at most %d", len(cfg.Meta), metaBytesMax)
	case cfg.RequestTimeout < 0:
		return invalid("RequestTimeout", "can't be negative")
	}
	return nil
}

// tryNodes calls try for one node after the other, unless the client was closed: see
// nodes.tryInTurn.
func (c *Client) tryNodes(ctx context.Context, route route, try func(*node) error) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return &Error{Kind: ErrClosed}
	}
	return c.nodes.tryInTurn(ctx, route, try)
}

// liveSession returns the session, or a new one if there was none or it has ended.
func (c *Client) liveSession() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &Error{Kind: ErrClosed}
	}
	if c.session == nil || c.session.ctx.Err() != nil {
		c.nodes.connectAll()
		c.session = newSession(c)
	}
	return c.session, nil
}

// Close ends the session: its locks are lost, and free at once. It waits up to 2 s for the
// cluster's confirmation. An error means that the locks are free when the TTL has passed. Calls
// that wait return ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	closed, s := c.closed, c.session
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	var err error
	if s != nil {
		err = s.close(closeTimeout)
	}
	c.running.Wait()
	return errors.Join(err, c.nodes.close())
}

var errRequestTimeout = errors.New("the request's time is over")
