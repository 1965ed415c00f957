package web

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"time"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// Config configures the handler.
type Config struct {
	Gate Gate
	// Begin counts a call until end is called, or says why the node takes none any more.
	Begin func() (end func(), err error)
	// Node is this node's id.
	Node string
	// Started reports whether Gate can be used.
	Started func() bool
	// NotReady is why clients should use another node; "": this one is ready.
	NotReady func() string
	// IsHost reports whether a name in the Host of a request is one of this node's. IP addresses
	// and localhost are not passed to it.
	IsHost func(name string) bool
	// Stopping is closed when the node stops: what is held here ends.
	Stopping <-chan struct{}
	// Clock is this machine's elapsed time. Nil: clock.System().
	Clock clock.Source
}

type handler struct {
	config Config
	clock  clock.Source
}

// openAPI is the description, which a test makes from the table of routes.
//
//go:embed openapi.json
var openAPI []byte

// route is one method and path.
type route struct {
	method, path, summary string
	request, response     reflect.Type // of the description; the response nil: none, or a stream
	takesLock             bool         // although its method is GET
	stream                bool         // the answer is bytes, or Server-Sent Events
	// the data of each of these events, a zero value of its type
	events map[string]any
	serve  func(w http.ResponseWriter, r *http.Request) error
}

// call makes the route of a function from a request to a response.
func call[Request, Response any](method, path, summary string,
	f func(context.Context, *Request) (*Response, error)) route {
	return route{
		method: method, path: path, summary: summary, request: reflect.TypeFor[Request](),
		response: reflect.TypeFor[Response](),
		serve: func(w http.ResponseWriter, r *http.Request) error {
			request := new(Request)
			if err := receive(w, r, request); err != nil {
				return err
			}
			response, err := f(r.Context(), request)
			if err != nil {
				return err
			}
			reply(w, http.StatusOK, response)
			return nil
		},
	}
}

// receive reads a request. What it needed of the connection's time limit is over then: an
// acquisition may wait.
func receive(w http.ResponseWriter, r *http.Request, into any) error {
	if err := read(w, r, into); err != nil {
		return err // the limit remains for what the server skips of the body
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a recorder in a test has none
	return nil
}

// routes is the table of what is served.
func (h *handler) routes() []route {
	return []route{
		h.acquireRoute(),
		call("POST", "/v1/renew", "Renew the session of a lock.", h.renew),
		call("POST", "/v1/release", "Release a lock, or leave its queue.", h.release),
		call("POST", "/v1/downgrade",
			"Turn the exclusive locks of an acquisition into shared ones.", h.downgrade),
		h.holdRoute(),
		call("GET", "/v1/check", "Is a grant held?", h.check),

		call("POST", "/v1/sessions", "Open a session, for several acquisitions.", h.openSession),
		call("GET", "/v1/sessions", "List the sessions.", h.listSessions),
		call("POST", "/v1/sessions/{session}/renew", "Renew a session.", h.renew),
		call("DELETE", "/v1/sessions/{session}", "Close a session: its locks are released.",
			h.deleteSession),

		call("GET", "/v1/lock", "Show a lock with its holders and waiters.", h.showLock),
		call("GET", "/v1/locks", "List the locks in use.", h.listLocks),
		h.watchRoute(),
		call("GET", "/v1/now", "Read the replicated clock.", h.now),
		call("GET", "/v1/members", "List the nodes of the cluster.", h.members),
		call("GET", "/v1/status", "Show the state of this node and of its cluster.", h.status),

		h.terraformRoute("LOCK",
			"Lock a state of Terraform or OpenTofu; 423 with the holder's description.",
			h.terraformLock),
		h.terraformRoute("UNLOCK", "Unlock it.", h.terraformUnlock),

		call("POST", "/v1/admin/release", "End the grants of a lock by force.", h.forceRelease),
		call("POST", "/v1/admin/expire", "End a session by force.", h.expire),
		call("POST", "/v1/admin/transfer", "Transfer leadership to another node.", h.transfer),
		call("POST", "/v1/admin/join", "Add a node.", h.join),
		call("POST", "/v1/admin/remove", "Remove a node.", h.remove),
		h.backupRoute(),
	}
}

// New returns the handler of /v1/.
func New(config Config) http.Handler {
	h := &handler{config: config, clock: cmp.Or(config.Clock, clock.System())}
	mux, allowed := http.NewServeMux(), make(map[string][]string)
	routes := h.routes()
	routes = append(routes, route{method: "GET", path: "/v1/openapi.json",
		serve: func(w http.ResponseWriter, _ *http.Request) error {
			reply(w, http.StatusOK, json.RawMessage(openAPI))
			return nil
		}})
	for _, route := range routes {
		allowed[route.path] = append(allowed[route.path], route.method)
		mux.HandleFunc(route.method+" "+route.path, func(w http.ResponseWriter, r *http.Request) {
			head(w)
			err := CheckOrigin(r, config.IsHost, route.takesLock)
			if err == nil && route.method == http.MethodGet && r.Method != route.method &&
				route.stream {
				err = wrongMethod(w, r, allowed[route.path]) // a HEAD would take a lock
			}
			if err == nil && !config.Started() {
				err = wire.Errorf(zamokpb.Code_CODE_NOT_LEADER, "not done: %s", config.NotReady())
			}
			if err == nil {
				err = route.serve(w, r.WithContext(withArrival(r.Context(), Arrival(r))))
			}
			if err != nil {
				fail(w, err)
			}
		})
	}
	for path, methods := range allowed {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			head(w)
			fail(w, wrongMethod(w, r, methods))
		})
	}
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		head(w)
		fail(w, &failure{status: http.StatusNotFound, word: "not_found",
			cause: wire.Errorf(zamokpb.Code_CODE_REFUSED,
				"not done: there is no %s here; /v1/openapi.json lists what there is", r.URL.Path)})
	})
	return mux
}

