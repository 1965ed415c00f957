package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/session/visible"
)

// Every error of this package is one of these, for errors.Is.
var (
	// ErrNotAcquired: the lock is not held, because it would have meant to wait, or the wait was over.
	ErrNotAcquired = errors.New("not acquired")
	// ErrNotHeld: the handle was unlocked before, or has nothing to downgrade.
	ErrNotHeld = errors.New("not held")
	// ErrLost: the lock was held, and is not to be relied on any more.
	ErrLost = errors.New("lost")
	// ErrSessionExpired: the client's session is over.
	ErrSessionExpired = errors.New("session expired")
	// ErrDeadlock: waiting would never have ended. See DeadlockError.
	ErrDeadlock = errors.New("deadlock")
	// ErrRevoked: an operator took the lock away.
	ErrRevoked = errors.New("revoked")
	// ErrLimit: a limit of the cluster or a quota (Quotas) was reached; Error.Field names it.
	ErrLimit = errors.New("limit met")
	// ErrUnavailable: no node could do it in time; Error.Nodes says why.
	ErrUnavailable = errors.New("unavailable")
	// ErrDenied: the access rules do not allow it, or the client is not authenticated.
	ErrDenied = errors.New("denied")
	// ErrInvalid: what was asked for is out of its limits; Error.Field names what.
	ErrInvalid = errors.New("invalid")
	// ErrKindMismatch: the name is in use as another kind of lock: mutex, or permits of another limit.
	ErrKindMismatch = errors.New("in use as another kind of lock")
	// ErrCompacted: a watch asked for events that are not remembered any more.
	ErrCompacted = errors.New("not remembered any more")
	// ErrWrongCluster: an endpoint is a node of another cluster than this client belongs to, or than another
	// endpoint. Nothing was done there. See Config.Endpoints.
	ErrWrongCluster = errors.New("another cluster")
	// ErrRefused: the cluster refuses, and says why.
	ErrRefused = errors.New("refused")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("client closed")
	// ErrInternal: a fault of the server.
	ErrInternal = errors.New("internal error of the server")
)

// Outcome says what a call that failed has changed.
type Outcome uint8

const (
	NotDone Outcome = iota // nothing
	Done                   // what was asked for
	Unknown                // it may have happened, or may still happen
)

func (o Outcome) String() string { return [...]string{"not done", "done", "unknown"}[min(o, Unknown)] }

// Error is a refusal, or a failure with one cause.
type Error struct {
	Kind    error // one of the Err values
	Outcome Outcome
	Message string      // the server's, for people
	Field   string      // ErrInvalid: the field. ErrLimit: the limit. ErrKindMismatch: the lock.
	Limit   uint32      // ErrKindMismatch: the limit of the permits it is in use as; 0 = a mutex
	Nodes   []NodeError // ErrUnavailable: every node that was asked, and every name that has no addresses, and why
	cause   error
}

// NodeError is the last that was heard of, or from, a node, or of a name among the endpoints.
type NodeError struct {
	Address string // or the endpoint that is a name
	Err     error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("zamok: ")
	b.WriteString(e.Kind.Error())
	if e.Field != "" && !strings.HasPrefix(e.Message, e.Field+":") {
		fmt.Fprintf(&b, " (%s)", visible.Line(e.Field))
	}
	if e.Message != "" {
		b.WriteString(": " + visible.Line(e.Message))
	}
	if e.cause != nil {
		b.WriteString(": " + strings.TrimPrefix(e.cause.Error(), "zamok: "))
	}
	for i, n := range e.Nodes {
		fmt.Fprintf(&b, "%s%s: %s", [...]string{": ", "; "}[min(i, 1)], visible.Line(n.Address), visible.Line(n.Err.Error()))
	}
	if e.Outcome == Unknown && !errors.Is(e.Kind, ErrLost) {
		b.WriteString(" (it may have taken effect)")
	}
	return visible.Lines(b.String()) // a cause may have several
}

func (e *Error) Unwrap() error {
	all := []error{e.Kind, e.cause}
	for _, n := range e.Nodes {
		all = append(all, n.Err)
	}
	return errors.Join(all...)
}

