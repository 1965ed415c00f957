package api

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
)

// A command with a bad field is answered with the field's name, and the stream continues.
func TestBadCommands(t *testing.T) {
	n := startCluster(t, 1, nil).leader()
	w := talk(t, call(t, n), settings(clock.Minute))
	one := func(change func(*zamokpb.Acquire)) *zamokpb.ClientMessage {
		a := &zamokpb.Acquire{Ticket: 1, Items: []*zamokpb.Item{{Name: "x", Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}
		change(a)
		return acquire(a)
	}
	item := func(change func(*zamokpb.Item)) *zamokpb.ClientMessage {
		return one(func(a *zamokpb.Acquire) { change(a.Items[0]) })
	}
	for _, bad := range []struct {
		field   string
		message *zamokpb.ClientMessage
	}{
		{"ticket", one(func(a *zamokpb.Acquire) { a.Ticket = 0 })},
		{"ticket", drop(0)},
		{"ticket", downgrade(0)},
		{"ticket", acquire(nil)},
		{"items", one(func(a *zamokpb.Acquire) { a.Items = nil })},
		{"items", one(func(a *zamokpb.Acquire) { a.Items = make([]*zamokpb.Item, fsm.ItemsMax+1) })},
		{"items[0].name", one(func(a *zamokpb.Acquire) { a.Items[0] = nil })},
		{"items[1].name", one(func(a *zamokpb.Acquire) { a.Items = append(a.Items, a.Items[0]) })},
		{"items[0].name", item(func(it *zamokpb.Item) { it.Name = "" })},
		{"items[0].name", item(func(it *zamokpb.Item) { it.Name = "bell\a" })},
		{"items[0].name", item(func(it *zamokpb.Item) { it.Name = strings.Repeat("n", fsm.NameBytesMax+1) })},
		{"items[0].mode", item(func(it *zamokpb.Item) { it.Mode = 0 })},
		{"items[0].mode", item(func(it *zamokpb.Item) { it.Mode = 99 })},
		{"items[0].permits", item(func(it *zamokpb.Item) { it.Limit = 3 })},
		{"items[0].of", item(func(it *zamokpb.Item) { it.Mode = zamokpb.Mode_MODE_PERMITS })},
		{"items[0].permits", item(func(it *zamokpb.Item) { it.Mode, it.Permits, it.Limit = zamokpb.Mode_MODE_PERMITS, 4, 3 })},
		{"wait_for", one(func(a *zamokpb.Acquire) { a.WaitFor = -2 })},
		{"wait_for", one(func(a *zamokpb.Acquire) { a.WaitFor = int64(fsm.SpanMax) + 1 })},
		{"max_hold", one(func(a *zamokpb.Acquire) { a.MaxHold = -1 })},
		{"owner", one(func(a *zamokpb.Acquire) { a.Owner = strings.Repeat("o", fsm.OwnerBytesMax+1) })},
		{"metadata", one(func(a *zamokpb.Acquire) { a.Metadata = make([]byte, fsm.MetadataBytesMax+1) })},
	} {
		w.say(bad.message)
		answer := w.answer()
		require.Equal(t, zamokpb.Code_CODE_INVALID, answer.Error.GetCode(), "%v", bad.message)
		assert.Equal(t, bad.field, answer.Error.Field)
		assert.Contains(t, answer.Error.Message, bad.field)
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, answer.Error.Outcome)
		assert.Equal(t, zamokpb.State_STATE_UNSPECIFIED, answer.State.State)
	}
	w.say(exclusive(1, "x", 0))
	w.is(1, stateGranted)
}

// What breaks the protocol ends the stream, and nothing else.
func TestBadFrames(t *testing.T) {
	n := startCluster(t, 1, nil).leader()
	c := call(t, n)
	unharmed := talk(t, c, settings(clock.Minute))
	for field, frame := range map[string]*zamokpb.ClientFrame{
		"messages[1]": {Messages: []*zamokpb.ClientMessage{keepAlive(), hello(&zamokpb.OpenStream{Secret: newSecret()})}},
		"messages[0]": {Messages: []*zamokpb.ClientMessage{{}}},
		"messages":    {Messages: make([]*zamokpb.ClientMessage, frameMessagesMax+1)},
		"sent":        {Sent: make([]byte, sentBytesMax+1)},
	} {
		w := talk(t, c, settings(clock.Minute))
		require.NoError(t, w.wire.Send(frame))
		info := infoOf(t, w.end())
		assert.Equal(t, zamokpb.Code_CODE_INVALID, info.Code)
		assert.Equal(t, field, info.Field)
	}
	for _, first := range []*zamokpb.ClientMessage{keepAlive(), exclusive(1, "x", 0), {}, hello(nil)} {
		w := dial(t, c)
		w.say(first)
		assert.Equal(t, zamokpb.Code_CODE_INVALID, infoOf(t, w.end()).Code)
	}
	// Not even frames.
	for _, bytes := range [][]byte{{0xff}, []byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, 64)} {
		wire, err := c.conn.NewStream(soon(t), &zamokpb.Zamok_ServiceDesc.Streams[0], zamokpb.Zamok_Session_FullMethodName,
			grpc.ForceCodec(raw{}))
		require.NoError(t, err)
		require.NoError(t, wire.SendMsg(bytes))
		err = wire.RecvMsg(new([]byte))
		assert.Contains(t, []codes.Code{codes.Internal, codes.InvalidArgument}, status.Code(err), "%v", err)
	}
	// Far too long.
	w := talk(t, c, settings(clock.Minute))
	w.say(acquire(&zamokpb.Acquire{Ticket: 1, Metadata: make([]byte, 10<<20)}))
	assert.Equal(t, codes.ResourceExhausted, status.Code(w.end()))

	unharmed.say(exclusive(1, "x", 0))
	unharmed.is(1, stateGranted)
}

