package api

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/types/known/emptypb"

	"zamok/api/access"
	"zamok/api/access/limits"
	"zamok/api/audit"
	"zamok/api/conns"
	"zamok/api/history"
	"zamok/api/metrics"
	"zamok/api/push"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	raftpeer "zamok/raftnode/peer"
)

const (
	// bufferBytes is each connection's buffer in each direction: there are thousands of connections,
	// and their messages are small.
	bufferBytes = 4 << 10
	// windowBytes and connWindowBytes are what a client may send ahead on one stream, and on a whole
	// connection. They are fixed, because otherwise gRPC measures the connection with a ping for nearly every
	// frame.
	windowBytes     = 64 << 10
	connWindowBytes = 1 << 20
	// receiveBytesMax bounds one message or frame from a client; the largest Acquire has 39 KB. A frame of empty messages takes
	// sixty times as much once it is decoded.
	receiveBytesMax = 64 << 10
	// headerBytesMax bounds the metadata of a call.
	headerBytesMax = 16 << 10
	// streamsPerConn bounds the calls under way on one connection; an Acquire is held open. With what each
	// may have sent before it is read, windowBytes and a message, a connection may keep 128 MiB.
	streamsPerConn = 1024
	// UnreadBytesDefault is the default of NodeConfig.UnreadBytesMax.
	UnreadBytesDefault = 64 << 20
	// relayedBudgets is how many times UnreadBytesMax the connections of other nodes have: once for each node of the largest
	// usual cluster, which keeps its own clients within UnreadBytesMax.
	relayedBudgets = 4
	// ConnsDefault is the default of NodeConfig.ConnsMax.
	ConnsDefault = 16_384
	// openTimeout is how long a new connection may take for its handshake.
	openTimeout = 10 * time.Second
	// pingIdle is after how long of silence a client is probed, pingTimeout how long it may take to
	// answer. TCP's keepalives, which cost no goroutine, notice a vanished computer earlier.
	pingIdle    = time.Minute
	pingTimeout = 10 * time.Second
	// pingMin is how often clients may probe this node, also without a call.
	pingMin = time.Second
	// stopWait is how long calls may take to end by themselves when the node stops cleanly.
	stopWait = time.Second
)

// Server answers the calls of the wire on one node.
type Server struct {
	zamokpb.UnimplementedZamokServer
	zamokpb.UnimplementedAdminServer

	cfg     *NodeConfig
	node    *raftnode.Node // set by serve
	guard   access.Guard
	hub     *push.Hub
	history *history.History
	metrics *metrics.Metrics
	limits  *limits.Limits
	audit   *audit.Log
	grants  *grantLog     // nil: grants are not audited
	budget  *conns.Budget // for unread answers and incomplete requests of clients

	relaying sync.Mutex                       // guards relays
	relays   map[raftpeer.Server][]*relayConn // to nodes that lead, or led

	grpc      []*grpc.Server            // for clients, and for nodes that relay calls; set by serve
	dropping  sync.Mutex                // held to submit the drop of a call that broke; taken by a call that begins to wait
	reading   chan struct{}             // capacity 1: full while a call reads much of the state
	turns     turns                     // of callers and their connections, for reading
	backingUp chan struct{}             // its capacity is how many there may be
	limitMet  atomic.Pointer[time.Time] // when a request was refused because of a limit; nil = never
	cluster   atomic.Pointer[string]    // the id of this node's cluster, as hex; nil = not known yet
	stopping  chan struct{}             // closed when the node stops: whatever waits here ends
	busy      sync.WaitGroup            // serving, the hub, and the goroutines of streams
}

// newServer makes what receives the events of the state machine. serve follows once there is a node.
func newServer(cfg *NodeConfig) *Server {
	s := &Server{
		cfg: cfg, history: history.New(), metrics: metrics.New(), relays: make(map[raftpeer.Server][]*relayConn),
		reading: make(chan struct{}, 1), turns: turns{of: make(map[reader]*turn)}, backingUp: make(chan struct{}, backupsMax), stopping: make(chan struct{}),
	}
	s.limits = limits.New(limits.Config{
		Set: cfg.Limits, Connections: cfg.ConnsMax, Logger: cfg.Logger, Limited: s.metrics.Limited, Clock: clock.System(),
	})
	s.budget = conns.NewBudget(cfg.UnreadBytesMax, s.refused)
	s.hub = push.NewHub(s.metrics)
	s.audit = audit.New(audit.Config{
		Out: cfg.Audit, Node: cfg.ID, Failed: unaudited(s.metrics, cfg.Logger),
		Allow: s.limits.AllowDenialLine, Omitted: s.metrics.Omitted,
	})
	if cfg.AuditGrants {
		s.grants = newGrantLog(s.audit)
	}
	return s
}