// head begins every answer.
func head(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

func wrongMethod(w http.ResponseWriter, r *http.Request, allowed []string) error {
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return &failure{status: http.StatusMethodNotAllowed, word: "method_not_allowed",
		cause: wire.Errorf(zamokpb.Code_CODE_REFUSED,
			"not done: %s has no method %s", r.URL.Path, r.Method)}
}

const (
	// retryFor is for how long calls are repeated without success: most elections take a second.
	retryFor = 5 * time.Second
	// retryEvery is the time between them.
	retryEvery = 50 * time.Millisecond
	// endWait is how long it may take to close a session that is needed no more; then its ttl ends
	// it.
	endWait = 5 * time.Second
)

// retry repeats a call while there is no leader, or its answer was lost. What it does is named by a
// secret and a ticket, so a repetition has the answer of whatever took effect. If the last one has
// no answer either, the outcome is that of all.
func (h *handler) retry(ctx context.Context, call func() error) error {
	failing, inDoubt := h.clock.Now(), false
	for {
		began := h.clock.Now()
		err := call()
		if err == nil {
			return nil
		}
		info := infoOf(err)
		// A leader that refuses for want of room has not looked whether the call before took
		// effect.
		noRoom := isCode(err, zamokpb.Code_CODE_OVERLOADED) ||
			isCode(err, zamokpb.Code_CODE_DISK_LOW) ||
			isCode(err, zamokpb.Code_CODE_LIMIT_EXCEEDED) &&
				info.Reason == zamokpb.Reason_REASON_UNSPECIFIED
		if !isTransient(err) && !(inDoubt && noRoom) {
			return err
		}
		if inDoubt && info.Outcome == zamokpb.Outcome_OUTCOME_NOT_DONE {
			err = wire.StreamEnded(zamokpb.Code_CODE_UNKNOWN,
				"it was sent before, and may have taken effect then; sent again: %s", info.Message)
		}
		inDoubt = inDoubt || info.Outcome == zamokpb.Outcome_OUTCOME_UNKNOWN
		if now := h.clock.Now(); now.Since(began).Duration() > retryFor {
			failing = now // it has waited, and not for a leader
		} else if now.Since(failing).Duration() > retryFor {
			return err
		}
		if !h.waitToRetry(ctx) {
			return err
		}
	}
}

// retryNotDone is retry for a call that is repeated only if the one before was not done.
func (h *handler) retryNotDone(ctx context.Context, call func() error) error {
	var inDoubt error
	err := h.retry(ctx, func() error {
		err := call()
		if err != nil && infoOf(err).Outcome != zamokpb.Outcome_OUTCOME_NOT_DONE {
			inDoubt, err = err, nil
		}
		return err
	})
	return cmp.Or(inDoubt, err)
}

// waitToRetry waits before a repetition. False: the request has ended, or the node stops.
func (h *handler) waitToRetry(ctx context.Context) bool {
	timer := time.NewTimer(retryEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-h.config.Stopping:
	}
	return false
}

// isTransient reports whether a call that failed can succeed when there is a leader again.
func isTransient(err error) bool {
	switch infoOf(err).Code {
	case zamokpb.Code_CODE_NOT_LEADER, zamokpb.Code_CODE_UNKNOWN, zamokpb.Code_CODE_STOPPING:
		return true
	}
	return false
}

// isCode reports whether an error has a code.
func isCode(err error, code zamokpb.Code) bool { return err != nil && infoOf(err).Code == code }
