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
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
)

const (
	defaultPort = "5750"
	// target is before an address in the name of its connection: the dialer looks names up, so that what it
	// tries is what a person wrote.
	target = "passthrough:///"
	// nodesMax bounds the addresses that are remembered, given and learnt.
	nodesMax = 64
	// A node that can't be reached is tried again soon: a leader change is waited for in milliseconds.
	reconnectMin = 50 * time.Millisecond
	reconnectMax = time.Second
	// pingAfter and pingPatience find out that a connection leads nowhere when nothing else would, as
	// under a watch. gRPC takes no less than 10 s for the first.
	pingAfter    = 10 * time.Second
	pingPatience = 5 * time.Second
	// idleAfter is after how long without a call a connection is closed, until the next call, or until it may be needed soon
	// (warm): a cluster of a thousand clients has one connection of each, to the leader.
	idleAfter   = time.Minute
	bufferBytes = 4 << 10
	// windowBytes and connWindowBytes are what a node may send ahead on one stream, and on all of a
	// connection. Fixed: gRPC would measure what the line takes with a ping for nearly every frame.
	windowBytes     = 256 << 10
	connWindowBytes = 1 << 20
	// seekEvery is about how often the leader is asked itself again while its calls are relayed.
	seekEvery = 15 * time.Second
	// answerBytesMax bounds one answer. A listing of many sessions with their metadata is longer than what
	// gRPC takes by itself.
	answerBytesMax = 64 << 20
)

// nodes are the connections to the nodes of the cluster, and what is known of it and of who leads.
type nodes struct {
	options []grpc.DialOption
	log     *slog.Logger
	silence time.Duration // how long endpoints may be silent after another has answered
	pinning chan struct{} // holds one: while the endpoints are asked for their cluster

	names    []*name // among the endpoints
	resolver *net.Resolver
	ctx      context.Context // ends when they are closed
	cancel   context.CancelFunc

	mu     sync.Mutex
	all    []*node // as given, then as learnt
	leader *node   // thought to lead, or a relay to what does; nil = not known
	closed bool
	// seeking: a goroutine tries to reach the leader itself, since it is reached by a relay.
	seeking    bool
	background sync.WaitGroup // of goroutines that end with ctx
	// cluster is the id of the one that this client belongs to; "" = not known yet. Once known it stays. learnt says
	// where it is known from.
	cluster, learnt string
	reached         bool // something was sent to a node, or may have been

	resolving    chan struct{} // closed when the names are looked up; nil = they are not being looked up
	resolveAfter time.Time     // they may be looked up again
	resolvePause time.Duration
}

// node is one address and its connection. The mutex of nodes guards what can change.
type node struct {
	zamokpb.ZamokClient
	zamokpb.AdminClient
	address string
	conn    *grpc.ClientConn
	from    *name // whose address it is; nil = it was given or learnt as an address
	given   bool  // by Config.Endpoints: it is never forgotten
	last    error // why the latest attempt failed; nil if it did not
	relay   *node // the same node, asked to pass calls on to the leader; nil = this is that
}

// relaying is a connection to a node that is asked to pass on to the leader what it can't do itself.
type relaying struct{ *grpc.ClientConn }

// relayAsk is the metadata that asks for it.
const relayAsk = "zamok-relay"

// firstKey is the metadata of a stream that opens a session which no stream before it can have opened.
const firstKey = "zamok-first"

func (r relaying) Invoke(ctx context.Context, method string, request, reply any, opts ...grpc.CallOption) error {
	return r.ClientConn.Invoke(metadata.AppendToOutgoingContext(ctx, relayAsk, "1"), method, request, reply, opts...)
}

func (r relaying) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return r.ClientConn.NewStream(metadata.AppendToOutgoingContext(ctx, relayAsk, "1"), desc, method, opts...)
}