// applied passes on what an entry did, under the state machine's lock.
func (s *Server) applied(m *fsm.Machine, a fsm.Applied) {
	if s.cfg.Applied != nil {
		s.cfg.Applied(m, a)
	}
	s.hub.Applied(m, a)
	s.history.Applied(a)
	s.metrics.Applied(a)
	s.grants.Applied(m, a)
	s.noteCluster(m)
}

func (s *Server) restored(m *fsm.Machine) {
	if s.cfg.Restored != nil {
		s.cfg.Restored(m)
	}
	s.hub.Restored(m)
	s.history.Restored(m)
	s.noteCluster(m)
}

// serve gives the server its node, and begins to answer clients.
func (s *Server) serve(node *raftnode.Node) {
	s.node, s.guard = node, access.Guard{Rules: s.cfg.Rules, Denied: s.denied, Servers: node.Servers}
	s.hub.Start(node)
	s.busy.Go(func() { s.hub.Run(s.stopping) })
	s.busy.Go(func() { s.history.Run(s.stopping) })
	options := []grpc.ServerOption{
		grpc.WriteBufferSize(bufferBytes),
		grpc.MaxRecvMsgSize(receiveBytesMax), grpc.MaxHeaderListSize(headerBytesMax),
		grpc.StaticStreamWindowSize(windowBytes), grpc.StaticConnWindowSize(connWindowBytes),
		grpc.MaxConcurrentStreams(streamsPerConn), grpc.ConnectionTimeout(openTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingIdle, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMin, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	toClients := insecure.NewCredentials()
	if s.cfg.ClientTLS != nil {
		toClients = credentials.NewTLS(s.cfg.clientTLS("h2", s.cfg.tokens))
	}
	// Of options of one kind the last counts.
	toNodes := append(slices.Clone(options), grpc.MaxHeaderListSize(relayHeaderBytesMax))
	ofRelays := conns.NewBudget(relayedBudgets*s.cfg.UnreadBytesMax, s.refused)
	s.grpc = []*grpc.Server{
		s.listen(s.limited(s.cfg.Listener), append(s.budget.Options(toClients), options...)),
		s.listen(ofRelays.Listen(node.Relays(), relaysMax, nil), append(ofRelays.Options(relayCredentials{insecure.NewCredentials()}), toNodes...)),
	}
	s.cfg.Logger.Info("serving clients", "id", s.cfg.ID, "address", s.cfg.Client)
}

// listen serves calls on a listener.
func (s *Server) listen(l net.Listener, options []grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options, grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.stream))...)
	zamokpb.RegisterZamokServer(server, s)
	zamokpb.RegisterAdminServer(server, s)
	healthpb.RegisterHealthServer(server, health{server: s})
	reflection.Register(server) // for tools such as grpcurl
	s.busy.Go(func() {
		err := server.Serve(l)
		if err != nil && !errors.Is(err, raftpeer.ErrClosed) {
			s.cfg.Logger.Error("a listener failed; this node answers no calls there until it is restarted", "address", l.Addr(), "error", err)
		}
	})
	return server
}

// isOurs reports whether a method belongs to zamok's own services, not to those of gRPC: health and reflection.
func isOurs(method string) bool { return strings.HasPrefix(method, "/zamok.v1.") }

// unary is the way of every call: the cluster that it names, the relay, admission, the handler.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := s.carryOut(ctx, req, info, handle)
	return answer, ofCopy(ctx, info.FullMethod, err)
}

