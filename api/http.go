package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"zamok/api/access"
	"zamok/api/access/rules"
	"zamok/api/conns"
	"zamok/api/web"
	"zamok/api/zamokpb"
	"zamok/raftnode"
)

const (
	// httpHeaderWait is how long the head of a request may take to arrive, and as long again its body; httpIdle how long
	// a connection stays for the next one.
	httpHeaderWait = 5 * time.Second
	httpIdle       = time.Minute
	// writeStuck is how long a write to the disk may take before the node is not ready.
	writeStuck = 3 * time.Second
)

// serveHTTP begins to serve /v1/, /metrics, /healthz, /readyz and, on request, profiles, if there is a port for that. It
// serves from before the node has started, which may wait for other nodes, until after the node has ended.
func (n *Node) serveHTTP() {
	s, cfg := n.server, n.cfg
	if cfg.httpListener == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", n.webHandler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { respond(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		code, text := http.StatusOK, "ready"
		if reason := s.notReady(n.startedRaft()); reason != "" {
			code, text = http.StatusServiceUnavailable, "not ready: "+reason
		} else if left := n.raft.Status().HoldOff; left > 0 {
			text += fmt.Sprintf("; no lock is granted for another %v: a backup was restored", left.Duration().Round(time.Second))
		}
		respond(w, code, text)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		s.metrics.Serve(w, r, n.startedRaft(), s.hub.Counts().Streams, cfg.Version, cfg.certificateExpiry(), cfg.Files())
	})
	if cfg.Profile {
		mux.HandleFunc("/debug/pprof/", s.forOperators(pprof.Index))
		mux.HandleFunc("/debug/pprof/cmdline", s.forOperators(pprof.Cmdline))
		mux.HandleFunc("/debug/pprof/profile", s.forOperators(pprof.Profile))
		mux.HandleFunc("/debug/pprof/symbol", s.forOperators(pprof.Symbol))
		mux.HandleFunc("/debug/pprof/trace", s.forOperators(pprof.Trace))
	}
	n.http = newHTTPServer(s.budget.Handler(s.named(withCertificate(mux))), cfg.Logger)
	listener := s.limited(cfg.httpListener)
	if cfg.ClientTLS != nil {
		listener = tls.NewListener(listener, cfg.clientTLS("http/1.1", true))
	}
	n.served.Go(func() {
		err := n.http.Serve(listener)
		if !errors.Is(err, http.ErrServerClosed) {
			cfg.Logger.Error("the HTTP server failed; locks over HTTP, metrics and health are not served until the node is restarted", "error", err)
		}
	})
}

func newHTTPServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: httpHeaderWait, ReadTimeout: 2 * httpHeaderWait, IdleTimeout: httpIdle,
		MaxHeaderBytes: headerBytesMax,
		ConnContext:    conns.WithConn,
		ErrorLog:       slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// named names this node's cluster in every answer.
func (s *Server) named(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &namedAnswer{w, s}
		next.ServeHTTP(a, r)
		a.name() // of an answer without a body
	})
}

// namedAnswer sets the header when the answer begins: a node that has just started learns its cluster meanwhile.
type namedAnswer struct {
	http.ResponseWriter
	server *Server
}

func (a *namedAnswer) name() {
	if id := a.server.clusterID(); id != "" {
		a.Header().Set(clusterKey, id)
	}
}

func (a *namedAnswer) WriteHeader(code int) {
	a.name()
	a.ResponseWriter.WriteHeader(code)
}

func (a *namedAnswer) Write(data []byte) (int, error) {
	a.name() // changes nothing of an answer that has begun
	return a.ResponseWriter.Write(data)
}

// FlushError is for http.ResponseController: the answer may begin with it.
func (a *namedAnswer) FlushError() error {
	a.name()
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (a *namedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// withCertificate adds the client's certificate to each request, since ConnContext runs before the handshake.
func withCertificate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, ok := peer.FromContext(r.Context()); ok && r.TLS != nil {
			secured := &peer.Peer{Addr: p.Addr, AuthInfo: credentials.TLSInfo{State: *r.TLS}}
			r = r.WithContext(peer.NewContext(r.Context(), secured))
		}
		next.ServeHTTP(w, r)
	})
}

