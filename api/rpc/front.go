package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/proto"

	"zamok/api/conns"
	"zamok/api/gate"
	"zamok/api/gate/limits"
	"zamok/api/zamokpb"
	raftpeer "zamok/raftnode/peer"
)

const (
	// receiveBytesMax bounds one message or frame from a client; the largest Acquire has 39 KB. A
	// frame of empty messages takes sixty times as much once it is decoded.
	receiveBytesMax = 64 << 10
	// HeaderBytesMax bounds the metadata of a call.
	HeaderBytesMax = 16 << 10
	// relayedHeaderBytesMax bounds the metadata of a relayed call. The longest caller has 38 KiB:
	// 256 groups (package identity) of 18 KiB, since bytes of its token that are not UTF-8 become
	// three each, in base64, and gRPC counts 32 bytes and the key for each.
	relayedHeaderBytesMax = 64 << 10
	// openTimeout is how long a new connection may take for its handshake.
	openTimeout = 10 * time.Second
	// pingTimeout is how long a client may take to answer a probe.
	pingTimeout = 10 * time.Second
	// pingMin is how often clients may probe this node, also without a call.
	pingMin = time.Second
	// stopWait is how long calls may take to end by themselves when the node stops cleanly.
	stopWait = time.Second
)

// Config is what a Front is made of.
type Config struct {
	Gate     *gate.Gate
	Limits   *limits.Limits
	Logger   *slog.Logger
	NotReady func() string   // why clients should use another node; "": this one is ready
	Stopping <-chan struct{} // closed when the node stops
}

// Front answers calls of gRPC.
type Front struct {
	Config
	servers []*grpc.Server
	serving sync.WaitGroup
}

// New makes a front without a listener.
func New(c Config) *Front { return &Front{Config: c} }

// ServeClients begins to serve the connections of clients, and ServeNodes those of other nodes.
// Both come before Stop.
func (f *Front) ServeClients(l net.Listener, budget *conns.Budget,
	creds credentials.TransportCredentials) {
	f.serve(l, budget, creds, HeaderBytesMax)
}

// ServeNodes begins to serve the connections of nodes that relay calls, which the handshake of
// peers has authenticated.
func (f *Front) ServeNodes(l net.Listener, budget *conns.Budget) {
	f.serve(l, budget, relayCredentials{insecure.NewCredentials()}, relayedHeaderBytesMax)
}

func (f *Front) serve(l net.Listener, budget *conns.Budget, creds credentials.TransportCredentials,
	headerBytes uint32) {
	server := grpc.NewServer(append(budget.Options(creds),
		grpc.WriteBufferSize(conns.BufferBytes),
		grpc.MaxRecvMsgSize(receiveBytesMax), grpc.MaxHeaderListSize(headerBytes),
		grpc.StaticStreamWindowSize(conns.WindowBytes),
		grpc.StaticConnWindowSize(conns.ConnWindowBytes),
		grpc.MaxConcurrentStreams(conns.StreamsPerConn), grpc.ConnectionTimeout(openTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: conns.PingIdle,
			Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(
			keepalive.EnforcementPolicy{MinTime: pingMin, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true), grpc.ChainUnaryInterceptor(f.unary),
		grpc.ChainStreamInterceptor(f.stream),
	)...)
	// The interceptors carry out the calls: none reaches these handlers.
	zamokpb.RegisterZamokServer(server, zamokpb.UnimplementedZamokServer{})
	zamokpb.RegisterAdminServer(server, zamokpb.UnimplementedAdminServer{})
	healthpb.RegisterHealthServer(server, health{notReady: f.NotReady, stopping: f.Stopping})
	reflection.Register(server) // for tools such as grpcurl
	f.servers = append(f.servers, server)
	f.serving.Go(func() {
		err := server.Serve(l)
		if err != nil && !errors.Is(err, raftpeer.ErrClosed) {
			f.Logger.Error("a listener failed; this node answers no calls there until it is "+
				"restarted", "address", l.Addr(), "error", err)
		}
	})
}

// Stop lets calls end by themselves, and ends the rest after stopWait.
func (f *Front) Stop() {
	f.each(func(server *grpc.Server) {
		cut := time.AfterFunc(stopWait, server.Stop)
		server.GracefulStop()
		cut.Stop()
	})
}

// Kill ends every call at once, and waits for that.
func (f *Front) Kill() {
	f.each((*grpc.Server).Stop)
	f.serving.Wait()
}

func (f *Front) each(end func(*grpc.Server)) {
	var ending sync.WaitGroup
	for _, server := range f.servers {
		ending.Go(func() { end(server) })
	}
	ending.Wait()
}

// isOurs reports whether a method belongs to zamok's own services, not to those of gRPC: health and
// reflection.
func isOurs(method string) bool { return strings.HasPrefix(method, "/zamok.v1.") }

// unary passes a call of ours through the gate.
func (f *Front) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	if !isOurs(info.FullMethod) {
		return handle(ctx, req)
	}
	if err := f.nameCluster(func(md metadata.MD) error {
		return grpc.SetHeader(ctx, md)
	}); err != nil {
		return nil, err
	}
	return f.Gate.Do(ctx, arrival(ctx), req.(proto.Message))
}

// stream passes a stream of ours through the gate.
func (f *Front) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handle grpc.StreamHandler) error {
	if !isOurs(info.FullMethod) {
		return f.publicStream(srv, stream, handle)
	}
	if err := f.nameCluster(stream.SetHeader); err != nil {
		return err
	}
	return f.Gate.Stream(stream.Context(), arrival(stream.Context()), info.FullMethod, stream)
}

