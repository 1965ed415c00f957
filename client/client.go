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
	// TTLMax is the longest ttl that a cluster can allow. It allows an hour, unless an operator has changed that.
	TTLMax = 7 * 24 * time.Hour
	// MaxHoldMin is the shortest maximum hold. Of 200 ms nothing could be held: see WithMaxHold.
	MaxHoldMin = 250 * time.Millisecond
	// ttlCalm is the ttl below which a session may not outlive a leader change.
	ttlCalm = 5 * time.Second
	// closePatience is how long Close waits for the cluster's word.
	closePatience = 2 * time.Second
)

// Config is what a Client is made of. The zero value of each field but Endpoints is a sound choice.
type Config struct {
	// Endpoints are nodes of one cluster, "host:port" or "host". One that answers is enough: the others
	// are learnt from it. Before its first call a client asks all of them for the cluster that they belong to;
	// one that is silent for a tenth of RequestTimeout after the first answer is not waited for, nor, when most
	// have named the same cluster, one that is silent for 100 ms more. If they belong to several, every call fails
	// with ErrWrongCluster. From then on the client belongs to that cluster: a node of another one does nothing for
	// it, at whatever address it is met.
	//
	// A host is looked up for each connection, and the first of its addresses that takes one is the endpoint. A name
	// stands for all of its addresses, each of which is an endpoint: "dns:///host:port" or "dns:///host" for every
	// address of the host, "srv:///_zamok._tcp.example.com" for every target of SRV records. Names are looked up before
	// the first call and by Members, and again when no known node answers: at most once a second, and less often the
	// longer that lasts. A name that can't be looked up is like a node that is silent.
	//
	// With TLS a certificate has to name the host: of a name that host, whatever the address, and of SRV records the
	// domain after _service._proto. TLS.ServerName replaces both.
	Endpoints []string
	// Resolver looks up hosts and names; nil = net.DefaultResolver. A Dialer looks up hosts itself.
	Resolver *net.Resolver
	// Cluster is the id that the cluster must have, as Members gives it; "" = that of the endpoints. It makes a
	// difference where those that answer first may be of a wrong cluster.
	Cluster string
	// TLS is the TLS configuration; nil = no TLS. To renew only the client's certificate, GetClientCertificate is enough.
	TLS *tls.Config
	// GetTLS takes precedence over TLS, unless it is nil. It is called for each new connection, so that certificates and
	// authorities can be renewed: sessions and their locks stay if the new certificate has the same identity.
	GetTLS func() *tls.Config
	// Credentials are sent with every call; nil = none.
	Credentials credentials.PerRPCCredentials
	// Dialer makes connections; nil = net.Dialer.
	Dialer func(ctx context.Context, address string) (net.Conn, error)
	// RequestTimeout bounds every call but Lock; 0 = 5 s. One with WithWaitTimeout ends so long after that limit.
	RequestTimeout time.Duration
	// Logger gets what no call can return; nil = slog.Default().
	Logger *slog.Logger
	// Clock measures trust; nil = clock.System(). Others are for tests.
	Clock clock.Source

	// The following belong to the session, with which all locks of the client live and die.

	// TTL is how long locks outlive a client that fell silent; 0 = 10 s. A cluster allows an hour, unless its operator
	// has changed that (SetLongestTTL). See docs/guide/ttl.md.
	TTL time.Duration
	// Label and Metadata tell people who this is: up to 256 and 4096 bytes.
	Label    string
	Metadata []byte
	// LockDelay keeps a lock closed so long after a grant ended without an Unlock, for resources that
	// check no tokens: up to 60 s; 0 = not.
	LockDelay time.Duration
	// ReleaseOnDisconnect ends the session so long after its connection broke, instead of at its TTL; 0 =
	// off. A server can see a break before the client does: another may then be granted a lock while this
	// client still believes in it. Use it with tokens only. The break of a relayed stream does not count.
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
	session *session // nil until the first lock; replaced when over
	closed  bool
}

// Dial makes a client with the defaults, and makes sure that a node of a cluster answers. It fails at once if every
// endpoint refuses the connection: a program that starts beside its cluster dials again, or is started again.
func Dial(ctx context.Context, endpoints ...string) (*Client, error) {
	c, err := New(Config{Endpoints: endpoints})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.RequestTimeout, errRequestTimeout)
	defer cancel()
	answered, err := c.nodes.survey(ctx) // a node that can't do anything now is one
	if err == nil && !answered {
		if err = c.nodes.verdict(); err == errNotAnswered {
			err = c.nodes.unavailable(NotDone, ctx.Err())
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// New makes a client and does nothing on the network.
func New(cfg Config) (*Client, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	nodes, err := newNodes(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.TTL < ttlCalm {
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
	case len(cfg.Metadata) > metadataBytesMax: // the server could not even say so: its frame would be too long
		return invalid("Metadata", "%d bytes, at most %d", len(cfg.Metadata), metadataBytesMax)
	case cfg.RequestTimeout < 0:
		return invalid("RequestTimeout", "can't be negative")
	}
	return nil
}

// ask asks the nodes in turn, unless the client was closed.
func (c *Client) ask(ctx context.Context, whom whom, ask func(*node) error) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return &Error{Kind: ErrClosed}
	}
	return c.nodes.askInTurn(ctx, whom, ask)
}

// living gives the session, a new one if there was none or it is over.
func (c *Client) living() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &Error{Kind: ErrClosed}
	}
	if c.session == nil || c.session.ctx.Err() != nil {
		c.nodes.warm()
		c.session = newSession(c)
	}
	return c.session, nil
}

// Close ends the session: its locks are lost, and free at once. It waits for the cluster's word a little; an
// error means that the locks will be free when the TTL is over. Calls that wait return ErrClosed.
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
		err = s.close(closePatience)
	}
	c.running.Wait()
	return errors.Join(err, c.nodes.close())
}

var errRequestTimeout = errors.New("the request's time is over")