// forOperators restricts a profile to callers that may operate, and records who asked for it. It works before the node has
// started, so it is not a call of gRPC.
func (s *Server) forOperators(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := web.CheckOrigin(r, s.cfg.isHTTPHost, false); err != nil {
			respond(w, http.StatusForbidden, err.Error())
			return
		}
		call := "pprof " + path.Base(r.URL.Path)
		shown := metadata.MD{access.AuthorizationKey: r.Header.Values(access.AuthorizationKey)}
		ctx, err := s.identify(metadata.NewIncomingContext(r.Context(), shown), call)
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			respond(w, http.StatusUnauthorized, err.Error())
			return
		}
		guard := access.Guard{Rules: s.cfg.Rules}
		if err := guard.AdmitOperator(access.CallerOf(ctx)); err != nil {
			s.metrics.Denied(string(rules.Operate))
			s.recordDenial(ctx, auditEvent(ctx, call, nil, err))
			respond(w, http.StatusForbidden, err.Error())
			return
		}
		end, err := s.settle(ctx, nil, func() {})
		if err != nil {
			respond(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		defer end()
		s.audit.Record(auditEvent(ctx, call, nil, nil))
		serve(w, r)
	}
}

// webHandler serves /v1/.
func (n *Node) webHandler() http.Handler {
	s := n.server
	return web.New(web.Config{
		Conn: newLocalConn(s), Node: n.cfg.ID, Cluster: s.clusterID, IsHost: n.cfg.isHTTPHost, Stopping: s.stopping,
		Started:  func() bool { return n.startedRaft() != nil },
		NotReady: func() string { return s.notReady(n.startedRaft()) },
	})
}

// isHTTPHost reports whether a name in the Host of a request is this node's.
func (s *NodeConfig) isHTTPHost(name string) bool {
	return slices.ContainsFunc(append([]string{s.Advertise, s.hostname}, s.HTTPHosts...), func(own string) bool {
		return own != "" && strings.EqualFold(own, name)
	})
}

// startedRaft is the node's state machine; nil: the node has not started.
func (n *Node) startedRaft() *raftnode.Node {
	if !isClosed(n.started) {
		return nil
	}
	return n.raft
}

func respond(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	fmt.Fprintln(w, text)
}

// notReady is why clients should use another node, if raft is that of this node, or nil before it has started; "": the
// node is ready.
func (s *Server) notReady(raft *raftnode.Node) string {
	if s.isStopping() {
		return "the node is stopping"
	}
	if raft == nil {
		return "the node is starting; a new cluster begins when all of its nodes have answered"
	}
	switch status := raft.Status(); {
	case status.Owes != "":
		return status.Owes
	case status.Leader == "":
		return "no leader is known"
	case status.Leader == status.ID && !status.Leading:
		return "the node was elected and does not serve yet"
	case status.Refusing != "":
		return "the log of this node takes no entries: " + status.Refusing
	case status.Writing > writeStuck:
		return fmt.Sprintf("a write to the disk has been going on for %v", status.Writing.Round(time.Second))
	}
	return ""
}

// health answers grpc.health.v1: a node serves while it is ready, as /readyz reports.
type health struct {
	healthpb.UnimplementedHealthServer
	server *Server
}

// healthEvery is how often Watch compares the status.
const healthEvery = time.Second

// services are those whose health may be asked for; "" is the node.
var services = []string{"", zamokpb.Zamok_ServiceDesc.ServiceName, zamokpb.Admin_ServiceDesc.ServiceName}

func (h health) status(service string) healthpb.HealthCheckResponse_ServingStatus {
	if !slices.Contains(services, service) {
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	}
	if h.server.notReady(h.server.node) != "" {
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVING
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
	for _, service := range services {
		all[service] = &healthpb.HealthCheckResponse{Status: h.status(service)}
	}
	return &healthpb.HealthListResponse{Statuses: all}, nil
}

func (h health) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	tick := time.NewTicker(healthEvery)
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
