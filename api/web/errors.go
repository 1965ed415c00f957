package web

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"zamok/api/view"
	"zamok/api/visible"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// statuses is the only table from codes to those of HTTP. What is not here is 500.
var statuses = map[zamokpb.Code]int{
	zamokpb.Code_CODE_INVALID:         http.StatusBadRequest,
	zamokpb.Code_CODE_WRONG_SECRET:    http.StatusForbidden,
	zamokpb.Code_CODE_DENIED:          http.StatusForbidden,
	zamokpb.Code_CODE_UNAUTHENTICATED: http.StatusUnauthorized,
	zamokpb.Code_CODE_NO_SESSION:      http.StatusGone,
	zamokpb.Code_CODE_TICKET_ENDED:    http.StatusGone,
	zamokpb.Code_CODE_COMPACTED:       http.StatusGone,
	zamokpb.Code_CODE_NOT_ACQUIRED:    http.StatusConflict,
	zamokpb.Code_CODE_DEADLOCK:        http.StatusConflict,
	zamokpb.Code_CODE_OWNER_WAITS:     http.StatusConflict,
	zamokpb.Code_CODE_KIND_MISMATCH:   http.StatusConflict,
	zamokpb.Code_CODE_NOT_HELD:        http.StatusConflict,
	zamokpb.Code_CODE_SUPERSEDED:      http.StatusConflict,
	zamokpb.Code_CODE_REFUSED:         http.StatusConflict,
	zamokpb.Code_CODE_WRONG_CLUSTER:   http.StatusConflict,
	zamokpb.Code_CODE_LIMIT_EXCEEDED:  http.StatusTooManyRequests,
	zamokpb.Code_CODE_OVERLOADED:      http.StatusTooManyRequests,
	zamokpb.Code_CODE_DISK_LOW:        http.StatusServiceUnavailable,
	zamokpb.Code_CODE_NOT_LEADER:      http.StatusServiceUnavailable,
	zamokpb.Code_CODE_STOPPING:        http.StatusServiceUnavailable,
	zamokpb.Code_CODE_SLOW_READER:     http.StatusServiceUnavailable,
	zamokpb.Code_CODE_UNKNOWN:         http.StatusServiceUnavailable,
}

// retryAfter is what Retry-After advises, in seconds, with 429 and 503. A leader is elected in
// about that time.
const retryAfter = 1

// failure is an error with a status of its own.
type failure struct {
	cause  *wire.Error
	status int
	word   string // the code, if it is none of the wire's
}

func (f *failure) Error() string { return f.cause.Error() }
func (f *failure) Unwrap() error { return f.cause }

// invalid is an error about a field that this package reads, under the name that it has here.
func invalid(field, format string, args ...any) error {
	return &failure{status: http.StatusBadRequest, cause: wire.Invalid(field, format, args...)}
}

// infoOf is what an error says.
func infoOf(err error) *zamokpb.ErrorInfo { return wire.Explain(err).Info }

// errorBody is the body of every answer other than 2xx.
type errorBody struct {
	Code     string         `json:"code" doc:"what is wrong, one word"`
	Field    string         `json:"field,omitempty" doc:"the field that is invalid, or the name of the limit"`
	Message  string         `json:"message" doc:"for people"`
	Outcome  string         `json:"outcome" doc:"what took effect: not_done, done or unknown"`
	Reason   string         `json:"reason,omitempty" doc:"why a session or an acquisition ended, if it is known"`
	Blockers []view.Blocker `json:"blockers,omitempty" doc:"not_acquired: what the acquisition would have to wait for"`
	Cycle    []link         `json:"cycle,omitempty" doc:"deadlock: the acquisitions that would wait for each other"`
	Leader   string         `json:"leader,omitempty" doc:"the leader, if this node is not it and knows it"`
}

// link is one acquisition of a deadlock.
type link struct {
	Session view.Number `json:"session"`
	Ticket  view.Number `json:"ticket"`
	Owner   string      `json:"owner,omitempty"`
	State   string      `json:"state" doc:"waiting or granted"`
	Name    string      `json:"name,omitempty" doc:"what it waits for"`
}

func newErrorBody(info *zamokpb.ErrorInfo) errorBody {
	return errorBody{
		Code: wire.JSONName(info.Code), Field: info.Field, Message: info.Message,
		Outcome: wire.JSONName(info.Outcome),
		Reason:  wire.JSONName(info.Reason), Blockers: wire.Each(info.Blockers, view.NewBlocker),
		Leader: info.Leader,
		Cycle: wire.Each(info.Cycle, func(l *zamokpb.Link) link {
			return link{view.Number(l.Session), view.Number(l.Ticket), l.Owner,
				wire.JSONName(l.State), l.Name}
		}),
	}
}

// fail answers with an error.
func fail(w http.ResponseWriter, err error) {
	info := infoOf(err)
	body, code := newErrorBody(info), statuses[info.Code]
	if f := (*failure)(nil); errors.As(err, &f) {
		code = f.status
		if f.word != "" {
			body.Code = f.word
		}
	}
	if code == 0 {
		code = http.StatusInternalServerError
	}
	if code == http.StatusUnauthorized {
		w.Header().Add("WWW-Authenticate", "Bearer") // required by RFC 9110
	}
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		seconds := clock.Span(info.RetryAfter+int64(clock.Second)-1) / clock.Second // rounded up
		w.Header().Set("Retry-After", strconv.Itoa(max(retryAfter, int(seconds))))
	}
	reply(w, code, body)
}

// writeWait is how long a client may take to receive an answer, or an event.
const writeWait = 10 * time.Second

// marshal returns a body as JSON; no type here can fail.
func marshal(body any) string {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// reply answers with JSON.
func reply(w http.ResponseWriter, code int, body any) {
	text := visible.JSON(marshal(body))
	// a recorder in a test has none
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWait))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)+1))
	w.WriteHeader(code)
	// the connection has ended if that fails, and nothing else can be done
	_, _ = io.WriteString(w, text+"\n")
}
