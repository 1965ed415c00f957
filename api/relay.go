package api

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/conns"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	raftpeer "zamok/raftnode/peer"
)

const (
	// relayAsk is the metadata of a call that this node relays to the leader if it does not lead itself.
	relayAsk = "zamok-relay"
	// callerKey is the metadata of a relayed call with its caller, as the relaying node has authenticated it. It is used only on
	// connections of other nodes.
	callerKey = "zamok-caller-bin"
	// relayHeaderBytesMax bounds the metadata of a relayed call. The longest caller has 38 KiB: 256 groups (package identity) of
	// 18 KiB, since bytes of its token that are not UTF-8 become three each, in base64, and gRPC counts 32 bytes and the key for
	// each.
	relayHeaderBytesMax = 64 << 10
	// relayBytesMax bounds a leader's answer that is relayed, or a frame of its streams: more than a send
	// queue of package push holds.
	relayBytesMax = 4 << 20
	// relayConnsMax is how many connections there are to one node. Each takes streamsPerConn calls. Calls that may be
	// held open leave the last one free: renewals and releases have room whatever waits.
	relayConnsMax = 1 + ConnsDefault/streamsPerConn
	// relaysMax is how many connections of other nodes there are: more than a cluster has nodes for.
	relaysMax = 32 * relayConnsMax
	// relayIdle is after how long without a call gRPC closes a connection, until the next call.
	relayIdle = time.Minute
)

// relayConn is a connection to another node for relayed calls. It is a connection between peers, whose handshake authenticates
// both nodes, so the leader trusts the identity that a relayed call contains.
type relayConn struct {
	*grpc.ClientConn
	calls int // under way, guarded by Server.relaying
}

// relayCredentials are the credentials of connections of other nodes, which the handshake of peers has authenticated.
type relayCredentials struct {
	credentials.TransportCredentials
}

// relayInfo names the node at the other end of a relayed call's connection.
type relayInfo struct {
	credentials.CommonAuthInfo
	from raftpeer.Server
}

func (relayInfo) AuthType() string { return "zamok-peer" }

func (relayCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, relayInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		from:           conn.(*conns.Conn).Conn.(raftpeer.RelayConn).From(),
	}, nil
}

// relayedBy is the node that relayed a call. Then a break of the connection is not the client's.
func relayedBy(ctx context.Context) (from raftpeer.Server, relayed bool) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return from, false
	}
	info, relayed := p.AuthInfo.(relayInfo)
	return info.from, relayed
}

// connTo returns a connection to a node for one call, which endRelay follows: the first that has room, so
// that those which are needed no more have no calls and are closed.
func (s *Server) connTo(node raftpeer.Server, held bool) (*relayConn, error) {
	s.relaying.Lock()
	defer s.relaying.Unlock()
	if s.isStopping() {
		return nil, errStopping()
	}
	conns, most := s.relays[node], relayConnsMax
	if held {
		most--
	}
	i := slices.IndexFunc(conns, func(c *relayConn) bool { return c.calls < streamsPerConn })
	if i < 0 {
		i = len(conns)
	}
	switch {
	case i >= most && held:
		e := wire.Errorf(zamokpb.Code_CODE_OVERLOADED, "not done: this node relays %d calls that wait, and that is the most (%s); "+
			"ask the leader, %s, or again when some have ended", most*streamsPerConn, limits.RelayedCalls, node.Name)
		e.Info.Field, e.Info.RetryAfter = limits.RelayedCalls, int64(clock.Second)
		return nil, e
	case i >= most:
		i = most - 1 // it waits for the end of another call there, and none of those is held
	case i == len(conns):
		conn, err := s.dialRelay(node)
		if err != nil {
			return nil, wire.Errorf(zamokpb.Code_CODE_NOT_LEADER, "not done: it can't be relayed to the leader, %s: %v; ask that", node.Name, err)
		}
		conns = append(conns, &relayConn{ClientConn: conn})
		s.relays[node] = conns
	}
	conns[i].calls++
	return conns[i], nil
}

// endRelay follows a call on a connection.
func (s *Server) endRelay(conn *relayConn) {
	s.relaying.Lock()
	defer s.relaying.Unlock()
	conn.calls--
}

// dialRelay connects to a node, when the first call needs it.
func (s *Server) dialRelay(node raftpeer.Server) (*grpc.ClientConn, error) {
	return newRelay(node.Name, func(ctx context.Context, _ string) (net.Conn, error) { return s.node.DialRelay(ctx, node) })
}

func newRelay(name string, dial func(context.Context, string) (net.Conn, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+name,
		grpc.WithContextDialer(dial), grpc.WithDisableServiceConfig(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the connection has peer TLS, if there is any
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithStaticStreamWindowSize(windowBytes), grpc.WithStaticConnWindowSize(connWindowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(relayBytesMax), grpc.ForceCodecV2(relayCodec{})), grpc.WithIdleTimeout(relayIdle),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingIdle, Timeout: vanishedAfter}))
}

