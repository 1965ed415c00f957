package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"zamok/api/conns"
	"zamok/api/gate"
	"zamok/api/gate/limits"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	raftpeer "zamok/raftnode/peer"
)

const (
	// bytesMax bounds a leader's answer that is relayed, or a frame of its streams: more than a
	// send queue of package push holds.
	bytesMax = 4 << 20
	// connsMax is how many connections there are to one node. Each takes conns.StreamsPerConn
	// calls. Calls that may be held open leave the last one free: renewals and releases have room
	// whatever waits.
	connsMax = 1 + conns.MaxDefault/conns.StreamsPerConn
	// ConnsMax is how many connections of other nodes there are: more than a cluster has nodes for.
	ConnsMax = 32 * connsMax
	// idle is after how long without a call gRPC closes a connection, until the next call.
	idle = time.Minute
)

// conn is a connection to another node for relayed calls. It is a connection between peers, whose
// handshake authenticates both nodes, so the leader trusts the identity that a relayed call
// contains.
type conn struct {
	*grpc.ClientConn
	calls int // in flight, guarded by Relay.mu
}

// Relay passes calls on to the node that leads. It is safe for concurrent use.
type Relay struct {
	Config
	node Node // set by Start
	busy sync.WaitGroup

	mu    sync.Mutex                  // guards conns
	conns map[raftpeer.Server][]*conn // to nodes that lead, or led
}

// Config is what a Relay is made of.
type Config struct {
	Limits   *limits.Limits
	Cluster  func() string   // the id of this node's cluster; "": it is not known yet
	Stopping <-chan struct{} // closed when the node stops: no call is relayed any more
}

// Node connects to other nodes.
type Node interface {
	DialRelay(context.Context, raftpeer.Server) (net.Conn, error)
}

// New makes a relay, and Start gives it its node. No call may come before.
func New(c Config) *Relay {
	return &Relay{Config: c, conns: make(map[raftpeer.Server][]*conn)}
}

// Start gives the relay its node.
func (r *Relay) Start(node Node) { r.node = node }

// Close ends the calls that are relayed, after Stopping was closed.
func (r *Relay) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range r.conns {
		for _, c := range all {
			_ = c.Close() // that it is closed already is no error
		}
	}
}

// Wait waits until nothing of the relay runs any more.
func (r *Relay) Wait() { r.busy.Wait() }

func (r *Relay) isStopping() bool {
	select {
	case <-r.Stopping:
		return true
	default:
		return false
	}
}

// connTo returns a connection to a node for one call, which endCall follows: the first that has
// room, so that those which are superfluous become empty and are closed.
func (r *Relay) connTo(ctx context.Context, node raftpeer.Server, held bool) (*conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isStopping() {
		return nil, wire.StreamEnded(zamokpb.Code_CODE_STOPPING, "this node is stopping")
	}
	open, most := r.conns[node], connsMax
	if held {
		most--
	}
	i := slices.IndexFunc(open, func(c *conn) bool { return c.calls < conns.StreamsPerConn })
	if i < 0 {
		i = len(open)
	}
	switch {
	case i >= most && held:
		r.Limits.CountRefusal(limits.RelayedCalls, gate.CallerOf(ctx).Principal())
		e := wire.Errorf(zamokpb.Code_CODE_OVERLOADED,
			"not done: this node relays %d calls that wait, and that is the most (%s); use the "+
				"leader, %s, or send it again when some have ended", most*conns.StreamsPerConn,
			limits.RelayedCalls, node.Name)
		e.Info.Field, e.Info.RetryAfter = limits.RelayedCalls, int64(clock.Second)
		return nil, e
	case i >= most:
		i = most - 1 // it waits for the end of another call there, and none of those is held
	case i == len(open):
		dialled, err := r.dial(node)
		if err != nil {
			return nil, wire.Errorf(zamokpb.Code_CODE_NOT_LEADER,
				"not done: it can't be relayed to the leader, %s: %v; use that node",
				node.Name, err)
		}
		open = append(open, &conn{ClientConn: dialled})
		r.conns[node] = open
	}
	open[i].calls++
	return open[i], nil
}

// endCall follows a call on a connection.
func (r *Relay) endCall(conn *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	conn.calls--
}

// dial connects to a node, when the first call needs it.
func (r *Relay) dial(node raftpeer.Server) (*grpc.ClientConn, error) {
	return newConn(node.Name, func(ctx context.Context, _ string) (net.Conn, error) {
		return r.node.DialRelay(ctx, node)
	})
}

func newConn(name string,
	dial func(context.Context, string) (net.Conn, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+name,
		grpc.WithContextDialer(dial), grpc.WithDisableServiceConfig(),
		// the connection has peer TLS, if there is any
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(conns.BufferBytes), grpc.WithWriteBufferSize(conns.BufferBytes),
		grpc.WithStaticStreamWindowSize(conns.WindowBytes),
		grpc.WithStaticConnWindowSize(conns.ConnWindowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(bytesMax),
			grpc.ForceCodecV2(relayCodec{})), grpc.WithIdleTimeout(idle),
		grpc.WithKeepaliveParams(
			keepalive.ClientParameters{Time: conns.PingIdle, Timeout: conns.VanishedAfter}))
}

