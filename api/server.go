package api

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
)

const (
	// bufferBytes is each connection's buffer in each direction: there are thousands of connections,
	// and what they carry is small.
	bufferBytes = 4 << 10
	// windowBytes and connWindowBytes are what a client may send ahead on one stream, and on all of a
	// connection. Fixed: gRPC would measure what the line takes with a ping for nearly every frame.
	windowBytes     = 64 << 10
	connWindowBytes = 1 << 20
	// headerBytesMax bounds the metadata of a call.
	headerBytesMax = 16 << 10
	// streamsPerConn bounds the calls under way on one connection; an Acquire is held open. With what each may have
	// sent before it is read, windowBytes and a message, a connection may keep 224 MiB.
	streamsPerConn = 1024
	// connsDefault is how many connections a node has at once if nobody says otherwise.
	connsDefault = 16_384
	// openTimeout is how long a new connection may take to begin to speak.
	openTimeout = 10 * time.Second
	// pingIdle is after how long of silence a client is probed, pingTimeout how long it may take to
	// answer. TCP's keepalives, which cost no goroutine, notice a vanished machine earlier.
	pingIdle    = 30 * time.Second
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

	id           string
	node         *raftnode.Node // set by start
	hub          *hub
	history      *history
	tally        *tally
	appliedTimes appliedTimes
	relays       *relays
	authorize    Authorize
	observer     *Observer
	log          *slog.Logger

	grpc      *grpc.Server           // set by serve
	reading   chan struct{}          // capacity 1: full while a call reads much of the machine
	backingUp chan struct{}          // its capacity is how many there may be
	clusterID fsm.ClusterID          // as in cluster; guarded by the machine's lock
	cluster   atomic.Pointer[string] // the id of this node's cluster, as hex; nil = not known yet
	stopping  chan struct{}          // closed when the node stops: who waits for something here ends
	stopOnce  sync.Once
	busy      sync.WaitGroup // serving, the hub, and senders of streams that are over
}

// newServer makes what the machine tells its events to. start and serve follow once there is a node.
func newServer(cfg nodeSettings) *Server {
	return &Server{
		id: cfg.ID, hub: newHub(cfg.Observer), history: newHistory(), tally: newTally(cfg.Observer),
		relays: newRelays(cfg.Dial, cfg.ClientTLS), authorize: cfg.Authorize, observer: cfg.Observer,
		log: cfg.Logger, reading: make(chan struct{}, 1), backingUp: make(chan struct{}, backupsMax), stopping: make(chan struct{}),
	}
}

// applied tells everybody here of an applied entry, under the machine's lock.
func (s *Server) applied(m *fsm.Machine, a fsm.Applied) {
	s.hub.applied(m, a)
	s.history.applied(a)
	s.appliedTimes.applied(a)
	s.tally.applied(a)
	s.noteCluster(m)
}

func (s *Server) restored(m *fsm.Machine) {
	s.hub.restored(m)
	s.history.restored(m)
	s.appliedTimes.restored(m)
	s.noteCluster(m)
}

func (s *Server) setLeading(open bool) {
	s.hub.setLeading(open)
	s.tally.setLeading(open)
}

// start puts the node behind the calls.
func (s *Server) start(node *raftnode.Node) {
	s.node, s.hub.node = node, node
	s.busy.Go(func() { s.hub.run(s.stopping) })
}

// serve begins to answer on a listener, which stop closes.
func (s *Server) serve(l net.Listener, secure *tls.Config, conns int) {
	options := []grpc.ServerOption{
		grpc.ReadBufferSize(bufferBytes), grpc.WriteBufferSize(bufferBytes),
		grpc.MaxRecvMsgSize(receiveBytesMax), grpc.MaxHeaderListSize(headerBytesMax),
		grpc.StaticStreamWindowSize(windowBytes), grpc.StaticConnWindowSize(connWindowBytes),
		grpc.MaxConcurrentStreams(streamsPerConn), grpc.ConnectionTimeout(openTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingIdle, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMin, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(s.checkClusterUnary, s.relayUnary), grpc.ChainStreamInterceptor(s.checkClusterStream, s.relayStream),
		grpc.WaitForHandlers(true),
	}
	if secure != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secure)))
	}
	s.grpc = grpc.NewServer(options...)
	zamokpb.RegisterZamokServer(s.grpc, s)
	zamokpb.RegisterAdminServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, health{server: s})
	s.busy.Go(func() {
		if err := s.grpc.Serve(&limitedListener{Listener: l, free: make(chan struct{}, conns), log: s.log}); err != nil {
			s.log.Error("the client listener failed; this node serves no clients until it is restarted", "error", err)
		}
	})
}

// announceStop ends every wait in this server.
func (s *Server) announceStop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// stop ends every call: those that can, by themselves, the rest after stopWait.
func (s *Server) stop() {
	s.announceStop()
	s.relays.close() // what was relayed is asked of another node
	cut := time.AfterFunc(stopWait, s.grpc.Stop)
	s.grpc.GracefulStop()
	cut.Stop()
	s.kill()
}

// kill ends every call at once, and waits for what it started.
func (s *Server) kill() {
	s.announceStop()
	s.grpc.Stop()
	s.relays.close()
	s.busy.Wait()
}

// limitedListener is a listener that closes what would be one connection too many.
type limitedListener struct {
	net.Listener
	free       chan struct{} // its capacity is how many there may be
	log        *slog.Logger
	lastLogged time.Time // when a refusal was logged last; Accept is called by one goroutine
}

// refusalEvery is how often refused connections are logged.
const refusalEvery = 10 * time.Second

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &trackedConn{Conn: conn, done: func() { <-l.free }, reading: make(chan struct{}, 1)}, nil
		default:
		}
		_ = conn.Close()
		if time.Since(l.lastLogged) > refusalEvery {
			l.lastLogged = time.Now()
			l.log.Warn("connection refused: the limit of client connections is reached", "limit", cap(l.free), "from", conn.RemoteAddr())
		}
	}
}

// health answers grpc.health.v1: a node serves while it is ready, as /readyz says it too.
type health struct {
	healthpb.UnimplementedHealthServer
	server *Server
}

// healthLook is how often Watch looks.
const healthLook = time.Second

func (h health) status(service string) healthpb.HealthCheckResponse_ServingStatus {
	switch service {
	case "", zamokpb.Zamok_ServiceDesc.ServiceName, zamokpb.Admin_ServiceDesc.ServiceName:
	default:
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	}
	if h.server.isStopping() || notReadyReason(h.server.node.Status()) != "" {
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVING
}

func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

func (h health) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	now := h.status(req.Service)
	if now == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "there is no service %q here", req.Service)
	}
	return &healthpb.HealthCheckResponse{Status: now}, nil
}

func (h health) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	all := make(map[string]*healthpb.HealthCheckResponse)
	for _, service := range []string{"", zamokpb.Zamok_ServiceDesc.ServiceName, zamokpb.Admin_ServiceDesc.ServiceName} {
		all[service] = &healthpb.HealthCheckResponse{Status: h.status(service)}
	}
	return &healthpb.HealthListResponse{Statuses: all}, nil
}

func (h health) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	tick := time.NewTicker(healthLook)
	defer tick.Stop()
	sent := healthpb.HealthCheckResponse_UNKNOWN
	for {
		if now := h.status(req.Service); now != sent {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-h.server.stopping:
			return nil
		}
	}
}
