package api

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
)

// failure is an error on its way to a client. Handlers return it; gRPC asks it for a status.
type failure struct{ info *zamokpb.ErrorInfo }

func (f *failure) Error() string { return f.info.GetMessage() }

// GRPCStatus is the status that the client gets, with the ErrorInfo as its detail.
func (f *failure) GRPCStatus() *status.Status {
	s := status.New(statusOf(f.info.GetCode()).grpc, f.info.GetMessage())
	if detailed, err := s.WithDetails(f.info); err == nil {
		return detailed
	}
	return s
}

// grpcStatus is what a code means to somebody who knows gRPC only, and what took effect.
type grpcStatus struct {
	grpc    codes.Code
	outcome zamokpb.Outcome
}

// statusOf is the one table from our codes to gRPC's.
func statusOf(code zamokpb.Code) grpcStatus {
	const (
		notDone = zamokpb.Outcome_OUTCOME_NOT_DONE
		unknown = zamokpb.Outcome_OUTCOME_UNKNOWN
	)
	switch code {
	case zamokpb.Code_CODE_OK:
		return grpcStatus{codes.OK, zamokpb.Outcome_OUTCOME_DONE}
	case zamokpb.Code_CODE_INVALID:
		return grpcStatus{codes.InvalidArgument, notDone}
	case zamokpb.Code_CODE_NO_SESSION:
		return grpcStatus{codes.NotFound, notDone}
	case zamokpb.Code_CODE_WRONG_SECRET, zamokpb.Code_CODE_DENIED:
		return grpcStatus{codes.PermissionDenied, notDone}
	case zamokpb.Code_CODE_NOT_ACQUIRED, zamokpb.Code_CODE_OWNER_WAITS, zamokpb.Code_CODE_KIND_MISMATCH,
		zamokpb.Code_CODE_NOT_HELD, zamokpb.Code_CODE_TICKET_ENDED, zamokpb.Code_CODE_REFUSED, zamokpb.Code_CODE_WRONG_CLUSTER:
		return grpcStatus{codes.FailedPrecondition, notDone}
	case zamokpb.Code_CODE_DEADLOCK, zamokpb.Code_CODE_SUPERSEDED:
		return grpcStatus{codes.Aborted, notDone}
	case zamokpb.Code_CODE_LIMIT_EXCEEDED, zamokpb.Code_CODE_DISK_LOW:
		return grpcStatus{codes.ResourceExhausted, notDone}
	case zamokpb.Code_CODE_NOT_LEADER, zamokpb.Code_CODE_OVERLOADED, zamokpb.Code_CODE_STOPPING:
		return grpcStatus{codes.Unavailable, notDone}
	case zamokpb.Code_CODE_UNKNOWN:
		return grpcStatus{codes.Unavailable, unknown}
	case zamokpb.Code_CODE_SLOW_READER:
		return grpcStatus{codes.ResourceExhausted, unknown}
	case zamokpb.Code_CODE_COMPACTED:
		return grpcStatus{codes.OutOfRange, notDone}
	default:
		return grpcStatus{codes.Internal, unknown}
	}
}

// codeOf is the one table from the machine's codes to the wire's.
func codeOf(code fsm.Code) zamokpb.Code {
	switch code {
	case fsm.OK, fsm.Invalid, fsm.NoSession, fsm.WrongSecret, fsm.NotAcquired, fsm.Deadlock, fsm.OwnerWaits,
		fsm.LockKindMismatch, fsm.LimitExceeded, fsm.NotHeld, fsm.TicketEnded:
		return zamokpb.Code(code) // they have the same numbers
	case fsm.Superseded:
		return zamokpb.Code_CODE_SUPERSEDED
	case fsm.OtherVersion:
		return zamokpb.Code_CODE_OVERLOADED // not done, and a little later it will be
	default:
		return zamokpb.Code_CODE_INTERNAL
	}
}