// raw sends bytes as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (raw) Name() string                    { return "proto" }

// Who may not do a thing is told so, and nothing was done.
func TestDenied(t *testing.T) {
	n := startCluster(t, 1, func(c *NodeConfig) {
		c.Authorize = func(_ context.Context, verb Verb, name string) error {
			if verb == VerbAcquire && strings.HasPrefix(name, "secret/") {
				return errors.New("ask the owner")
			}
			return nil
		}
	}).leader()
	w := talk(t, call(t, n), settings(clock.Minute))
	w.say(acquire(&zamokpb.Acquire{Ticket: 1, Items: []*zamokpb.Item{
		{Name: "open", Mode: zamokpb.Mode_MODE_SHARED}, {Name: "secret/x", Mode: zamokpb.Mode_MODE_SHARED},
	}}))
	info := w.answer().Error
	assert.Equal(t, zamokpb.Code_CODE_DENIED, info.GetCode())
	assert.Contains(t, info.Message, "secret/x")
	assert.Contains(t, info.Message, "ask the owner")
	w.say(exclusive(1, "open", 0))
	w.is(1, stateGranted)
}

// Every code has its place in the table, and a status that carries it.
func TestEveryCodeHasAVerdict(t *testing.T) {
	for number, name := range zamokpb.Code_name {
		code := zamokpb.Code(number)
		if code == zamokpb.Code_CODE_OK {
			continue
		}
		f := fail(code, "why")
		assert.NotEqual(t, codes.OK, f.GRPCStatus().Code(), name)
		assert.NotEqual(t, codes.Unknown, f.GRPCStatus().Code(), name)
		if code != zamokpb.Code_CODE_INTERNAL {
			assert.NotEqual(t, codes.Internal, f.GRPCStatus().Code(), "%s is missing in the table", name)
		}
		assert.True(t, proto.Equal(f.info, infoOf(t, f)), name)
		assert.NotEqual(t, zamokpb.Outcome_OUTCOME_UNSPECIFIED, f.info.Outcome, name)
	}
	for code := fsm.OK + 1; code < fsm.Malformed; code++ {
		r := &fsm.Result{Code: code, Detail: &fsm.Detail{}}
		assert.NotEqual(t, zamokpb.Code_CODE_INTERNAL, refused(r).info.Code, code)
		assert.NotEmpty(t, refused(r).info.Message)
	}
	for err, code := range map[error]zamokpb.Code{
		&raftnode.NotLeaderError{}: zamokpb.Code_CODE_NOT_LEADER, raftnode.ErrUnknown: zamokpb.Code_CODE_UNKNOWN,
		raftnode.ErrOverloaded: zamokpb.Code_CODE_OVERLOADED, raftnode.ErrClosed: zamokpb.Code_CODE_STOPPING,
		raftnode.ErrOtherVersion: zamokpb.Code_CODE_OVERLOADED, errors.New("?"): zamokpb.Code_CODE_INTERNAL,
	} {
		assert.Equal(t, code, explain(err).info.Code, err)
	}
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
	states := map[zamokpb.State]fsm.State{stateWaiting: fsm.Waiting, stateGranted: fsm.Granted, stateGone: fsm.Ended}
	for pb, machine := range states {
		assert.EqualValues(t, pb, machine)
	}
	for reason, pb := range map[fsm.Reason]zamokpb.Reason{
		fsm.Dropped: zamokpb.Reason_REASON_DROPPED, fsm.Closed: zamokpb.Reason_REASON_CLOSED, fsm.Expired: zamokpb.Reason_REASON_EXPIRED,
		fsm.Disconnected: zamokpb.Reason_REASON_DISCONNECTED, fsm.Evicted: zamokpb.Reason_REASON_EVICTED,
		fsm.Revoked: zamokpb.Reason_REASON_REVOKED, fsm.MaxHoldExceeded: zamokpb.Reason_REASON_MAX_HOLD_EXCEEDED,
		fsm.WaitTimeout: zamokpb.Reason_REASON_WAIT_TIMEOUT, fsm.TryFailed: zamokpb.Reason_REASON_TRY_FAILED,
		fsm.Deadlocked: zamokpb.Reason_REASON_DEADLOCKED, fsm.OwnerBusy: zamokpb.Reason_REASON_OWNER_BUSY,
		fsm.KindMismatch: zamokpb.Reason_REASON_KIND_MISMATCH, fsm.TooMany: zamokpb.Reason_REASON_TOO_MANY,
		fsm.Restored: zamokpb.Reason_REASON_RESTORED,
	} {
		assert.EqualValues(t, pb, reason)
	}
	assert.Len(t, zamokpb.Reason_name, int(fsm.ReasonCount))
	for code, pb := range map[fsm.Code]zamokpb.Code{
		fsm.Invalid: zamokpb.Code_CODE_INVALID, fsm.NoSession: zamokpb.Code_CODE_NO_SESSION,
		fsm.WrongSecret: zamokpb.Code_CODE_WRONG_SECRET, fsm.NotAcquired: zamokpb.Code_CODE_NOT_ACQUIRED,
		fsm.Deadlock: zamokpb.Code_CODE_DEADLOCK, fsm.OwnerWaits: zamokpb.Code_CODE_OWNER_WAITS,
		fsm.LockKindMismatch: zamokpb.Code_CODE_KIND_MISMATCH, fsm.LimitExceeded: zamokpb.Code_CODE_LIMIT_EXCEEDED,
		fsm.NotHeld: zamokpb.Code_CODE_NOT_HELD, fsm.TicketEnded: zamokpb.Code_CODE_TICKET_ENDED,
	} {
		assert.Equal(t, pb, codeOf(code))
	}
}
