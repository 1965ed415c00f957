package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"zamok/api/zamokpb"
	"zamok/client/call"
)

const (
	defaultPort = "5750"
	// target precedes the address in the name of a connection: the dialer looks up hosts, so it
	// gets the address as it was written.
	target = "passthrough:///"
	// nodesMax bounds the known addresses.
	nodesMax = 64
	// A node that can't be reached is tried again soon, because a leader change takes only
	// milliseconds.
	reconnectMin = 50 * time.Millisecond
	reconnectMax = time.Second
	// pingAfter and pingTimeout detect a dead connection when nothing else would, as under a watch.
	// gRPC accepts no less than 10 s for the first.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// idleAfter is the time without a call after which a connection is closed, until the next call,
	// or until connectAll. So of a thousand clients each has one connection, to the leader.
	idleAfter   = time.Minute
	bufferBytes = 4 << 10
	// windowBytes and connWindowBytes bound what a node may send ahead on one stream, and on a
	// whole connection. They are fixed, because gRPC would otherwise send a ping with nearly every
	// frame to measure the line.
	windowBytes     = 256 << 10
	connWindowBytes = 1 << 20
	// seekEvery is about how often the client tries to reach the leader directly while its calls
	// are relayed.
	seekEvery = 15 * time.Second
	// answerBytesMax bounds one answer. A list of many sessions with their metadata is longer than
	// gRPC's default limit.
	answerBytesMax = 64 << 20
)

// nodes are the connections to the nodes of the cluster, and what is known of the cluster and its
// leader.
type nodes struct {
	options    []grpc.DialOption
	log        *slog.Logger
	surveyWait time.Duration // how long endpoints may be silent after another has answered
	surveying  chan struct{} // holds one element during a survey

	names    []*dnsName // among the endpoints
	resolver *net.Resolver
	ctx      context.Context // ends with close
	cancel   context.CancelFunc

	mu     sync.Mutex
	all    []*node // the endpoints, then other members
	leader *node   // the supposed leader, or a relay to it; nil = not known
	closed bool
	// seeking: the leader is reached by a relay, and a goroutine tries to reach it directly.
	seeking    bool
	background sync.WaitGroup // of goroutines that end with ctx
	// cluster is the id of the cluster that this client belongs to; "" = not known yet. Once known
	// it stays. clusterSource says where it was learnt.
	cluster, clusterSource string
	reached                bool // something was sent to a node, or may have been

	lookingUp   chan struct{} // closed at the end of the look-up in progress; nil = none
	lookUpAfter time.Time     // when the names may be looked up again
	lookUpDelay time.Duration
}

// node is one address and its connection. The mutex of nodes guards what can change.
type node struct {
	call.Node
	address    string
	conn       *grpc.ClientConn
	from       *dnsName // the name with this address; nil = none
	configured bool     // in Config.Endpoints: it is never removed
	last       error    // why the latest attempt failed; nil if it did not
	relay      *node    // the same node as a relay; nil = this is the relay
}

// relaying is a connection to a node that passes calls on to the leader, for a client that cannot
// reach the leader: because of a firewall, a load balancer that is its only endpoint, or an address
// without a route. The client returns to the leader when another node leads, or when the leader
// answers directly: see seekLeader.
type relaying struct{ *grpc.ClientConn }

func (r relaying) Invoke(ctx context.Context, method string, request, reply any,
	opts ...grpc.CallOption) error {
	return r.ClientConn.Invoke(metadata.AppendToOutgoingContext(ctx, zamokpb.RelayKey, "1"), method,
		request, reply, opts...)
}

func (r relaying) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return r.ClientConn.NewStream(metadata.AppendToOutgoingContext(ctx, zamokpb.RelayKey, "1"),
		desc, method, opts...)
}

