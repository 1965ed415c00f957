package client

import (
	"context"
	"errors"
	"fmt"
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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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
	bufferBytes  = 4 << 10
	// windowBytes and connWindowBytes are what a node may send ahead on one stream, and on all of a
	// connection. Fixed: gRPC would measure what the line takes with a ping for nearly every frame.
	windowBytes     = 256 << 10
	connWindowBytes = 1 << 20
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

	mu     sync.Mutex
	known  map[string]*node
	order  []string // as given, then as learnt
	given  int      // how many were given
	leader string   // thought to lead; "" = no idea
	closed bool
	// cluster is the id of the one that this client belongs to; "" = not known yet. Once known it stays.
	cluster, learnt string
	reached         bool // something was sent to a node, or may have been
}

type node struct {
	conn         *grpc.ClientConn
	last         error // why the latest attempt failed; nil if it did not
	wrongCluster bool  // of another cluster when it was asked last, which was logged
}

func newNodes(cfg Config) (*nodes, error) {
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = credentials.NewTLS(cfg.TLS)
	}
	connect := grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: reconnectMin, Multiplier: 2, Jitter: 0.5, MaxDelay: reconnectMax},
		MinConnectTimeout: 2 * time.Second,
	}
	n := &nodes{log: cfg.Logger, silence: cfg.RequestTimeout / surveyParts, pinning: make(chan struct{}, 1), known: make(map[string]*node)}
	n.options = []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(connect),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingPatience}),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithStaticStreamWindowSize(windowBytes), grpc.WithStaticConnWindowSize(connWindowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax)),
		grpc.WithIdleTimeout(0), // a connection that went to sleep costs its dial when it is needed most
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("zamok-go"),
		grpc.WithChainUnaryInterceptor(encodable, n.nameUnary), grpc.WithStreamInterceptor(n.nameStream),
	}
	if cfg.Dialer != nil {
		n.options = append(n.options, grpc.WithContextDialer(cfg.Dialer))
	}
	if cfg.Credentials != nil {
		n.options = append(n.options, grpc.WithPerRPCCredentials(cfg.Credentials))
	}
	for _, endpoint := range cfg.Endpoints {
		address, err := addressOf(endpoint)
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		if err := n.learn(address); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	n.given = len(n.order)
	if cfg.Cluster != "" {
		n.cluster, n.learnt = cfg.Cluster, "as it was configured"
	}
	return n, nil
}

// encodable refuses a call that can't be sent, whose text is not UTF-8. To gRPC that is a failure like any
// other, and other nodes would be asked.
func encodable(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if message, ok := req.(proto.Message); ok {
		if _, err := proto.Marshal(message); err != nil {
			return finalError{&Error{Kind: ErrInvalid, Field: "request", cause: err}}
		}
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}

// addressOf completes an endpoint with the usual port.
func addressOf(endpoint string) (string, error) {
	if _, _, err := net.SplitHostPort(endpoint); err == nil {
		return endpoint, nil
	}
	address := net.JoinHostPort(strings.Trim(endpoint, "[]"), defaultPort)
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.Contains(host, "/") {
		return "", &Error{Kind: ErrInvalid, Field: "endpoint",
			Message: fmt.Sprintf("%q is no address; write host:port, or host for port %s", endpoint, defaultPort)}
	}
	return address, nil
}

// learn takes in the address of a node.
func (n *nodes) learn(address string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || address == "" || n.known[address] != nil || len(n.order) == nodesMax && !n.forget() {
		return nil
	}
	conn, err := grpc.NewClient(target+address, n.options...)
	if err != nil {
		return &Error{Kind: ErrInvalid, Field: "endpoint", Message: address, cause: err}
	}
	n.known[address] = &node{conn: conn}
	n.order = append(n.order, address)
	return nil
}

// forget makes room for an address: it lets go of one that was learnt, and whose node did nothing when it
// was asked last. Nodes move, and the present leader must be reached. The caller has the mutex.
func (n *nodes) forget() bool {
	for i := n.given; i < len(n.order); i++ {
		address := n.order[i]
		if one := n.known[address]; one.last != nil && address != n.leader {
			_ = one.conn.Close() // who uses it asks another
			delete(n.known, address)
			n.order = slices.Delete(n.order, i, i+1)
			return true
		}
	}
	return false
}

// discover learns from a node who the others are, and connects to them, so that the next leader is known
// when it is needed. It gives up silently: there may be a rule against it.
func (n *nodes) discover(ctx context.Context, conn *grpc.ClientConn) {
	ctx, cancel := context.WithTimeout(ctx, patienceMax)
	defer cancel()
	members, err := zamokpb.NewAdminClient(conn).Members(ctx, &zamokpb.MembersRequest{})
	if err != nil {
		return
	}
	for _, m := range members.GetMembers() {
		if _, err := addressOf(m.GetClient()); err == nil {
			_ = n.learn(m.GetClient()) // it is a help, and may fail
		}
	}
	n.warm()
}

// warm connects to every node that is not connected yet, without waiting.
func (n *nodes) warm() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, one := range n.known {
		one.conn.Connect()
	}
}