func newNodes(cfg Config) (*nodes, error) {
	creds := insecure.NewCredentials()
	if cfg.TLS != nil && cfg.GetTLS == nil {
		cfg.GetTLS = func() *tls.Config { return cfg.TLS }
	}
	if cfg.GetTLS != nil {
		creds = currentTLS{credentials.NewTLS(cfg.GetTLS()), cfg.GetTLS}
	}
	n := &nodes{log: cfg.Logger, silence: cfg.RequestTimeout / surveyParts, pinning: make(chan struct{}, 1),
		cluster: cfg.Cluster, learnt: "as it was configured", resolver: cmp.Or(cfg.Resolver, net.DefaultResolver)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.options = []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectMin, Multiplier: 2, Jitter: 0.5, MaxDelay: reconnectMax},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingPatience}),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithStaticStreamWindowSize(windowBytes), grpc.WithStaticConnWindowSize(connWindowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax)),
		grpc.WithIdleTimeout(idleAfter),
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("zamok-go"),
		grpc.WithUnaryInterceptor(n.nameUnary), grpc.WithStreamInterceptor(n.nameStream),
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
		several, err := nameOf(endpoint)
		if several != nil {
			if cfg.GetTLS != nil {
				several.authority = cmp.Or(cfg.GetTLS().ServerName, several.authority)
			}
			n.names = append(n.names, several)
			continue
		}
		var one *node
		if err == nil {
			one, err = n.learn(endpoint)
		}
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		one.given = true
	}
	return n, nil
}

// currentTLS uses the current configuration for each new connection.
type currentTLS struct {
	credentials.TransportCredentials
	get func() *tls.Config
}

func (c currentTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(c.get()).ClientHandshake(ctx, authority, raw)
}

func (c currentTLS) Clone() credentials.TransportCredentials { return c }

// addressOf completes an endpoint with the usual port.
func addressOf(endpoint string) (string, error) {
	if _, _, err := net.SplitHostPort(endpoint); err == nil && !strings.Contains(endpoint, "/") {
		return endpoint, nil
	}
	address := net.JoinHostPort(strings.Trim(endpoint, "[]"), defaultPort)
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.Contains(host, "/") {
		return "", invalid("endpoint", "%q is no address; write host:port, or host for port %s, or dns:///host or srv:///name for several", endpoint, defaultPort)
	}
	return address, nil
}

// learn gives the node at an endpoint, which may be new; nil if there is no room for it.
func (n *nodes) learn(endpoint string) (*node, error) {
	address, err := addressOf(endpoint)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.add(address, nil)
}

// add is learn for an address, of a name or of none. The caller has the mutex.
func (n *nodes) add(address string, from *name) (*node, error) {
	if i := slices.IndexFunc(n.all, func(one *node) bool { return one.address == address && (from == nil || one.from == from) }); i >= 0 {
		return n.all[i], nil
	}
	if n.closed || len(n.all) == nodesMax && !n.forget() {
		return nil, nil
	}
	options := n.options
	if from != nil {
		options = append(slices.Clip(options), grpc.WithAuthority(from.authority))
	}
	conn, err := grpc.NewClient(target+address, options...)
	if err != nil {
		return nil, &Error{Kind: ErrInvalid, Field: "endpoint", Message: address, cause: err}
	}
	one := &node{ZamokClient: zamokpb.NewZamokClient(conn), AdminClient: zamokpb.NewAdminClient(conn), address: address, conn: conn, from: from}
	one.relay = &node{ZamokClient: zamokpb.NewZamokClient(relaying{conn}), AdminClient: zamokpb.NewAdminClient(relaying{conn}), address: address, conn: conn}
	n.all = append(n.all, one)
	return one, nil
}

// forget makes room for an address: it lets go of one that was learnt, and whose node did nothing when it
// was asked last. Nodes move, and the present leader must be reached. The caller has the mutex.
func (n *nodes) forget() bool {
	i := slices.IndexFunc(n.all, func(one *node) bool { return !one.given && one.last != nil && !n.leads(one) })
	if i < 0 {
		return false
	}
	_ = n.all[i].conn.Close() // a call that uses it asks another node
	n.all = slices.Delete(n.all, i, i+1)
	return true
}

// leads reports whether a node is thought to lead, or relays to what does. The caller has the mutex.
func (n *nodes) leads(one *node) bool { return n.leader == one || n.leader == one.relay }

