package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/visible"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
)

// Error is an error for a client. A gRPC handler returns it, and gRPC derives the status from it.
type Error struct {
	Info *zamokpb.ErrorInfo
	// ofLog: it is the state machine's answer to a command, or the leader's to a relayed call.
	ofLog bool
}

func (e *Error) Error() string { return e.Info.GetMessage() }

// Err is e as an error, nil if e is nil.
func (e *Error) Err() error {
	if e == nil {
		return nil
	}
	return e
}

// Code is the code of an error; nil has CODE_OK.
func (e *Error) Code() zamokpb.Code {
	if e == nil {
		return zamokpb.Code_CODE_OK
	}
	return e.Info.Code
}

// GRPCStatus is the status that the client receives, with the ErrorInfo as its detail.
func (e *Error) GRPCStatus() *status.Status {
	s := status.New(verdictOf(e.Info.GetCode()).grpc, e.Info.GetMessage())
	if detailed, err := s.WithDetails(e.Info); err == nil {
		return detailed
	}
	return s
}

// verdict is the gRPC code of an error, what took effect unless the error has another outcome, and
// whether it comes from before the log: it depends on the node and the moment, and says nothing of
// another transmission of the same request.
type verdict struct {
	grpc      codes.Code
	outcome   zamokpb.Outcome
	beforeLog bool
}

const (
	notDone = zamokpb.Outcome_OUTCOME_NOT_DONE
	unknown = zamokpb.Outcome_OUTCOME_UNKNOWN
)

// verdicts is the only table from codes to those of gRPC.
var verdicts = map[zamokpb.Code]verdict{
	zamokpb.Code_CODE_OK:              {codes.OK, zamokpb.Outcome_OUTCOME_DONE, false},
	zamokpb.Code_CODE_INVALID:         {codes.InvalidArgument, notDone, false},
	zamokpb.Code_CODE_NO_SESSION:      {codes.NotFound, notDone, false},
	zamokpb.Code_CODE_WRONG_SECRET:    {codes.PermissionDenied, notDone, false},
	zamokpb.Code_CODE_DENIED:          {codes.PermissionDenied, notDone, true},
	zamokpb.Code_CODE_UNAUTHENTICATED: {codes.Unauthenticated, notDone, true},
	zamokpb.Code_CODE_NOT_ACQUIRED:    {codes.FailedPrecondition, notDone, false},
	zamokpb.Code_CODE_OWNER_WAITS:     {codes.FailedPrecondition, notDone, false},
	zamokpb.Code_CODE_KIND_MISMATCH:   {codes.FailedPrecondition, notDone, false},
	zamokpb.Code_CODE_NOT_HELD:        {codes.FailedPrecondition, notDone, false},
	zamokpb.Code_CODE_TICKET_ENDED:    {codes.FailedPrecondition, notDone, false},
	zamokpb.Code_CODE_REFUSED:         {codes.FailedPrecondition, notDone, false},
	zamokpb.Code_CODE_WRONG_CLUSTER:   {codes.FailedPrecondition, notDone, true},
	zamokpb.Code_CODE_DEADLOCK:        {codes.Aborted, notDone, false},
	zamokpb.Code_CODE_SUPERSEDED:      {codes.Aborted, notDone, false},
	zamokpb.Code_CODE_LIMIT_EXCEEDED:  {codes.ResourceExhausted, notDone, true},
	zamokpb.Code_CODE_DISK_LOW:        {codes.ResourceExhausted, notDone, true},
	zamokpb.Code_CODE_SLOW_READER:     {codes.ResourceExhausted, unknown, false},
	zamokpb.Code_CODE_NOT_LEADER:      {codes.Unavailable, notDone, true},
	zamokpb.Code_CODE_OVERLOADED:      {codes.Unavailable, notDone, true},
	zamokpb.Code_CODE_STOPPING:        {codes.Unavailable, notDone, true},
	zamokpb.Code_CODE_UNKNOWN:         {codes.Unavailable, unknown, false},
	zamokpb.Code_CODE_COMPACTED:       {codes.OutOfRange, notDone, false},
}

func verdictOf(code zamokpb.Code) verdict {
	if v, ok := verdicts[code]; ok {
		return v
	}
	return verdict{codes.Internal, unknown, false}
}