func newNodes(cfg Config) (*nodes, error) {
	creds := insecure.NewCredentials()
	if cfg.TLS != nil && cfg.GetTLS == nil {
		cfg.GetTLS = func() *tls.Config { return cfg.TLS }
	}
	if cfg.GetTLS != nil {
		creds = currentTLS{credentials.NewTLS(cfg.GetTLS()), cfg.GetTLS}
	}
	n := &nodes{log: cfg.Logger, surveyWait: cfg.RequestTimeout / surveyParts,
		surveying: make(chan struct{}, 1),
		cluster:   cfg.Cluster, clusterSource: "from Config.Cluster",
		resolver: cmp.Or(cfg.Resolver, net.DefaultResolver)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.options = []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: grpcbackoff.Config{BaseDelay: reconnectMin, Multiplier: 2,
				Jitter: 0.5, MaxDelay: reconnectMax},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithStaticStreamWindowSize(windowBytes),
		grpc.WithStaticConnWindowSize(connWindowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax)),
		grpc.WithIdleTimeout(idleAfter),
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("zamok-go"),
	}
	dial := cfg.Dialer
	if dial == nil && cfg.Resolver != nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{Resolver: cfg.Resolver}).DialContext(ctx, "tcp", address)
		}
	}
	if dial != nil {
		n.options = append(n.options, grpc.WithContextDialer(dial))
	}
	if cfg.Credentials != nil {
		n.options = append(n.options, grpc.WithPerRPCCredentials(cfg.Credentials))
	}
	for _, endpoint := range cfg.Endpoints {
		several, err := dnsNameOf(endpoint)
		if several != nil {
			if cfg.GetTLS != nil {
				several.authority = cmp.Or(cfg.GetTLS().ServerName, several.authority)
			}
			n.names = append(n.names, several)
			continue
		}
		var one *node
		if err == nil {
			one, err = n.nodeAt(endpoint)
		}
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		one.configured = true
	}
	return n, nil
}

// currentTLS reads the TLS configuration again for each new connection.
type currentTLS struct {
	credentials.TransportCredentials
	get func() *tls.Config
}

func (c currentTLS) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(c.get()).ClientHandshake(ctx, authority, raw)
}

func (c currentTLS) Clone() credentials.TransportCredentials { return c }

// addressOf adds the default port to an endpoint without one.
func addressOf(endpoint string) (string, error) {
	if _, _, err := net.SplitHostPort(endpoint); err == nil && !strings.Contains(endpoint, "/") {
		return endpoint, nil
	}
	address := net.JoinHostPort(strings.Trim(endpoint, "[]"), defaultPort)
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.Contains(host, "/") {
		return "", invalid("endpoint",
			"%q is no address; write host:port, or host for port %s, or dns:///host or "+
				"srv:///name for several", endpoint, defaultPort)
	}
	return address, nil
}

// nodeAt returns the node at an endpoint, and adds it if it is new; nil if there is no room for it.
func (n *nodes) nodeAt(endpoint string) (*node, error) {
	address, err := addressOf(endpoint)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.add(address, nil)
}

// add does the same for a complete address, which may come from a name. The caller has the mutex.
func (n *nodes) add(address string, from *dnsName) (*node, error) {
	if i := slices.IndexFunc(n.all, func(one *node) bool {
		return one.address == address && (from == nil || one.from == from)
	}); i >= 0 {
		return n.all[i], nil
	}
	if n.closed || len(n.all) == nodesMax && !n.forget() {
		return nil, nil
	}
	check := clusterCheck{n, address}
	options := append(slices.Clip(n.options), grpc.WithUnaryInterceptor(check.unary),
		grpc.WithStreamInterceptor(check.stream))
	if from != nil {
		options = append(options, grpc.WithAuthority(from.authority))
	}
	conn, err := grpc.NewClient(target+address, options...)
	if err != nil {
		return nil, &Error{Kind: ErrInvalid, Field: "endpoint", Message: "endpoint: " + address,
			cause: err}
	}
	one := &node{Node: call.At(conn), address: address, conn: conn, from: from}
	one.relay = &node{Node: call.At(relaying{conn}), address: address, conn: conn}
	n.all = append(n.all, one)
	return one, nil
}