func invalid(field, format string, args ...any) error {
	return &Error{Kind: ErrInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// NotAcquiredError says what stood in the way, or that the wait was over.
type NotAcquiredError struct {
	Names   []string
	Holders []Blocker // and those that wait ahead, or a delay
	cause   error     // what ended the wait: the context, or its limit
}

func (e *NotAcquiredError) Error() string {
	text := "zamok: " + strings.Join(each(e.Names, visible.Word), ", ") + " not acquired"
	for i, b := range e.Holders {
		text += [...]string{": ", ", "}[min(i, 1)] + b.String()
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

func (e *NotAcquiredError) Unwrap() error { return errors.Join(ErrNotAcquired, e.cause) }

// DeadlockError spells out the cycle that waiting would have closed.
type DeadlockError struct {
	Cycle []Link
	More  int // links left out in the middle
}

func (e *DeadlockError) Error() string {
	links := each(e.Cycle, func(l Link) string {
		return fmt.Sprintf("%s (session %d, ticket %d) %s %s", visible.Word(l.Owner), l.Session, l.Ticket,
			map[bool]string{true: "waits for", false: "holds"}[l.Waits], visible.Quote(l.Name))
	})
	return "zamok: deadlock: " + strings.Join(links, ", ")
}

func (e *DeadlockError) Unwrap() error { return ErrDeadlock }

// UnconfirmedError: nothing is held here any more, and the cluster has not confirmed that it holds nothing for this
// client: others may find the locks taken. What it wraps says why; its Outcome is Unknown.
type UnconfirmedError struct {
	Names []string // the locks; of Close none, which means all
	// Until is when the session's lease ends in the cluster if nothing more of this client arrives there: later by
	// the time for which the cluster has no leader, and then comes Config.LockDelay. Zero: the cluster answers, but
	// did not answer this; the client continues asking, and at the latest its session's end frees the locks.
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
	return fmt.Sprintf("%v; not confirmed: the cluster may hold %s for this client %s", e.cause, what, until)
}

func (e *UnconfirmedError) Unwrap() error { return e.cause }

// contextEnd says why a context ended, with the caller's own cause if there is one. The end of our own timeout
// is not that of the caller's context.
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

// contextError is the end of a context in the words of who ended it.
type contextError struct{ err, cause error }

func (e *contextError) Error() string { return e.cause.Error() }

func (e *contextError) Unwrap() []error { return []error{e.err, e.cause} }

// kinds turns every code of the wire into an error of this package. Nil: it is worth another try.
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

// infoOf finds the server's own words in a call's error; nil if a server of ours did not speak.
func infoOf(err error) *zamokpb.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*zamokpb.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// definite turns the server's words into an error, or nil if the thing is worth another try.
func definite(info *zamokpb.ErrorInfo) error {
	kind, known := kinds[info.GetCode()]
	switch {
	case !known: // of a newer server: to ask again would be to guess
		kind = fmt.Errorf("%w with the code %d, which this client does not know", ErrRefused, info.GetCode())
	case kind == nil:
		return nil
	}
	if info.GetCode() == zamokpb.Code_CODE_DEADLOCK {
		return &DeadlockError{More: int(info.GetMore()), Cycle: each(info.GetCycle(), func(l *zamokpb.Link) Link {
			return Link{Session: l.GetSession(), Ticket: l.GetTicket(), Owner: l.GetOwner(),
				Waits: l.GetState() == zamokpb.State_STATE_WAITING, Name: l.GetName()}
		})}
	}
	outcome := map[zamokpb.Outcome]Outcome{zamokpb.Outcome_OUTCOME_DONE: Done, zamokpb.Outcome_OUTCOME_UNKNOWN: Unknown}[info.GetOutcome()]
	return &Error{Kind: kind, Outcome: outcome, Message: info.GetMessage(), Field: info.GetField(), Limit: info.GetLimit()}
}

// unsent is the error of a call for which there was no connection.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

// GRPCStatus is the status as it was. gRPC would find it without this, too, and add its own words to the message.
func (u unsent) GRPCStatus() *status.Status { return status.Convert(u.error) }

// notDone reports whether nothing took effect: the call was not sent, or the server said so.
func notDone(err error) bool {
	var e *Error
	return errors.As(err, new(unsent)) || infoOf(err).GetOutcome() == zamokpb.Outcome_OUTCOME_NOT_DONE ||
		errors.As(err, &e) && errors.Is(e.Kind, ErrWrongCluster) && e.Outcome == NotDone
}

// reasonError names the end of a grant, or of a session, that its client did not ask for.
func reasonError(reason zamokpb.Reason, text string) error {
	switch reason {
	case zamokpb.Reason_REASON_REVOKED, zamokpb.Reason_REASON_EVICTED:
		return &Error{Kind: ErrRevoked, Outcome: Done, Message: text}
	case zamokpb.Reason_REASON_MAX_HOLD_EXCEEDED:
		return &Error{Kind: errMaxHoldExceeded, Outcome: Done, Message: text}
	}
	return &Error{Kind: ErrSessionExpired, Outcome: Done, Message: cmp.Or(text, reasonText(reason))}
}

// reasonText is a reason for people: "max hold exceeded".
func reasonText(reason zamokpb.Reason) string {
	if reason == zamokpb.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(reason.String(), "REASON_"), "_", " "))
}

var (
	errMaxHoldExceeded  = errors.New("the maximum hold is over")
	errLeaseUnconfirmed = errors.New("the cluster was not heard in time; the lease may be over")
	errNoAnswer         = errors.New("no answer")
	errWaitTimeout      = errors.New("the wait timed out")
)