// discover learns from a node who the others are, and connects to them, so that the next leader is known
// when it is needed. It gives up silently: there may be a rule against it.
func (n *nodes) discover(ctx context.Context, one *node) {
	ctx, cancel := context.WithTimeout(ctx, patienceMax)
	defer cancel()
	members, err := one.Members(ctx, &zamokpb.MembersRequest{})
	if err != nil {
		return
	}
	for _, m := range members.GetMembers() {
		_, _ = n.learn(m.GetClient()) // it is a help, and may fail
	}
	n.warm()
}

// warm connects to every node that is not connected yet, without waiting.
func (n *nodes) warm() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, one := range n.all {
		one.conn.Connect()
	}
}

// errNotAnswered is what a round comes to that is worth another one.
var errNotAnswered = errors.New("no node did it")

// whom is which nodes a round asks.
type whom uint8

const (
	theLeader       whom = iota // itself, or by a relay if it does not answer
	theLeaderItself             // by no relay
	anyNode                     // each can do it
)

// askInTurn asks node after node: the leader as far as it is known, which an answer may name, then the others. A node that
// names a leader which has not answered in this round is asked to relay. It returns nil at the first that did it, the
// error of the first that definitely refuses, or errNotAnswered.
func (n *nodes) askInTurn(ctx context.Context, whom whom, ask func(*node) error) error {
	if err := n.pin(ctx); err != nil {
		return err
	}
	spoke := false            // a node of this client's cluster
	var limited time.Duration // the time to wait that a limit asks for
	named := make(map[*node]*node)
	for asked := make(map[*node]bool); len(asked) < nodesMax; {
		one := n.next(asked, named, whom)
		if one == nil {
			break
		}
		asked[one] = true
		err, info := ask(one), (*zamokpb.ErrorInfo)(nil)
		if other, is := err.(byOther); is {
			one, err = other.node, other.error
		}
		if whom != anyNode || ctx.Err() == nil { // a watch that its caller ends says nothing of the node
			leader := n.note(one, err, whom != anyNode)
			if info = infoOf(err); info.GetCode() == zamokpb.Code_CODE_NOT_LEADER && info.GetLeader() != "" && one.relay != nil {
				named[one] = leader
			}
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errNotAnswered
		}
		spoke = spoke || info != nil
		ofRelay := one.relay == nil && strings.HasPrefix(info.GetField(), relayLimits)
		if final := refusal(err); final != nil && !ofRelay {
			return final
		}
		if limited = max(limited, time.Duration(info.GetRetryAfter())); limited > 0 && whom != anyNode && !ofRelay {
			break // other nodes have the same limit
		}
	}
	if limited > 0 { // with jitter, since other clients may wait for the same limit
		over, cancel := context.WithTimeout(ctx, limited+rand.N(limited))
		defer cancel()
		<-over.Done()
	}
	if spoke { // what other calls met since is not this round's
		return errNotAnswered
	}
	n.resolve() // the nodes may have moved
	return n.verdict()
}

// relayLimits begins the names of the limits of a node that relays: another node may have room.
const relayLimits = "relayed-"

// next chooses the node to ask next; nil if all were asked. named are the leaders that nodes have named in this round; nil =
// one whose address is not known.
func (n *nodes) next(asked map[*node]bool, named map[*node]*node, whom whom) *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leader != nil && !asked[n.leader] && (whom == theLeader || whom == theLeaderItself && n.leader.relay != nil) {
		return n.leader
	}
	left := slices.DeleteFunc(slices.Clone(n.all), func(one *node) bool { return asked[one] })
	for one, leader := range named {
		silent := leader == one || asked[leader] && leader.last != nil && infoOf(leader.last) == nil
		if leader == nil { // it may be any of the others
			silent = len(left) == 0
		}
		if whom == theLeader && silent && !asked[one.relay] {
			return one.relay
		}
	}
	if len(left) == 0 {
		return nil
	}
	return left[rand.IntN(len(left))]
}

