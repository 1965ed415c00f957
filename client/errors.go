package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"zamok/api/visible"
	"zamok/api/zamokpb"
)

// Every error of this package wraps one of these, for errors.Is.
var (
	// ErrNotAcquired: the lock is not held, because others hold it or the wait has ended.
	ErrNotAcquired = errors.New("not acquired")
	// ErrNotHeld: the handle was unlocked before, or has nothing to downgrade.
	ErrNotHeld = errors.New("not held")
	// ErrLost: the lock was held, and must not be relied on any more.
	ErrLost = errors.New("lost")
	// ErrSessionExpired: the client's session has ended.
	ErrSessionExpired = errors.New("session expired")
	// ErrDeadlock: waiting would never have ended. See DeadlockError.
	ErrDeadlock = errors.New("deadlock")
	// ErrExpiredByOperator: an operator expired the session. It is an ErrSessionExpired, too.
	ErrExpiredByOperator = fmt.Errorf("%w by an operator", ErrSessionExpired)
	// ErrForceReleased: an operator force-released the lock.
	ErrForceReleased = errors.New("force-released")
	// ErrMaxHoldExceeded: the lock's maximum hold (WithMaxHold) has passed.
	ErrMaxHoldExceeded = errors.New("maximum hold exceeded")
	// ErrLimit: a limit of the cluster or a quota (admin.Quotas) was reached; Error.Field names it.
	ErrLimit = errors.New("limit met")
	// ErrUnavailable: no node could do it in time; Error.Nodes says why.
	ErrUnavailable = errors.New("unavailable")
	// ErrDenied: the access rules do not allow it, or the client is not authenticated.
	ErrDenied = errors.New("denied")
	// ErrInvalid: a part of the request is out of its limits; Error.Field names it.
	ErrInvalid = errors.New("invalid")
	// ErrKindMismatch: the name is in use as another kind of lock: a mutex, or permits with another
	// Of.
	ErrKindMismatch = errors.New("in use as another kind of lock")
	// ErrCompacted: a watch requested events that no node remembers any more.
	ErrCompacted = errors.New("not remembered any more")
	// ErrWrongCluster: an endpoint is a node of another cluster than this client belongs to, or
	// than another endpoint. Nothing was done there. See Config.Endpoints.
	ErrWrongCluster = errors.New("another cluster")
	// ErrRefused: the cluster rejects the request for another reason, which the message says.
	ErrRefused = errors.New("refused")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("client closed")
	// ErrInternal: a fault of the server.
	ErrInternal = errors.New("internal error of the server")
)

// Outcome says what a failed call has changed.
type Outcome uint8

const (
	NotDone Outcome = iota // nothing
	Done                   // what was requested
	Unknown                // it may have happened, or may still happen
)

func (o Outcome) String() string {
	return [...]string{"not done", "done", "unknown"}[min(o, Unknown)]
}

// Error is an error with a kind, an outcome, and at most one cause.
type Error struct {
	Kind    error // one of the Err values
	Outcome Outcome
	Message string // the server's, for people
	Field   string // ErrInvalid: the field. ErrLimit: the limit. ErrKindMismatch: the lock.
	// ErrKindMismatch: how many permits the lock has; 0 = it is in use as a mutex
	Of      uint32
	Reason  string      // why a grant or a session ended, as in an Event: "expired", …
	Nodes   []NodeError // ErrUnavailable: every node or name without addresses
	cause   error
	details *zamokpb.ErrorInfo // that a node gave; nil = none
}

// NodeError is the latest error of a node, or of a name among the endpoints.
type NodeError struct {
	Address string // or the endpoint that is a name
	Err     error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Kind.Error())
	if e.Field != "" && !errors.Is(e.Kind, ErrInvalid) { // its message names the field
		fmt.Fprintf(&b, " (%s)", visible.Line(e.Field))
	}
	if e.Message != "" {
		b.WriteString(": " + visible.Line(e.Message))
	}
	if e.cause != nil {
		b.WriteString(": " + e.cause.Error())
	}
	if len(e.Nodes) > 0 {
		b.WriteString(": " + nodesText(e.Nodes))
	}
	if e.Outcome == Unknown && !errors.Is(e.Kind, ErrLost) {
		b.WriteString(" (it may have taken effect)")
	}
	return visible.Lines(b.String()) // a cause may have several lines
}

func (e *Error) Unwrap() error {
	all := []error{e.Kind, e.cause}
	for _, n := range e.Nodes {
		all = append(all, n.Err)
	}
	return errors.Join(all...)
}

// nodesText names each node with its error: "10.0.0.1:5750: no answer; 10.0.0.2:5750: no answer".
func nodesText(nodes []NodeError) string {
	return strings.Join(each(nodes, func(n NodeError) string {
		return visible.Line(n.Address) + ": " + visible.Line(n.Err.Error())
	}), "; ")
}