// candidates are all nodes: whom we think to lead first, the others in any order.
func (n *nodes) candidates() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	order := slices.Clone(n.order)
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	if i := slices.Index(order, n.leader); i > 0 {
		order[0], order[i] = order[i], order[0]
	}
	return order
}

// askInTurn asks node after node: first whom we think to lead, next whom an answer names, then the rest. It
// ends with nil at the first that did it, and with its error at the first that definitely refuses. Otherwise
// its error is nobody: what is worth another round.
func (n *nodes) askInTurn(ctx context.Context, ask func(conn *grpc.ClientConn) error) (err error, nobody bool) {
	if err, nobody := n.pin(ctx); err != nil || nobody {
		return err, nobody
	}
	left, heard := n.candidates(), tally{of: n.given}
	asked := make(map[string]bool, len(left))
	for len(left) > 0 {
		address := left[0]
		left = left[1:]
		conn := n.conn(address)
		if conn == nil || asked[address] { // nil: forgotten meanwhile
			continue
		}
		asked[address] = true
		err := ask(conn)
		info := infoOf(err)
		n.note(address, err)
		if err == nil {
			return nil, false
		}
		if ctx.Err() != nil {
			return contextEnd(ctx), true
		}
		if final := refusal(err, info); final != nil {
			return final, false
		}
		heard.count(n.isGiven(address), err)
		if next := info.GetLeaderAddress(); next != "" && !asked[next] {
			if n.learn(next) == nil && n.conn(next) != nil {
				left = append([]string{next}, left...)
			}
		}
	}
	return n.verdict(&heard)
}

// askAny asks node after node, in any order, for what each of them can do.
func (n *nodes) askAny(ctx context.Context, ask func(conn *grpc.ClientConn) error) (err error, nobody bool) {
	if err, nobody := n.pin(ctx); err != nil || nobody {
		return err, nobody
	}
	left, heard := n.candidates(), tally{of: n.given}
	rand.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
	for _, address := range left {
		conn := n.conn(address)
		if conn == nil {
			continue
		}
		err := ask(conn)
		if err == nil || ctx.Err() != nil {
			return err, err != nil
		}
		info := infoOf(err)
		if final := refusal(err, info); final != nil {
			return final, false
		}
		heard.count(n.isGiven(address), err)
		n.connectionBroke(conn, err, info.GetLeaderAddress())
	}
	return n.verdict(&heard)
}

// verdict is what a round comes to in which no node did it.
func (n *nodes) verdict(heard *tally) (err error, nobody bool) {
	if err, nobody = heard.verdict(); nobody {
		err = n.allRefuse()
	}
	return err, err == nil
}

func (n *nodes) isGiven(address string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.order[:n.given], address)
}

// finalError is one that a further attempt must not follow, whatever it says.
type finalError struct{ error }

func (f finalError) Unwrap() error { return f.error }

func refusal(err error, info *zamokpb.ErrorInfo) error {
	var final finalError
	if errors.As(err, &final) {
		return final.error
	}
	if code := status.Code(err); info == nil && (code == codes.Unauthenticated || code == codes.PermissionDenied) {
		return &Error{Kind: ErrDenied, Message: plain(err).Error()} // said by what stands before the server
	}
	return definite(info)
}

func (n *nodes) conn(address string) *grpc.ClientConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if one := n.known[address]; one != nil {
		return one.conn
	}
	return nil
}

// note remembers how an attempt at a node ended, for errors, and who leads.
func (n *nodes) note(address string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	one := n.known[address]
	if one == nil {
		return // forgotten meanwhile
	}
	n.failed(address, one, err)
	if err == nil {
		n.leader = address
	}
}

// failed remembers how an attempt at a node ended. The caller has the mutex.
func (n *nodes) failed(address string, one *node, err error) {
	one.last = err
	n.reached = n.reached || !refuses(err) // what was sent may have been done, whatever is heard later
	if err != nil && n.leader == address {
		n.leader = ""
	}
	before := one.wrongCluster
	if one.wrongCluster = errors.Is(err, ErrWrongCluster); one.wrongCluster && !before {
		n.log.Error("zamok: an endpoint belongs to another cluster and is ignored", "address", address, "error", err)
	}
}