// Errorf makes an error with the usual outcome of its code.
func Errorf(code zamokpb.Code, format string, args ...any) *Error {
	return &Error{Info: &zamokpb.ErrorInfo{
		Code: code, Outcome: verdictOf(code).outcome,
		Message: visible.Line(fmt.Sprintf(format, args...)),
	}}
}

// OfRetransmission is the error of an acquisition, or of an opening of a session, that may be a
// retransmission. An earlier transmission, perhaps to another node, may be done or on its way: only
// the log knows. So a refusal before the log leaves the outcome unknown, unless the sender says
// that this is the first transmission.
func OfRetransmission(err error, first bool) *Error {
	e := Explain(err)
	if first || e.ofLog || e.Info.Outcome != notDone || !verdictOf(e.Info.Code).beforeLog {
		return e
	}
	e.Info.Outcome = unknown
	e.Info.Message = "this request was refused, but an earlier transmission of it, if there was " +
		"one, may have taken effect: " + e.Info.Message
	return e
}

// Invalid names a field that is out of its limits, as the message shows it: a caller may have made
// the name up. Nothing was proposed.
func Invalid(field, format string, args ...any) *Error {
	field = visible.Line(field)
	e := Errorf(zamokpb.Code_CODE_INVALID, "%s: "+format+"; nothing was done",
		append([]any{field}, args...)...)
	e.Info.Field = field
	return e
}

// InItem is an Invalid error about a field of one of several items, of which the message says which
// one.
func InItem(i, of int, err error) error {
	if of == 1 {
		return err
	}
	e := Explain(err)
	e.Info.Message += fmt.Sprintf(" (item %d of %d)", i+1, of)
	return e
}

// StreamEnded is the reason for which a stream or a waiting call ends. What was in flight may have
// been done.
func StreamEnded(code zamokpb.Code, format string, args ...any) *Error {
	e := Errorf(code, format, args...)
	e.Info.Outcome = unknown
	return e
}

// FromResult is the reason for which a command was not carried out; nil: it was. Describe adds
// labels and metadata of the blockers.
func FromResult(r *fsm.Result) *Error {
	if r.Code == fsm.OK {
		return nil
	}
	if r.Code == fsm.Invalid && r.Detail != nil && r.Detail.Field == "token" {
		return NeverIssued(r.Index) // of a ForceRelease, whose other faults validation refused
	}
	if r.Code == fsm.Invalid && r.TTL != 0 { // of an OpenSession
		return Invalid("ttl",
			"is longer than %v, the longest ttl of this cluster; an operator can raise that with "+
				"zamok settings --longest-ttl", r.TTL)
	}
	row, known := resultErrors[r.Code]
	if !known {
		row = resultError{zamokpb.Code_CODE_INTERNAL,
			"the server encoded what the cluster can't read"}
	}
	retryAfter := clock.Span(0)
	if r.Code == fsm.LimitExceeded {
		row.text, retryAfter = limitText(r.Detail)
	}
	e := Errorf(row.code, "%s", row.text)
	e.ofLog = r.Index != 0
	e.Info.RetryAfter = int64(retryAfter)
	e.Info.Reason = zamokpb.Reason(r.Reason)
	if d := r.Detail; d != nil {
		e.Info.Field, e.Info.Of, e.Info.More = d.Field, d.Of, uint32(d.More)
		e.Info.Blockers, e.Info.Cycle = Blockers(d.Blockers), links(d.Cycle)
		kind := "as a mutex"
		if d.Of > 0 {
			kind = fmt.Sprintf("with %d permits", d.Of)
		}
		if strings.Contains(row.text, "{") {
			e.Info.Message = strings.NewReplacer("{field}", visible.Line(d.Field), "{kind}",
				kind).Replace(row.text)
		}
	}
	return e
}

// resultError is the code of a result on the wire, and its text: {field} and {kind} stand for what
// the details have.
type resultError struct {
	code zamokpb.Code
	text string
}