// route refuses a request for another cluster. It returns the leader's connection for a call that is to be relayed, and
// the context to call it with; endRelay follows the call. Nil: the call is this node's own to answer. Every node
// answers for its own health, and serves watches from its own history.
func (s *Server) route(ctx context.Context, method string, header func(metadata.MD) error) (context.Context, *relayConn, error) {
	if err := s.checkCluster(ctx, header); err != nil {
		return nil, nil, err
	}
	asks := metadata.ValueFromIncomingContext(ctx, relayAsk)
	if from, relayed := relayedBy(ctx); relayed {
		if !s.node.HasServer(from) {
			return nil, nil, wire.Errorf(zamokpb.Code_CODE_NOT_LEADER, "not done: %s, which relayed this, is no node of this "+
				"cluster as far as %s knows; ask another node", from.Name, s.cfg.ID)
		}
		return nil, nil, nil
	}
	if len(asks) == 0 || asks[0] != "1" || method == zamokpb.Zamok_Watch_FullMethodName {
		return nil, nil, nil
	}
	leader := s.node.LeaderServer()
	if leader == (raftpeer.Server{}) || leader.Name == s.cfg.ID {
		return nil, nil, nil // the answer of this node has the reason
	}
	held := method == zamokpb.Zamok_Acquire_FullMethodName || method == zamokpb.Zamok_Session_FullMethodName
	conn, err := s.connTo(leader, held)
	if err == nil {
		return metadata.NewOutgoingContext(ctx, s.relayMetadata(ctx)), conn, nil
	}
	if wire.Explain(err).Info.Field == limits.RelayedCalls {
		s.limits.Refused(limits.RelayedCalls, access.CallerOf(ctx).Account())
	}
	return nil, nil, err
}

// relayMetadata is the metadata of a relayed call: the authenticated caller, this node's cluster, and that the call is the first of
// its request, if it is: it is passed on once. What else the client sends stays here: the leader needs no secret, and the
// client's metadata may be as long as this node accepts.
func (s *Server) relayMetadata(ctx context.Context) metadata.MD {
	md := metadata.MD{callerKey: access.CallerOf(ctx).Values()}
	if own := s.cluster.Load(); own != nil {
		md.Set(clusterKey, *own)
	}
	if isFirst(ctx) {
		md.Set(firstKey, "1")
	}
	return md
}

// relayStream relays a stream, frame by frame.
func (s *Server) relayStream(ctx context.Context, leader *relayConn, in grpc.ServerStream, method string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, err := leader.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return s.relayFailed(false, err)
	}
	who := access.CallerOf(in.Context()).Account()
	// The goroutine ends with the client's stream, at the latest when this function has returned.
	s.busy.Go(func() {
		err := pass(in, relayedFrames{out, s.limits, who})
		if errors.Is(err, io.EOF) {
			_ = out.CloseSend()
			return
		}
		cancel(err) // the client's end broke, or the leader's: the other end is closed with it
	})
	err = pass(out, in)
	if limited := (*wire.Error)(nil); errors.As(context.Cause(ctx), &limited) {
		return limited
	}
	if !errors.Is(err, io.EOF) {
		return s.relayFailed(true, err)
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
			return fmt.Errorf("sending: %w", context.Canceled) // the reason comes from the other side's reading
		}
	}
}

// relayFailed is the error of the leader, or the reason for which it did not answer. Sent: something was put on a connection to
// it. Then what gRPC answers in its place does not say what took effect.
func (s *Server) relayFailed(sent bool, err error) error {
	if s.isStopping() {
		return wire.StreamEnded(zamokpb.Code_CODE_STOPPING, "the node that relayed this is stopping; ask another")
	}
	st, _ := status.FromError(err)
	for _, d := range st.Details() {
		switch info, ok := d.(*zamokpb.ErrorInfo); {
		case ok && info.Code == zamokpb.Code_CODE_WRONG_CLUSTER:
			return wire.Errorf(zamokpb.Code_CODE_NOT_LEADER, "not done: at the leader's address is a node of another cluster: %s", info.Message)
		case ok:
			return err
		}
	}
	if st.Code() == codes.Unimplemented {
		return wire.Errorf(zamokpb.Code_CODE_REFUSED, "not done: the leader does not know this call; upgrade it: %v", err)
	}
	if !sent {
		return wire.Errorf(zamokpb.Code_CODE_NOT_LEADER, "not done: there is no connection from here to the leader; "+
			"ask again, or another node: %v", err)
	}
	return wire.Errorf(zamokpb.Code_CODE_UNKNOWN, "the leader's answer did not come, so this may be done; look, "+
		"or send it again as it was: %v", err)
}

// clusterKey is the metadata in which a request names its cluster, and every answer the cluster of the node.
const clusterKey = "zamok-cluster"

// noteCluster keeps the id of this node's cluster, once the state machine has it. A state machine that starts
// over, because raft was closed and opened, does not have it for a while: the cluster is the same. The caller
// holds the lock of the state machine.
func (s *Server) noteCluster(m *fsm.Machine) {
	if id := m.Cluster(); s.cluster.Load() == nil && id != (fsm.ClusterID{}) {
		text := hex.EncodeToString(id[:])
		s.cluster.Store(&text)
	}
}

// clusterID is the id of this node's cluster; "": it is not known yet.
func (s *Server) clusterID() string {
	if own := s.cluster.Load(); own != nil {
		return *own
	}
	return ""
}

// checkCluster refuses a request that names another cluster than this node's, before it is relayed or
// handled.
func (s *Server) checkCluster(ctx context.Context, header func(metadata.MD) error) error {
	own, named := s.cluster.Load(), metadata.ValueFromIncomingContext(ctx, clusterKey)
	if own == nil {
		if len(named) == 0 {
			return nil
		}
		return wire.Errorf(zamokpb.Code_CODE_NOT_LEADER,
			"not done: %s does not know yet which cluster it belongs to: no leader has reached it since it started", s.cfg.ID)
	}
	if err := header(metadata.Pairs(clusterKey, *own)); err != nil {
		return err
	}
	if !slices.ContainsFunc(named, func(cluster string) bool { return cluster != *own }) {
		return nil
	}
	e := wire.Errorf(zamokpb.Code_CODE_WRONG_CLUSTER,
		"not done: %s belongs to cluster %s, and the request is meant for cluster %s", s.cfg.ID, *own, strings.Join(named, ", "))
	e.Info.Cluster = *own
	return e
}