// forget makes room for an address: it removes one that is not configured and whose node failed at
// the latest attempt. Nodes move, and the present leader must be reachable. The caller has the
// mutex.
func (n *nodes) forget() bool {
	i := slices.IndexFunc(n.all,
		func(one *node) bool { return !one.configured && one.last != nil && !n.leads(one) })
	if i < 0 {
		return false
	}
	_ = n.all[i].conn.Close() // a call that uses it tries another node
	n.all = slices.Delete(n.all, i, i+1)
	return true
}

// leads reports whether a node is the supposed leader, or the relay to it. The caller has the
// mutex.
func (n *nodes) leads(one *node) bool { return n.leader == one || n.leader == one.relay }

// discover learns the other members from a node, and connects to them, so that the next leader is
// known when it is needed. It ignores errors, because the access rules may deny the call.
func (n *nodes) discover(ctx context.Context, one *node) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeoutMax)
	defer cancel()
	members, err := one.Members(ctx, &zamokpb.MembersRequest{})
	if err != nil {
		return
	}
	for _, m := range members.GetMembers() {
		_, _ = n.nodeAt(m.GetClient()) // it only helps, and may fail
	}
	n.connectAll()
}

// connectAll connects to every node without a connection. It does not wait.
func (n *nodes) connectAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, one := range n.all {
		one.conn.Connect()
	}
}

// errRoundFailed is the result of a round in which no node succeeded, if another round is worth
// while.
var errRoundFailed = errors.New("no node did it")

// route says which nodes a round tries.
type route uint8

const (
	leaderOrRelay  route = iota // the leader, or a relay to it if it does not answer
	leaderDirectly              // the leader, by no relay
	anyNode                     // any node can serve the call
)

// tryInTurn calls try for one node after the other: first the supposed leader, which changes when a
// node names another one, then the others. A node that names a leader without an answer in this
// round is tried again as a relay. tryInTurn returns nil at the first success, the first permanent
// error, or errRoundFailed.
func (n *nodes) tryInTurn(ctx context.Context, route route, try func(*node) error) error {
	if err := n.findCluster(ctx); err != nil {
		return err
	}
	replied := false             // a node of this client's cluster replied
	var limitDelay time.Duration // how long a limit says to wait
	named := make(map[*node]*node)
	for tried := make(map[*node]bool); len(tried) < nodesMax; {
		one := n.next(tried, named, route)
		if one == nil {
			break
		}
		tried[one] = true
		err, info := try(one), (*zamokpb.ErrorInfo)(nil)
		if other, is := err.(otherNodeError); is {
			one, err = other.node, other.error
		}
		if route != anyNode || ctx.Err() == nil { // a cancelled watch says nothing of the node
			leader := n.record(one, err, route != anyNode)
			if info = infoOf(err); info.GetCode() == zamokpb.Code_CODE_NOT_LEADER &&
				info.GetLeader() != "" && one.relay != nil {
				named[one] = leader
			}
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errRoundFailed
		}
		replied = replied || info != nil
		ofRelay := one.relay == nil && strings.HasPrefix(info.GetField(), relayLimits)
		if final := permanent(err); final != nil && !ofRelay {
			return final
		}
		if limitDelay = max(limitDelay, time.Duration(info.GetRetryAfter())); limitDelay > 0 &&
			route != anyNode && !ofRelay {
			break // other nodes have the same limit
		}
	}
	if limitDelay > 0 { // with jitter, since other clients may wait for the same limit
		sleep(ctx, limitDelay+rand.N(limitDelay))
	}
	if replied { // errors of other calls do not count in this round
		return errRoundFailed
	}
	n.startLookUp() // the nodes may have moved
	return n.roundError()
}

// relayLimits is the prefix of the limits of a node that relays: another node may have room.
const relayLimits = "relayed-"

// next chooses the next node; nil if all were tried. named are the leaders that nodes have named in
// this round; nil = a leader without an address.
func (n *nodes) next(tried map[*node]bool, named map[*node]*node, route route) *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leader != nil && !tried[n.leader] &&
		(route == leaderOrRelay || route == leaderDirectly && n.leader.relay != nil) {
		return n.leader
	}
	left := slices.DeleteFunc(slices.Clone(n.all), func(one *node) bool { return tried[one] })
	for one, leader := range named {
		silent := leader == one || tried[leader] && leader.last != nil && infoOf(leader.last) == nil
		if leader == nil { // any of the others may be the leader
			silent = len(left) == 0
		}
		if route == leaderOrRelay && silent && !tried[one.relay] {
			return one.relay
		}
	}
	if len(left) == 0 {
		return nil
	}
	return left[rand.IntN(len(left))]
}