// resultErrors is the only table from the codes of the state machine to those of the wire.
var resultErrors = map[fsm.Code]resultError{
	fsm.Invalid: {zamokpb.Code_CODE_INVALID,
		"{field}: out of its limits; nothing was done"},
	fsm.NoSession: {zamokpb.Code_CODE_NO_SESSION,
		"the session is not alive, and none of its locks is held; open another one"},
	fsm.WrongSecret: {zamokpb.Code_CODE_WRONG_SECRET,
		"the secret is not this session's; nothing was done"},
	fsm.NotAcquired: {zamokpb.Code_CODE_NOT_ACQUIRED,
		"not acquired: it would have to wait, and its wait is 0"},
	fsm.Deadlock: {zamokpb.Code_CODE_DEADLOCK,
		"not acquired: to wait would close a cycle of waiting; drop what is held, and begin again"},
	fsm.OwnerWaits: {zamokpb.Code_CODE_OWNER_WAITS,
		"not acquired: its owner waits for something else already"},
	fsm.LockKindMismatch: {zamokpb.Code_CODE_KIND_MISMATCH,
		`not acquired: "{field}" is in use {kind}`},
	fsm.LimitExceeded: {code: zamokpb.Code_CODE_LIMIT_EXCEEDED}, // limitText
	fsm.NotHeld: {zamokpb.Code_CODE_NOT_HELD,
		"not done: the ticket is not held, or holds nothing that could be downgraded"},
	fsm.TicketEnded: {zamokpb.Code_CODE_TICKET_ENDED, "not done: the ticket has ended"},
	fsm.Superseded: {zamokpb.Code_CODE_SUPERSEDED,
		"not done: an attempt of this number or a higher one has attached the session already"},
	// A retry soon succeeds.
	fsm.OtherVersion: {zamokpb.Code_CODE_OVERLOADED,
		"not done: the cluster's rules changed meanwhile; send it again"},
}

// quotaRetry is the time to wait that a refusal by a quota contains: until others may have given
// something back.
const quotaRetry = clock.Second

// limitText describes a limit or a quota that was reached, with the time to wait, 0 if it does not
// help; a repeated answer has no details.
func limitText(d *fsm.Detail) (text string, retryAfter clock.Span) {
	if d == nil {
		return "not done: a limit was met when it was first requested; request it anew, as " +
			"another ticket", 0
	}
	if what, total := strings.CutPrefix(d.Field, "total_"); total {
		return "not done: the quota of this cluster for the " + what +
			" of all clients is reached; try again later, or have an operator raise the quota " +
			"(zamok settings)", quotaRetry
	}
	if what, own := strings.CutPrefix(d.Field, "identity_"); own {
		return "not done: this identity has reached its share of the quota for " + what +
			"; release locks and close sessions that are not needed, or have an operator raise " +
			"the quota (zamok settings)", quotaRetry
	}
	return "not done: the limit of {field} is reached", 0
}

// OfLeader is what the leader has answered to a call that this node relays.
func OfLeader(info *zamokpb.ErrorInfo) *Error { return &Error{Info: info, ofLog: true} }

// QuotaMet refuses a command that would exceed a quota, before it is proposed. An earlier
// transmission may have been proposed.
func QuotaMet(quota string) *Error {
	return FromResult(&fsm.Result{Code: fsm.LimitExceeded, Detail: &fsm.Detail{Field: quota}})
}

// NeverIssued refuses a token above every token that can have been issued up to an index.
func NeverIssued(index uint64) *Error {
	return Invalid("token",
		"this cluster has issued none above %d: it is mistyped, or another cluster's; give the "+
			"one that show (Get) has", index)
}

// Explain converts an error of the node.
func Explain(err error) *Error {
	var e *Error
	var other *raftnode.NotLeaderError
	code := zamokpb.Code_CODE_INTERNAL
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &other):
		e = Errorf(zamokpb.Code_CODE_NOT_LEADER, "%v", other)
		e.Info.Leader, e.Info.LeaderAddress = other.ID, other.Client
		return e
	case errors.Is(err, raftnode.ErrOverloaded), errors.Is(err, raftnode.ErrOtherVersion),
		errors.Is(err, raftnode.ErrNotYet):
		code = zamokpb.Code_CODE_OVERLOADED
	case errors.Is(err, raftnode.ErrClosed):
		code = zamokpb.Code_CODE_STOPPING
	case errors.Is(err, raftnode.ErrUnknown), errors.Is(err, context.Canceled),
		errors.Is(err, context.DeadlineExceeded):
		code = zamokpb.Code_CODE_UNKNOWN
	}
	e = Errorf(code, "%v", err)
	if errors.Is(err, raftnode.ErrUndecodable) {
		e.Info.Outcome = notDone
	}
	return e
}