// fail makes a failure with the outcome that its code usually has.
func fail(code zamokpb.Code, format string, args ...any) *failure {
	return &failure{&zamokpb.ErrorInfo{
		Code: code, Outcome: statusOf(code).outcome, Message: fmt.Sprintf(format, args...),
	}}
}

// invalid names the field that is out of its limits. Nothing was proposed.
func invalid(field, format string, args ...any) *failure {
	f := fail(zamokpb.Code_CODE_INVALID, "%s: "+format+"; nothing was done", append([]any{field}, args...)...)
	f.info.Field = field
	return f
}

// refused says why a command was not carried out; nil = it was. Labels and metadata of blockers are
// for describe to add.
func refused(r *fsm.Result) *failure {
	if r.Code == fsm.OK {
		return nil
	}
	f := fail(codeOf(r.Code), "%s", messageFor(r))
	f.info.Reason = zamokpb.Reason(r.Reason)
	if d := r.Detail; d != nil {
		f.info.Field, f.info.Limit, f.info.More = d.Field, d.Limit, uint32(d.More)
		f.info.Blockers, f.info.Cycle = toBlockers(d.Blockers), toLinks(d.Cycle)
	}
	return f
}

// messageFor says a refusal in words.
func messageFor(r *fsm.Result) string {
	field := ""
	if r.Detail != nil {
		field = r.Detail.Field
	}
	switch r.Code {
	case fsm.Invalid:
		if field == "token" { // of a ForceRelease, whose other faults were refused before
			return neverIssued(r.Index)
		}
		return field + ": out of its limits; nothing was done"
	case fsm.NoSession:
		return "the session is not alive, and none of its locks is held; open another one"
	case fsm.WrongSecret:
		return "the secret is not this session's; nothing was done"
	case fsm.NotAcquired:
		return "not acquired: it would have to wait, and was asked not to"
	case fsm.Deadlock:
		return "not acquired: to wait would close a cycle of waiting; drop what is held, and begin again"
	case fsm.OwnerWaits:
		return "not acquired: its owner waits for something else already"
	case fsm.LockKindMismatch:
		if r.Detail.Limit == 0 {
			return fmt.Sprintf("not acquired: %q is in use as a mutex", field)
		}
		return fmt.Sprintf("not acquired: %q is in use with %d permits", field, r.Detail.Limit)
	case fsm.LimitExceeded:
		return "not done: the limit of " + field + " is reached"
	case fsm.NotHeld:
		return "not done: the ticket is not held, or holds nothing that could be downgraded"
	case fsm.TicketEnded:
		return "not done: the ticket is over"
	case fsm.Superseded:
		return "not done: an attempt of this number or a higher one has attached the session already"
	case fsm.OtherVersion:
		return "not done: the cluster's rules changed meanwhile; send it again"
	}
	return "the server encoded what the cluster can't read"
}

// neverIssued refuses a token that is above every one that can have been issued up to an index.
func neverIssued(index uint64) string {
	return fmt.Sprintf("token: this cluster has issued none above %d: it is mistyped, or another cluster's; "+
		"give the one that show (Get) says; nothing was done", index)
}

// explain turns an error of the node into what a client is told.
func explain(err error) *failure {
	var f *failure
	var elsewhere *raftnode.NotLeaderError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &elsewhere):
		f := fail(zamokpb.Code_CODE_NOT_LEADER, "%v", elsewhere)
		f.info.Leader, f.info.LeaderAddress = elsewhere.ID, elsewhere.Client
		return f
	case errors.Is(err, raftnode.ErrOverloaded), errors.Is(err, raftnode.ErrOtherVersion), errors.Is(err, raftnode.ErrNotYet):
		return fail(zamokpb.Code_CODE_OVERLOADED, "%v", err)
	case errors.Is(err, raftnode.ErrClosed):
		return fail(zamokpb.Code_CODE_STOPPING, "%v", err)
	case errors.Is(err, raftnode.ErrUnknown), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fail(zamokpb.Code_CODE_UNKNOWN, "%v", err)
	default:
		return fail(zamokpb.Code_CODE_INTERNAL, "%v", err)
	}
}