// Call relays a call with one response to the leader.
func (r *Relay) Call(ctx context.Context, leader raftpeer.Server, d *gate.Request,
	request proto.Message) (proto.Message, error) {
	conn, err := r.connTo(ctx, leader, d.Lasts)
	if err != nil {
		return nil, err
	}
	defer r.endCall(conn)
	passed, err := r.relayedRequest(ctx, d, request)
	if err != nil {
		return nil, err
	}
	defer passed.end()
	answer := &emptypb.Empty{} // carries the answer as unknown fields, without decoding it
	var at peer.Peer           // set by gRPC once the call was put on a connection
	err = conn.Invoke(r.outgoing(ctx), d.Method, passed, answer, grpc.Peer(&at))
	switch withdrawn := (*wire.Error)(nil); {
	case err == nil:
		return answer, nil
	case errors.As(context.Cause(ctx), &withdrawn):
		return nil, withdrawn
	}
	return nil, r.failed(at.AuthInfo != nil, err)
}

// outgoing is the context of a relayed call. Its metadata are the authenticated caller, this node's
// cluster, and that the call is the first of its request, if it is: it is passed on once. What else
// the client sends stays here: the leader needs no secret, and the client's metadata may be as long
// as this node accepts.
func (r *Relay) outgoing(ctx context.Context) context.Context {
	md := metadata.MD{zamokpb.CallerKey: gate.CallerOf(ctx).Values()}
	if own := r.Cluster(); own != "" {
		md.Set(zamokpb.ClusterKey, own)
	}
	if gate.IsFirst(ctx) {
		md.Set(zamokpb.FirstKey, "1")
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// Stream relays a stream to the leader, frame by frame.
func (r *Relay) Stream(ctx context.Context, leader raftpeer.Server, d *gate.Request,
	in gate.Messages) error {
	conn, err := r.connTo(ctx, leader, d.Lasts)
	if err != nil {
		return err
	}
	defer r.endCall(conn)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, err := conn.NewStream(r.outgoing(ctx),
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, d.Method)
	if err != nil {
		return r.failed(false, err)
	}
	who := gate.CallerOf(ctx).Principal()
	// The goroutine ends with the client's stream, at the latest when this function has returned.
	r.busy.Go(func() {
		err := pass(in, relayedFrames{out, r.Limits, who})
		if errors.Is(err, io.EOF) {
			_ = out.CloseSend()
			return
		}
		cancel(err) // the client's end broke, or the leader's: the other end is closed with it
	})
	err = pass(out, in)
	if refused := (*wire.Error)(nil); errors.As(context.Cause(ctx), &refused) {
		return refused
	}
	if !errors.Is(err, io.EOF) {
		return r.failed(true, err)
	}
	return nil
}

// pass carries frames until one end fails; io.EOF: from ended cleanly.
func pass(from interface{ RecvMsg(any) error }, to interface{ SendMsg(any) error }) error {
	for {
		frame := &emptypb.Empty{}
		if err := from.RecvMsg(frame); err != nil {
			return err
		}
		if err := to.SendMsg(frame); errors.As(err, new(*wire.Error)) {
			return err
		} else if err != nil {
			// the reason comes from the other side's reading
			return fmt.Errorf("sending: %w", context.Canceled)
		}
	}
}

// failed is the error of the leader, or the reason for which it did not answer. Sent: something was
// put on a connection to it. Then what gRPC answers in its place does not say what took effect.
func (r *Relay) failed(sent bool, err error) error {
	if r.isStopping() {
		return wire.StreamEnded(zamokpb.Code_CODE_STOPPING,
			"the node that relayed this is stopping; use another node")
	}
	st, _ := status.FromError(err)
	for _, d := range st.Details() {
		switch info, ok := d.(*zamokpb.ErrorInfo); {
		case ok && info.Code == zamokpb.Code_CODE_WRONG_CLUSTER:
			return wire.Errorf(zamokpb.Code_CODE_NOT_LEADER,
				"not done: at the leader's address is a node of another cluster: %s", info.Message)
		case ok:
			return wire.OfLeader(info)
		}
	}
	if st.Code() == codes.Unimplemented {
		return wire.Errorf(zamokpb.Code_CODE_REFUSED,
			"not done: the leader does not know this call; upgrade it: %v", err)
	}
	if !sent {
		return wire.Errorf(zamokpb.Code_CODE_NOT_LEADER,
			"not done: there is no connection from here to the leader; send it again, or to "+
				"another node: %v", err)
	}
	return wire.Errorf(zamokpb.Code_CODE_UNKNOWN,
		"the leader's answer did not come, so this may be done; look, or send it again as "+
			"it was: %v", err)
}