// nameCluster names this node's cluster in the answer to a call.
func (f *Front) nameCluster(set func(metadata.MD) error) error {
	if own := f.Gate.Cluster(); own != "" {
		return set(metadata.Pairs(zamokpb.ClusterKey, own))
	}
	return nil
}

// publicStream serves a stream that needs no authentication.
func (f *Front) publicStream(srv any, stream grpc.ServerStream, handle grpc.StreamHandler) error {
	end, err := f.Limits.Open(limits.PublicStreams, conns.Of(stream.Context()).Network())
	if err != nil {
		return err
	}
	defer end()
	return handle(srv, stream)
}

// arrival is what a call of gRPC shows beside its messages.
func arrival(ctx context.Context) gate.Arrival {
	is := func(key string) bool {
		values := metadata.ValueFromIncomingContext(ctx, key)
		return len(values) == 1 && values[0] == "1"
	}
	from := gate.Arrival{
		Conn:   conns.Of(ctx),
		Tokens: metadata.ValueFromIncomingContext(ctx, zamokpb.AuthorizationKey),
		First:  is(zamokpb.FirstKey), Relay: is(zamokpb.RelayKey),
		Clusters: metadata.ValueFromIncomingContext(ctx, zamokpb.ClusterKey),
	}
	at, ok := peer.FromContext(ctx)
	if !ok || at.Addr == nil {
		return from
	}
	from.Address = at.Addr.String()
	switch info := at.AuthInfo.(type) {
	case relayInfo:
		from.Via, from.Caller = &info.node,
			metadata.ValueFromIncomingContext(ctx, zamokpb.CallerKey)
	case credentials.TLSInfo:
		if len(info.State.VerifiedChains) > 0 {
			from.Certificate = info.State.VerifiedChains[0][0]
		}
	}
	return from
}

// relayInfo is what a connection knows of the node at its other end, which relays calls.
type relayInfo struct {
	credentials.CommonAuthInfo
	node raftpeer.Server
}

// AuthType implements credentials.AuthInfo.
func (relayInfo) AuthType() string { return "zamok-peer" }

// relayCredentials are the credentials of connections of other nodes, which the handshake of peers
// has authenticated.
type relayCredentials struct {
	credentials.TransportCredentials
}

func (relayCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, relayInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		node:           conn.(*conns.Conn).Conn.(raftpeer.RelayConn).From(),
	}, nil
}