// invalid names the field at the beginning of the message, as a server does.
func invalid(field, format string, args ...any) error {
	return &Error{Kind: ErrInvalid, Field: field,
		Message: field + ": " + fmt.Sprintf(format, args...)}
}

// NotAcquiredError says what blocked the acquisition, or that the wait ended.
type NotAcquiredError struct {
	Names   []string
	Holders []Blocker // and requests that wait ahead, or a delay
	cause   error     // what ended the wait: the context, or the limit of WithWait
}

func (e *NotAcquiredError) Error() string {
	text := strings.Join(each(e.Names, visible.Word), ", ") + " not acquired"
	for i, b := range e.Holders {
		text += [...]string{": ", ", "}[min(i, 1)] + b.String()
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

func (e *NotAcquiredError) Unwrap() error { return errors.Join(ErrNotAcquired, e.cause) }

// DeadlockError has the cycle that a wait would have closed.
type DeadlockError struct {
	Cycle []Link
	More  int // links left out in the middle
}

func (e *DeadlockError) Error() string {
	links := each(e.Cycle, func(l Link) string {
		return fmt.Sprintf("%s (session %d, ticket %d) %s %s", visible.Word(l.Owner), l.Session,
			l.Ticket,
			map[bool]string{true: "waits for", false: "holds"}[l.Waits], visible.Quote(l.Name))
	})
	return "deadlock: " + strings.Join(links, ", ")
}

func (e *DeadlockError) Unwrap() error { return ErrDeadlock }

// UnconfirmedError: nothing is held here any more, but the cluster has not confirmed that it holds
// nothing for this client. Others may find the locks taken. The error that it wraps says why; its
// Outcome is Unknown. Unlock, Close, and an acquisition that is given up return it:
//
//	what happened                                     Unlock returns
//	the release was applied                           nil
//	the session ended in the cluster while it waited  nil: the grant ended with it
//	the cluster ended the grant while it waited       nil, as above; Watch has the reason
//	the cluster ended the grant before                ErrLost, outcome Done
//	the local deadline passed before                  ErrLost, unconfirmed: the client was cut off
//	the client was closed before                      ErrLost and ErrClosed, unconfirmed unless
//	                                                  Close returned nil
//	no answer in time, or its context ended           ErrUnavailable, unconfirmed: it continues in
//	                                                  the background
//	the session ended here only: it could not attach  ErrUnavailable, or ErrLost if that came
//	again, another program took it over, or its       before; unconfirmed: the lock may stay until
//	cluster is gone                                   the lease ends in the cluster
//
// An acquisition returns it if its request was sent and the next frame can't drop it: a TryLock, a
// limit of WithWait that the cluster did not confirm, and a wait that ended without a stream.
type UnconfirmedError struct {
	Names []string // the locks; Close names none, which means all
	// Until is the time at which the session's lease ends in the cluster if nothing more of this
	// client arrives there. The time for which the cluster has no leader comes on top, and then
	// Config.LockDelay. Zero: the cluster answers, but has not confirmed this request. The client
	// continues to send it; the locks are free at the latest when the session ends.
	Until time.Time
	cause error
}

func (e *UnconfirmedError) Error() string {
	what, until := "what its session held", "until its session ends"
	if len(e.Names) > 0 {
		what = strings.Join(each(e.Names, visible.Word), ", ")
	}
	if !e.Until.IsZero() {
		until = "until " + e.Until.Format(time.RFC3339)
	}
	return fmt.Sprintf("%v; not confirmed: the cluster may hold %s for this client %s", e.cause,
		what, until)
}

func (e *UnconfirmedError) Unwrap() error { return e.cause }

// contextEnd is the reason for which a context ended: the caller's own cause if there is one. The
// end of the request timeout is not the end of the caller's context.
func contextEnd(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(context.Cause(ctx), errRequestTimeout) {
		return errRequestTimeout
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, err) {
		return &contextError{err, cause}
	}
	return err
}

// contextError is the end of a context with the text of its cause.
type contextError struct{ err, cause error }

func (e *contextError) Error() string { return e.cause.Error() }

func (e *contextError) Unwrap() []error { return []error{e.err, e.cause} }

// kinds maps every code of the protocol to an error of this package. Nil: the request may be
// repeated.
var kinds = map[zamokpb.Code]error{
	zamokpb.Code_CODE_OK:          nil,
	zamokpb.Code_CODE_NOT_LEADER:  nil,
	zamokpb.Code_CODE_OVERLOADED:  nil,
	zamokpb.Code_CODE_UNKNOWN:     nil,
	zamokpb.Code_CODE_SUPERSEDED:  nil,
	zamokpb.Code_CODE_SLOW_READER: nil,
	zamokpb.Code_CODE_STOPPING:    nil,

	zamokpb.Code_CODE_INVALID:         ErrInvalid,
	zamokpb.Code_CODE_NO_SESSION:      ErrSessionExpired,
	zamokpb.Code_CODE_WRONG_SECRET:    ErrSessionExpired,
	zamokpb.Code_CODE_NOT_ACQUIRED:    ErrNotAcquired,
	zamokpb.Code_CODE_DEADLOCK:        ErrDeadlock,
	zamokpb.Code_CODE_OWNER_WAITS:     ErrNotAcquired,
	zamokpb.Code_CODE_KIND_MISMATCH:   ErrKindMismatch,
	zamokpb.Code_CODE_LIMIT_EXCEEDED:  ErrLimit,
	zamokpb.Code_CODE_NOT_HELD:        ErrNotHeld,
	zamokpb.Code_CODE_TICKET_ENDED:    ErrNotAcquired,
	zamokpb.Code_CODE_DISK_LOW:        ErrLimit,
	zamokpb.Code_CODE_DENIED:          ErrDenied,
	zamokpb.Code_CODE_UNAUTHENTICATED: ErrDenied,
	zamokpb.Code_CODE_COMPACTED:       ErrCompacted,
	zamokpb.Code_CODE_REFUSED:         ErrRefused,
	zamokpb.Code_CODE_WRONG_CLUSTER:   ErrWrongCluster,
	zamokpb.Code_CODE_INTERNAL:        ErrInternal,
}

// infoOf returns the details that a node gave with an error; nil if no node gave any.
func infoOf(err error) *zamokpb.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*zamokpb.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// errorOf converts the details of a node's error; nil if the request may be repeated.
func errorOf(info *zamokpb.ErrorInfo) error {
	kind, known := kinds[info.GetCode()]
	switch {
	case !known: // a newer server: it is unknown whether a repetition is safe
		kind = fmt.Errorf("%w with the code %d, which this client does not know", ErrRefused,
			info.GetCode())
	case kind == nil:
		return nil
	}
	if info.GetCode() == zamokpb.Code_CODE_DEADLOCK {
		return &DeadlockError{More: int(info.GetMore()),
			Cycle: each(info.GetCycle(), func(l *zamokpb.Link) Link {
				return Link{Session: l.GetSession(), Ticket: l.GetTicket(), Owner: l.GetOwner(),
					Waits: l.GetState() == zamokpb.State_STATE_WAITING, Name: l.GetName()}
			})}
	}
	outcome := map[zamokpb.Outcome]Outcome{zamokpb.Outcome_OUTCOME_DONE: Done,
		zamokpb.Outcome_OUTCOME_UNKNOWN: Unknown}[info.GetOutcome()]
	return &Error{
		Kind: kind, Outcome: outcome, Message: info.GetMessage(), Field: info.GetField(),
		Of:     info.GetOf(),
		Reason: reasonName(info.GetReason()), details: info,
	}
}

// detailsOf returns the details from which errorOf made an error; nil = none.
func detailsOf(err error) *zamokpb.ErrorInfo {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.details
	}
	return nil
}

// unsentError is the error of a call for which there was no connection.
type unsentError struct{ error }

func (u unsentError) Unwrap() error { return u.error }

// GRPCStatus is the status of the wrapped error. gRPC would find it without this method, too, and
// add its own words to the message.
func (u unsentError) GRPCStatus() *status.Status { return status.Convert(u.error) }

// notDone reports whether nothing took effect: the call was not sent, or the node says so.
func notDone(err error) bool {
	var e *Error
	return errors.As(err, new(unsentError)) ||
		infoOf(err).GetOutcome() == zamokpb.Outcome_OUTCOME_NOT_DONE ||
		errors.As(err, &e) && errors.Is(e.Kind, ErrWrongCluster) && e.Outcome == NotDone
}

// reasonError is the error for the end of a grant or of a session that its client did not request.
func reasonError(reason zamokpb.Reason, text string) error {
	e := &Error{Kind: ErrSessionExpired, Outcome: Done, Message: text, Reason: reasonName(reason)}
	switch reason {
	case zamokpb.Reason_REASON_FORCE_RELEASED:
		e.Kind = ErrForceReleased
	case zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR:
		e.Kind = ErrExpiredByOperator
	case zamokpb.Reason_REASON_MAX_HOLD_EXCEEDED:
		e.Kind = ErrMaxHoldExceeded
	case zamokpb.Reason_REASON_EXPIRED:
	default:
		e.Message = cmp.Or(text, e.Reason)
	}
	return e
}

// reasonOf is the Reason of an error; "" = none.
func reasonOf(err error) string {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// reasonName is the name of a reason, as in JSON: "max_hold_exceeded". "" = none.
func reasonName(reason zamokpb.Reason) string {
	if reason == zamokpb.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(reason.String(), "REASON_"))
}

var (
	errLeaseUnconfirmed = errors.New("the cluster was not heard in time; the lease may be over")
	errNoAnswer         = errors.New("no answer")
	errWaitTimeout      = errors.New("the wait timed out")
)