// connectionBroke remembers that a stream ended, and whom its node named as the leader.
func (n *nodes) connectionBroke(conn *grpc.ClientConn, cause error, leader string) {
	if leader != "" && n.learn(leader) != nil {
		leader = ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for address, one := range n.known {
		if one.conn == conn {
			n.failed(address, one, cause)
			break
		}
	}
	if leader != "" {
		n.leader = leader
	}
}

// unavailable is the error that names every node.
func (n *nodes) unavailable(outcome Outcome, cause error) *UnavailableError {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := &UnavailableError{Outcome: outcome, cause: cause}
	for _, address := range n.order {
		last := n.known[address].last
		if last == nil {
			last = errNoAnswer
		}
		e.Nodes = append(e.Nodes, NodeError{Address: address, Err: plain(last)})
	}
	return e
}

// plain is an error in the server's own words, or the connection's, without those of gRPC. It wraps nothing but
// ErrWrongCluster: what one call met must not be found in the error of a later one.
func plain(err error) error {
	s, ok := status.FromError(err)
	switch info := infoOf(err); {
	case info.GetMessage() != "":
		return errors.New(info.GetMessage())
	case ok && s.Code() == codes.DeadlineExceeded:
		return errNoAnswer
	case ok:
		return errors.New(ofConnection(s.Message()))
	case errors.Is(err, ErrWrongCluster):
		return err
	}
	return errors.New(err.Error())
}

// allRefuse is an error if this client has never reached a node and can't connect to any of its endpoints, each of
// which refuses: waiting would not help against a mistyped address. Who has reached a node once, or waits for one that
// is silent, tries on.
func (n *nodes) allRefuse() error {
	n.mu.Lock()
	hopeless := !n.reached
	for _, address := range n.order[:n.given] {
		hopeless = hopeless && refuses(n.known[address].last)
	}
	n.mu.Unlock()
	if !hopeless {
		return nil
	}
	return n.unavailable(NotDone, errAllRefuse)
}

// refuses tells of an error whether nothing was sent, because there was no connection, for a reason other than silence.
func refuses(err error) bool {
	means := status.Convert(err).Message()
	return err != nil && infoOf(err) == nil && unconnected(means) && ofConnection(means) != silent
}

var errAllRefuse = errors.New("no endpoint leads to a node; start the nodes, or correct the endpoints")

const (
	connectionError = "connection error"
	silent          = "nothing answers there"
	isHangUp        = "it hangs up before it says anything: it wants TLS, or a certificate, or is another program"
)

// connections are what gRPC says of a connection that did not come about, and what that means: the texts are
// gRPC's and the system's, and what is not here is told as it is.
var connections = []struct{ heard, means string }{
	{"connection refused", "nobody listens there (connection refused)"},
	{"looked like an HTTP/1.1 header", "this is a port for HTTP/1.1, as a node's HTTP port is: name the node's port for clients"},
	{"first record does not look like a TLS handshake", "what listens there does not talk TLS, and this client does: " +
		"leave TLS off, or name a port with TLS"},
	{"http2: frame too large", "what listens there wants TLS, or is no port for clients but one for other nodes"},
	{"server preface: EOF", isHangUp},
	{"connection reset by peer", isHangUp},
	{"broken pipe", isHangUp},
	{"tls: no application protocol", "it talks TLS, and not gRPC: name the node's port for clients"},
	{"remote error: tls: ", "the node wants a certificate of this client that it can trust"},
	{"certificate signed by unknown authority", "the node's certificate is of no authority that this client trusts"},
	{"no such host", "there is no host of this name"},
	{"i/o timeout", silent},
	{"context deadline exceeded", silent},
}

// unconnected tells what gRPC says of a connection that did not come about from what it says of a call. The one error
// that it passes on without a word of its own is that of the very first write; later ones it sees as errors of reading.
func unconnected(text string) bool {
	return strings.HasPrefix(text, connectionError) || strings.HasPrefix(text, "write tcp ")
}

func ofConnection(text string) string {
	if !unconnected(text) {
		return text
	}
	for _, c := range connections {
		if strings.Contains(text, c.heard) {
			return c.means
		}
	}
	return text
}

func (n *nodes) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	var errs []error
	for _, one := range n.known {
		errs = append(errs, one.conn.Close())
	}
	return errors.Join(errs...)
}

// pause is a wait between attempts that grows, with jitter: a thousand clients that lost one leader must
// not come to the next in one moment.
type pause struct{ next time.Duration }

const (
	pauseMin = 20 * time.Millisecond
	pauseMax = 500 * time.Millisecond
)

// wait returns false if the context ended first.
func (p *pause) wait(ctx context.Context) bool {
	p.next = min(max(2*p.next, pauseMin), pauseMax)
	timer := time.NewTimer(p.next/2 + rand.N(p.next))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