func (s *Server) carryOut(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if !isOurs(info.FullMethod) {
		return handle(ctx, req)
	}
	ctx, err := s.identify(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	out, leader, err := s.route(ctx, info.FullMethod, func(md metadata.MD) error { return grpc.SetHeader(ctx, md) })
	switch {
	case err != nil:
		return nil, err
	case leader != nil:
		defer s.endRelay(leader)
		end, err := s.admitRelayed(ctx, req)
		if err != nil {
			return nil, err
		}
		defer end()
		passed, err := s.relayedRequest(ctx, req)
		if err != nil {
			return nil, err
		}
		defer passed.end()
		out, stop := s.whileAllowed(out, info.FullMethod, nil) // the rules are the leader's
		defer stop()
		answer := &emptypb.Empty{} // carries the answer as unknown fields, without decoding it
		var at peer.Peer           // set by gRPC once the call was put on a connection
		err = leader.Invoke(out, info.FullMethod, passed, answer, grpc.Peer(&at))
		switch withdrawn := (*wire.Error)(nil); {
		case err == nil:
			return answer, nil
		case errors.As(context.Cause(out), &withdrawn):
			return nil, withdrawn
		}
		return nil, s.relayFailed(at.AuthInfo != nil, err)
	}
	end, err := s.admit(ctx, req)
	if err != nil {
		return nil, err
	}
	defer end()
	ctx, stop := s.whileAllowed(ctx, info.FullMethod, req)
	defer stop()
	answer, err := handle(ctx, req)
	if s.guard.IsOperation(req) {
		s.record(ctx, req, err)
	}
	s.recordStranger(ctx, "", req, err)
	if caller := access.CallerOf(ctx); err != nil {
		s.guard.Redact(caller, err)
	} else {
		s.guard.Redact(caller, answer)
	}
	return answer, err
}

// stream is the way of every stream. Its handler calls admit once it has the request.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return ofCopy(stream.Context(), info.FullMethod, s.carryStream(srv, stream, info, handle))
}

func (s *Server) carryStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if !isOurs(info.FullMethod) {
		return s.publicStream(srv, stream, handle)
	}
	ctx, err := s.identify(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	stream = &identified{ServerStream: stream, ctx: ctx, server: s, method: info.FullMethod, began: time.Now()}
	ctx, leader, err := s.route(ctx, info.FullMethod, stream.SetHeader)
	switch {
	case err != nil:
		return err
	case leader != nil:
		defer s.endRelay(leader)
		end, err := s.admitRelayed(stream.Context(), nil)
		if err != nil {
			return err
		}
		defer end()
		return s.relayStream(ctx, leader, stream, info.FullMethod)
	}
	err = handle(srv, stream)
	s.recordStranger(stream.Context(), info.FullMethod, nil, err)
	return err
}

// publicStream serves a stream that asks nobody who they are.
func (s *Server) publicStream(srv any, stream grpc.ServerStream, handle grpc.StreamHandler) error {
	end, err := s.limits.Open(limits.PublicStreams, conns.Of(stream.Context()).Network())
	if err != nil {
		return err
	}
	defer end()
	return handle(srv, stream)
}

// nameLeader adds the leader to an error, unless it is this node.
func (s *Server) nameLeader(e *wire.Error) {
	if id, address := s.node.Leader(); id != s.cfg.ID {
		e.Info.Leader, e.Info.LeaderAddress = id, address
	}
}

// announceStop ends every wait in this server, and the calls that it relays.
func (s *Server) announceStop() {
	s.relaying.Lock()
	defer s.relaying.Unlock()
	if !s.isStopping() {
		close(s.stopping)
	}
	for _, conns := range s.relays {
		for _, conn := range conns {
			_ = conn.Close() // that it is closed already is no error
		}
	}
}

// stop lets calls end by themselves, and ends the rest after stopWait.
func (s *Server) stop() {
	s.announceStop() // the clients of relayed calls ask another node
	var stopping sync.WaitGroup
	for _, server := range s.grpc {
		stopping.Go(func() {
			cut := time.AfterFunc(stopWait, server.Stop)
			server.GracefulStop()
			cut.Stop()
		})
	}
	stopping.Wait()
	s.kill()
}

// kill ends every call at once, and waits for what it started.
func (s *Server) kill() {
	s.announceStop()
	for _, server := range s.grpc {
		server.Stop()
	}
	s.hub.SetLeading(false)
	s.busy.Wait()
}

func (s *Server) isStopping() bool { return isClosed(s.stopping) }
