package api

import (
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

	"zamok/api/conns"
	"zamok/api/rpc"
	"zamok/api/web"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/raftnode"
)

const (
	// httpHeaderWait is how long the head of a request may take to arrive, and as long again its
	// body; httpIdle how long a connection stays for the next one.
	httpHeaderWait = 5 * time.Second
	httpIdle       = time.Minute
	// httpStopWait is how long requests may take to end by themselves when the node stops.
	httpStopWait = time.Second
	// writeStuck is how long a write to the disk may take before the node is not ready.
	writeStuck = 3 * time.Second
)

// serveHTTP begins to serve /v1/, /metrics, /healthz, /readyz and, on request, profiles, if there
// is a port for that. It serves from before the node has started, which may wait for other nodes,
// until after the node has ended.
func (n *Node) serveHTTP() {
	s, cfg := n.server, n.cfg
	if cfg.HTTPListener == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", n.webHandler())
	mux.HandleFunc("GET /healthz",
		func(w http.ResponseWriter, _ *http.Request) { respond(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		code, text := http.StatusOK, "ready"
		if reason := s.notReady(n.startedRaft()); reason != "" {
			code, text = http.StatusServiceUnavailable, "not ready: "+reason
		} else if left := n.raft.Status().HoldOff; left > 0 {
			text += fmt.Sprintf("; no lock is granted for another %v: a backup was restored",
				left.Duration().Round(time.Second))
		}
		respond(w, code, text)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		s.metrics.Serve(w, r, n.startedRaft(), s.hub.Counts().Streams, cfg.Version,
			cfg.certificateExpiry(), cfg.Files())
	})
	if cfg.Profile {
		mux.HandleFunc("/debug/pprof/", s.forOperators(pprof.Index))
		mux.HandleFunc("/debug/pprof/cmdline", s.forOperators(pprof.Cmdline))
		mux.HandleFunc("/debug/pprof/profile", s.forOperators(pprof.Profile))
		mux.HandleFunc("/debug/pprof/symbol", s.forOperators(pprof.Symbol))
		mux.HandleFunc("/debug/pprof/trace", s.forOperators(pprof.Trace))
	}
	n.http = newHTTPServer(s.budget.Handler(s.named(mux)), cfg.Logger)
	listener := s.clientListener(cfg.HTTPListener)
	if cfg.ClientTLS != nil {
		listener = tls.NewListener(listener, cfg.clientTLS("http/1.1", true))
	}
	n.served.Go(func() {
		err := n.http.Serve(listener)
		if !errors.Is(err, http.ErrServerClosed) {
			cfg.Logger.Error("the HTTP server failed; locks over HTTP, metrics and health are "+
				"not served until the node is restarted", "error", err)
		}
	})
}

func newHTTPServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: httpHeaderWait, ReadTimeout: 2 * httpHeaderWait, IdleTimeout: httpIdle,
		MaxHeaderBytes: rpc.HeaderBytesMax,
		ConnContext:    conns.WithConn,
		ErrorLog:       slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// named names this node's cluster in every answer.
func (s *server) named(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &namedAnswer{w, s}
		next.ServeHTTP(a, r)
		a.name() // of an answer without a body
	})
}

// namedAnswer sets the header when the answer begins: a node that has just started learns its
// cluster meanwhile.
type namedAnswer struct {
	http.ResponseWriter
	server *server
}

func (a *namedAnswer) name() {
	if id := a.server.gate.Cluster(); id != "" {
		a.Header().Set(zamokpb.ClusterKey, id)
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

// forOperators restricts a profile to callers that may operate, and records the caller. It works
// before the node has started, so it is no request of the wire.
func (s *server) forOperators(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := web.CheckOrigin(r, s.cfg.isHTTPHost, false); err != nil {
			respond(w, http.StatusForbidden, err.Error())
			return
		}
		call := "pprof " + path.Base(r.URL.Path)
		ctx, err := s.gate.Identify(r.Context(), web.Arrival(r), call)
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			respond(w, http.StatusUnauthorized, err.Error())
			return
		}
		admission, err := s.gate.Operate(ctx, call)
		if err != nil {
			status := http.StatusServiceUnavailable
			if wire.Explain(err).Code() == zamokpb.Code_CODE_DENIED {
				status = http.StatusForbidden
			}
			respond(w, status, err.Error())
			return
		}
		defer admission.End()
		serve(w, r)
	}
}

// webHandler serves /v1/.
func (n *Node) webHandler() http.Handler {
	s := n.server
	return web.New(web.Config{
		Gate: s.gate, Begin: s.begin, Node: n.cfg.ID, IsHost: n.cfg.isHTTPHost,
		Stopping: s.stopping,
		Clock:    n.cfg.Source, Started: func() bool { return n.startedRaft() != nil },
		NotReady: func() string { return s.notReady(n.startedRaft()) },
	})
}

// isHTTPHost reports whether a name in the Host of a request is this node's.
func (s *NodeConfig) isHTTPHost(name string) bool {
	return slices.ContainsFunc(append([]string{s.Advertise, s.hostname}, s.HTTPHosts...),
		func(own string) bool {
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

// notReady is why clients should use another node, if raft is that of this node, or nil before it
// has started; "": the node is ready.
func (s *server) notReady(raft *raftnode.Node) string {
	if isClosed(s.stopping) {
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
		return fmt.Sprintf("a write to the disk has been going on for %v",
			status.Writing.Round(time.Second))
	}
	return ""
}