// seekLeader tries to reach the leader directly, now and then, until no relay is needed any more.
func (n *nodes) seekLeader() {
	for {
		sleep(n.ctx, seekEvery+rand.N(seekEvery/5))
		n.mu.Lock()
		n.seeking = n.leader != nil && n.leader.relay == nil && !n.closed
		seeking := n.seeking
		n.mu.Unlock()
		if !seeking {
			return
		}
		// tryInTurn records an answer
		_ = n.tryInTurn(n.ctx, leaderDirectly, func(one *node) error {
			ctx, cancel := context.WithTimeout(n.ctx, attemptTimeoutMin)
			defer cancel()
			_, err := one.Now(ctx, &zamokpb.NowRequest{})
			return err
		})
	}
}

// relayUnneeded reports whether a node is the relay to a leader that can be reached directly by
// now. It waits for nothing, because a loss must be announced in time: while a connection is being
// closed, which can take seconds, it returns false.
func (n *nodes) relayUnneeded(one *node) bool {
	if one.relay != nil || !n.mu.TryLock() {
		return false
	}
	defer n.mu.Unlock()
	return n.leader != nil && n.leader.relay != nil && n.leader.last == nil
}

// roundError is the result of a round in which no node succeeded. It is permanent in two cases.
// Most of the endpoints belong to another cluster now, and no node of this client's cluster
// replied: the cluster is gone. Or the client has never reached a node, and each endpoint refuses
// the connection: to wait would not help against a mistyped address. A client continues if it has
// reached a node before, if an endpoint is silent, or if a name has no addresses yet.
func (n *nodes) roundError() error {
	n.mu.Lock()
	var wrongCluster error
	configured, inOthers, refused, ours, reached := len(n.unresolved()), 0, 0, false, n.reached
	for _, one := range n.all {
		ours = ours || infoOf(one.last) != nil
		if !one.configured {
			continue
		}
		configured++
		if errors.Is(one.last, ErrWrongCluster) {
			inOthers++
			wrongCluster = cmp.Or(wrongCluster, one.last)
		}
		if refusedConnection(one.last) {
			refused++
		}
	}
	n.mu.Unlock()
	switch {
	case !ours && 2*inOthers > configured:
		return wrongCluster
	case !reached && refused == configured:
		return n.unavailable(NotDone, errNoEndpoint)
	}
	return errRoundFailed
}

// record stores how an attempt at a node, or a stream, ended: for errors, and to know the leader.
// leads: only a leader can have succeeded. It returns the leader that the error names; nil = none,
// or without an address.
func (n *nodes) record(one *node, err error, leads bool) (named *node) {
	named, _ = n.nodeAt(infoOf(err).GetLeaderAddress())
	n.mu.Lock()
	defer n.mu.Unlock()
	if errors.Is(err, ErrWrongCluster) && !errors.Is(one.last, ErrWrongCluster) {
		n.log.Error("zamok: an endpoint belongs to another cluster and is ignored", "address",
			one.address, "error", err)
	}
	if one.last = err; one.relay != nil {
		one.relay.last = nil // it is from the round before
	}
	n.reached = n.reached || !refusedConnection(err) // it may have taken effect
	if err == nil || infoOf(err) != nil {
		n.lookUpDelay = 0
	}
	switch {
	case err == nil && leads:
		n.leader = one
		if one.relay == nil && !n.seeking && !n.closed {
			n.seeking = true
			n.background.Go(n.seekLeader)
		}
	case named != nil && n.leader == nil, err != nil && n.leader == one: // a node may lag
		n.leader = named
	}
	return named
}

func (n *nodes) close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel() // after closed is set, so that no goroutine tries a node in vain
	n.background.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(each(n.all, func(one *node) error { return one.conn.Close() })...)
}
