package wire

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
	"zamok/fsm"
	"zamok/raftnode"
)

// Every code is in the table, and has a status that carries it.
func TestEveryCodeHasAVerdict(t *testing.T) {
	for number, name := range zamokpb.Code_name {
		code := zamokpb.Code(number)
		if code == zamokpb.Code_CODE_OK {
			continue
		}
		f := Errorf(code, "why")
		assert.NotEqual(t, codes.OK, f.GRPCStatus().Code(), name)
		assert.NotEqual(t, codes.Unknown, f.GRPCStatus().Code(), name)
		if code != zamokpb.Code_CODE_INTERNAL {
			assert.NotEqual(t, codes.Internal, f.GRPCStatus().Code(),
				"%s is missing in the table", name)
		}
		assert.True(t, proto.Equal(f.Info, infoOf(t, f)), name)
		assert.NotEqual(t, zamokpb.Outcome_OUTCOME_UNSPECIFIED, f.Info.Outcome, name)
	}
	for code := fsm.OK + 1; code <= fsm.OtherVersion; code++ {
		r := &fsm.Result{Code: code, Detail: &fsm.Detail{}}
		assert.NotEqual(t, zamokpb.Code_CODE_INTERNAL, FromResult(r).Info.Code, code)
		assert.NotEmpty(t, FromResult(r).Info.Message)
	}
	for err, code := range map[error]zamokpb.Code{
		&raftnode.NotLeaderError{}: zamokpb.Code_CODE_NOT_LEADER,
		raftnode.ErrUnknown:        zamokpb.Code_CODE_UNKNOWN,
		raftnode.ErrOverloaded:     zamokpb.Code_CODE_OVERLOADED,
		raftnode.ErrClosed:         zamokpb.Code_CODE_STOPPING,
		raftnode.ErrOtherVersion:   zamokpb.Code_CODE_OVERLOADED,
		errors.New("?"):            zamokpb.Code_CODE_INTERNAL,
		raftnode.ErrUndecodable:    zamokpb.Code_CODE_INTERNAL,
	} {
		assert.Equal(t, code, Explain(err).Info.Code, err)
	}
	assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, Explain(raftnode.ErrUndecodable).Info.Outcome)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, Explain(errors.New("?")).Info.Outcome)
}

// The wire's enums and the machine's have the same numbers.
func TestNumbersAreTheMachines(t *testing.T) {
	assert.EqualValues(t, zamokpb.Mode_MODE_PERMITS, fsm.Permits)
	assert.EqualValues(t, zamokpb.Mode_MODE_SHARED, fsm.Shared)
	assert.EqualValues(t, zamokpb.Mode_MODE_EXCLUSIVE, fsm.Exclusive)
	assert.EqualValues(t, zamokpb.BlockedBy_BLOCKED_BY_HOLDER, fsm.ByHolder)
	assert.EqualValues(t, zamokpb.BlockedBy_BLOCKED_BY_WAITER, fsm.ByWaiter)
	assert.EqualValues(t, zamokpb.BlockedBy_BLOCKED_BY_DELAY, fsm.ByDelay)
	assert.EqualValues(t, zamokpb.BlockedBy_BLOCKED_BY_HOLD_OFF, fsm.ByHoldOff)
	states := map[zamokpb.State]fsm.State{zamokpb.State_STATE_WAITING: fsm.Waiting,
		zamokpb.State_STATE_GRANTED: fsm.Granted, zamokpb.State_STATE_ENDED: fsm.Ended}
	for pb, machine := range states {
		assert.EqualValues(t, pb, machine)
	}
	for reason, pb := range map[fsm.Reason]zamokpb.Reason{
		fsm.Dropped: zamokpb.Reason_REASON_DROPPED, fsm.Closed: zamokpb.Reason_REASON_CLOSED,
		fsm.Expired:           zamokpb.Reason_REASON_EXPIRED,
		fsm.Disconnected:      zamokpb.Reason_REASON_DISCONNECTED,
		fsm.ExpiredByOperator: zamokpb.Reason_REASON_EXPIRED_BY_OPERATOR,
		fsm.ForceReleased:     zamokpb.Reason_REASON_FORCE_RELEASED,
		fsm.MaxHoldExceeded:   zamokpb.Reason_REASON_MAX_HOLD_EXCEEDED,
		fsm.WaitTimeout:       zamokpb.Reason_REASON_WAIT_TIMEOUT,
		fsm.TryFailed:         zamokpb.Reason_REASON_TRY_FAILED,
		fsm.Deadlocked:        zamokpb.Reason_REASON_DEADLOCKED,
		fsm.OwnerBusy:         zamokpb.Reason_REASON_OWNER_BUSY,
		fsm.KindMismatch:      zamokpb.Reason_REASON_KIND_MISMATCH,
		fsm.TooMany:           zamokpb.Reason_REASON_TOO_MANY,
		fsm.Restored:          zamokpb.Reason_REASON_RESTORED,
	} {
		assert.EqualValues(t, pb, reason)
	}
	assert.Len(t, zamokpb.Reason_name, int(fsm.ReasonCount))
	for code, pb := range map[fsm.Code]zamokpb.Code{
		fsm.Invalid: zamokpb.Code_CODE_INVALID, fsm.NoSession: zamokpb.Code_CODE_NO_SESSION,
		fsm.WrongSecret: zamokpb.Code_CODE_WRONG_SECRET,
		fsm.NotAcquired: zamokpb.Code_CODE_NOT_ACQUIRED,
		fsm.Deadlock:    zamokpb.Code_CODE_DEADLOCK, fsm.OwnerWaits: zamokpb.Code_CODE_OWNER_WAITS,
		fsm.LockKindMismatch: zamokpb.Code_CODE_KIND_MISMATCH,
		fsm.LimitExceeded:    zamokpb.Code_CODE_LIMIT_EXCEEDED,
		fsm.NotHeld:          zamokpb.Code_CODE_NOT_HELD,
		fsm.TicketEnded:      zamokpb.Code_CODE_TICKET_ENDED,
	} {
		assert.Equal(t, pb, FromResult(&fsm.Result{Code: code}).Code())
	}
}