// seekLeader asks for the leader itself, now and then, until it is reached by no relay any more.
func (n *nodes) seekLeader() {
	for {
		over, cancel := context.WithTimeout(n.ctx, seekEvery+rand.N(seekEvery/5))
		<-over.Done()
		cancel()
		n.mu.Lock()
		n.seeking = n.leader != nil && n.leader.relay == nil && !n.closed
		seeking := n.seeking
		n.mu.Unlock()
		if !seeking {
			return
		}
		_ = n.askInTurn(n.ctx, theLeaderItself, func(one *node) error { // that it answers is noted
			ctx, cancel := context.WithTimeout(n.ctx, patienceMin)
			defer cancel()
			_, err := one.Now(ctx, &zamokpb.NowRequest{})
			return err
		})
	}
}

// bypassed reports whether the leader can be asked itself, and a node is a relay to it. It waits for nothing, since a loss
// must be reported in time: while a connection is being closed, which can take seconds, it says no.
func (n *nodes) bypassed(one *node) bool {
	if one.relay != nil || !n.mu.TryLock() {
		return false
	}
	defer n.mu.Unlock()
	return n.leader != nil && n.leader.relay != nil && n.leader.last == nil
}

// verdict is what a round comes to in which no node did it. It is final if most of the endpoints have become another
// cluster's, and no node of this client's spoke: its cluster is not there any more, and is not waited for. So it is
// if this client has never reached a node and each endpoint refuses the connection: waiting would not help against a
// mistyped address. A client that has reached a node once, or waits for one that is silent, or for a name to have
// addresses, continues trying.
func (n *nodes) verdict() error {
	n.mu.Lock()
	var strange error
	given, foreign, refusing, ours, reached := len(n.unresolved()), 0, 0, false, n.reached
	for _, one := range n.all {
		ours = ours || infoOf(one.last) != nil
		if !one.given {
			continue
		}
		given++
		if errors.Is(one.last, ErrWrongCluster) {
			foreign++
			strange = cmp.Or(strange, one.last)
		}
		if refuses(one.last) {
			refusing++
		}
	}
	n.mu.Unlock()
	switch {
	case !ours && 2*foreign > given:
		return strange
	case !reached && refusing == given:
		return n.unavailable(NotDone, errAllRefuse)
	}
	return errNotAnswered
}

// finalError is one that a further attempt must not follow, whatever it says.
type finalError struct{ error }

func (f finalError) Unwrap() error { return f.error }

// refusal is the error of a call that refuses for good, or nil if the thing is worth another try.
func refusal(err error) error {
	var final finalError
	if errors.As(err, &final) {
		return final.error
	}
	info := infoOf(err)
	if code := status.Code(err); info == nil && (code == codes.Unauthenticated || code == codes.PermissionDenied) {
		return &Error{Kind: ErrDenied, Message: plain(err).Error()} // said by what stands before the server
	}
	if info.GetCode() == zamokpb.Code_CODE_COMPACTED { // another node may remember it: see Watch
		return nil
	}
	return definite(info)
}

// note remembers how an attempt at a node, or a stream, ended: for errors, and for who leads. Leads: only the leader can
// do what was asked. It returns the leader that the error names; nil = none, or without an address.
func (n *nodes) note(one *node, err error, leads bool) (named *node) {
	named, _ = n.learn(infoOf(err).GetLeaderAddress())
	n.mu.Lock()
	defer n.mu.Unlock()
	if errors.Is(err, ErrWrongCluster) && !errors.Is(one.last, ErrWrongCluster) {
		n.log.Error("zamok: an endpoint belongs to another cluster and is ignored", "address", one.address, "error", err)
	}
	if one.last = err; one.relay != nil {
		one.relay.last = nil // it is of the round before
	}
	n.reached = n.reached || !refuses(err) // what was sent may have been done, whatever is heard later
	if err == nil || infoOf(err) != nil {
		n.resolvePause = 0
	}
	switch {
	case err == nil && leads:
		n.leader = one
		if one.relay == nil && !n.seeking && !n.closed {
			n.seeking = true
			n.background.Go(n.seekLeader)
		}
	case named != nil && n.leader == nil, err != nil && n.leader == one: // a node that lags does not replace another
		n.leader = named
	}
	return named
}

func (n *nodes) close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel() // after that, so that no goroutine asks a node in vain
	n.background.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(each(n.all, func(one *node) error { return one.conn.Close() })...)
}