// A quota that was met is named, with what to do; so is a limit, and an answer that comes again has
// no name.
func TestLimitsAreNamed(t *testing.T) {
	for field, text := range map[string]string{
		"total_bytes": "not done: the quota of this cluster for the bytes of all clients " +
			"is reached",
		"identity_sessions": "not done: this identity has reached its share of the quota for " +
			"sessions",
		"tickets": "not done: the limit of tickets is reached",
	} {
		e := QuotaMet(field)
		assert.Equal(t, zamokpb.Code_CODE_LIMIT_EXCEEDED, e.Code())
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, e.Info.Outcome)
		assert.Equal(t, field, e.Info.Field)
		assert.Contains(t, e.Info.Message, text)
		assert.Equal(t, field != "tickets", e.Info.RetryAfter > 0,
			"what others give back helps with a quota")
	}
	assert.NotContains(t,
		FromResult(&fsm.Result{Code: fsm.LimitExceeded, Reason: fsm.TooMany}).Info.Message, "{")
}

// infoOf is the ErrorInfo of an error as a client receives it.
func infoOf(t testing.TB, err error) *zamokpb.ErrorInfo {
	t.Helper()
	require.Error(t, err)
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*zamokpb.ErrorInfo); ok {
			return info
		}
	}
	require.FailNow(t, "an error without ErrorInfo", "%v", err)
	return nil
}

// A refusal before the log says nothing of an earlier transmission of an acquisition. The state
// machine's answer does, and so does what is wrong with the request itself.
func TestOnlyTheLogAnswersForRetransmissions(t *testing.T) {
	unknown, notDone := zamokpb.Outcome_OUTCOME_UNKNOWN, zamokpb.Outcome_OUTCOME_NOT_DONE
	overQuota := &fsm.Result{Code: fsm.LimitExceeded, Detail: &fsm.Detail{Field: "total_sessions"}}
	inLog := *overQuota
	inLog.Index = 7
	for _, test := range []struct {
		err            error
		retransmission zamokpb.Outcome
	}{
		{&raftnode.NotLeaderError{}, unknown}, {raftnode.ErrOverloaded, unknown},
		{raftnode.ErrClosed, unknown}, {raftnode.ErrUnknown, unknown},
		{Errorf(zamokpb.Code_CODE_DISK_LOW, "not done"), unknown},
		{Errorf(zamokpb.Code_CODE_DENIED, "not done"), unknown},
		{Errorf(zamokpb.Code_CODE_UNAUTHENTICATED, "not done"), unknown},
		{Errorf(zamokpb.Code_CODE_WRONG_CLUSTER, "not done"), unknown},
		{FromResult(overQuota), unknown}, {FromResult(&inLog), notDone},
		{Invalid("ttl", "is too short"), notDone},
		{FromResult(&fsm.Result{Code: fsm.NoSession}), notDone},
		{FromResult(&fsm.Result{Code: fsm.NotAcquired, Index: 7}), notDone},
	} {
		first := Explain(test.err).Info.Outcome
		assert.Equal(t, first, OfRetransmission(test.err, true).Info.Outcome, "%v", test.err)
		assert.Equal(t, test.retransmission, OfRetransmission(test.err, false).Info.Outcome, "%v",
			test.err)
	}
}

func TestNamesOfValues(t *testing.T) {
	for _, c := range []struct {
		value      Enum
		name, json string
	}{
		{zamokpb.Code_CODE_OK, "OK", ""},
		{zamokpb.Reason_REASON_UNSPECIFIED, "UNSPECIFIED", ""},
		{zamokpb.Reason_REASON_MAX_HOLD_EXCEEDED, "MAX_HOLD_EXCEEDED", "max_hold_exceeded"},
		{zamokpb.BlockedBy_BLOCKED_BY_HOLDER, "HOLDER", "holder"},
		{zamokpb.EventKind_EVENT_GRANTED, "GRANTED", "granted"},
		{zamokpb.Reason(1000), "1000", "1000"},
	} {
		assert.Equal(t, c.name, EnumName(c.value))
		assert.Equal(t, c.json, JSONName(c.value))
	}
}
