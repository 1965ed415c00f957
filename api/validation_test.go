package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/gate"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// A command with a bad field is answered with the field's name, and the stream continues.
func TestBadCommands(t *testing.T) {
	n := startCluster(t, 1, nil).leader()
	w := openStream(t, call(t, n), settings(clock.Minute))
	one := func(change func(*zamokpb.Acquire)) *zamokpb.ClientMessage {
		a := &zamokpb.Acquire{Ticket: 1,
			Items: []*zamokpb.Item{{Name: "x", Mode: zamokpb.Mode_MODE_EXCLUSIVE}}}
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
		{"items",
			one(func(a *zamokpb.Acquire) { a.Items = make([]*zamokpb.Item, fsm.ItemsMax+1) })},
		{"name", one(func(a *zamokpb.Acquire) { a.Items[0] = nil })},
		{"name", one(func(a *zamokpb.Acquire) { a.Items = append(a.Items, a.Items[0]) })},
		{"name", item(func(it *zamokpb.Item) { it.Name = "" })},
		{"name", item(func(it *zamokpb.Item) { it.Name = "bell\a" })},
		{"name",
			item(func(it *zamokpb.Item) { it.Name = strings.Repeat("n", fsm.NameBytesMax+1) })},
		{"mode", item(func(it *zamokpb.Item) { it.Mode = 0 })},
		{"mode", item(func(it *zamokpb.Item) { it.Mode = 99 })},
		{"permits", item(func(it *zamokpb.Item) { it.Of = 3 })},
		{"of", item(func(it *zamokpb.Item) { it.Mode = zamokpb.Mode_MODE_PERMITS })},
		{"permits", item(func(it *zamokpb.Item) {
			it.Mode, it.Permits, it.Of = zamokpb.Mode_MODE_PERMITS, 4, 3
		})},
		{"wait", one(func(a *zamokpb.Acquire) { a.Wait = -2 })},
		{"wait", one(func(a *zamokpb.Acquire) { a.Wait = int64(fsm.SpanMax) + 1 })},
		{"max_hold", one(func(a *zamokpb.Acquire) { a.MaxHold = -1 })},
		{"owner",
			one(func(a *zamokpb.Acquire) { a.Owner = strings.Repeat("o", fsm.OwnerBytesMax+1) })},
		{"meta", one(func(a *zamokpb.Acquire) { a.Meta = make([]byte, fsm.MetaBytesMax+1) })},
	} {
		w.send(bad.message)
		answer := w.answer()
		require.Equal(t, zamokpb.Code_CODE_INVALID, answer.Error.GetCode(), "%v", bad.message)
		assert.Equal(t, bad.field, answer.Error.Field)
		assert.Contains(t, answer.Error.Message, bad.field)
		assert.NotContains(t, answer.Error.Message, "out of its limits",
			"the machine's words, which don't say what is wrong")
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, answer.Error.Outcome)
		assert.Equal(t, zamokpb.State_STATE_UNSPECIFIED, answer.State.State)
	}
	w.send(exclusive(1, "x", 0))
	w.is(1, stateGranted)
}

// What breaks the protocol ends the stream, and nothing else.
func TestBadFrames(t *testing.T) {
	n := startCluster(t, 1, nil).leader()
	c := call(t, n)
	unharmed := openStream(t, c, settings(clock.Minute))
	for field, frame := range map[string]*zamokpb.ClientFrame{
		"messages[1]": {Messages: []*zamokpb.ClientMessage{keepAlive(),
			openMessage(&zamokpb.OpenStream{Secret: newSecret()})}},
		"messages[0]": {Messages: []*zamokpb.ClientMessage{{}}},
		"messages":    {Messages: make([]*zamokpb.ClientMessage, gate.FrameMessagesMax+1)},
		"sent":        {Sent: make([]byte, 32+1)},
	} {
		w := openStream(t, c, settings(clock.Minute))
		require.NoError(t, w.wire.Send(frame))
		info := infoOf(t, w.end())
		assert.Equal(t, zamokpb.Code_CODE_INVALID, info.Code)
		assert.Equal(t, field, info.Field)
	}
	for _, first := range []*zamokpb.ClientMessage{keepAlive(), exclusive(1, "x", 0), {},
		openMessage(nil)} {
		w := dial(t, c)
		w.send(first)
		assert.Equal(t, zamokpb.Code_CODE_INVALID, infoOf(t, w.end()).Code)
	}
	// Not even frames.
	for _, bytes := range [][]byte{{0xff}, []byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, 64)} {
		wire, err := c.conn.NewStream(soon(t), &zamokpb.Zamok_ServiceDesc.Streams[0],
			zamokpb.Zamok_Session_FullMethodName,
			grpc.ForceCodec(raw{}))
		require.NoError(t, err)
		require.NoError(t, wire.SendMsg(bytes))
		err = wire.RecvMsg(new([]byte))
		assert.Contains(t, []codes.Code{codes.Internal, codes.InvalidArgument}, status.Code(err),
			"%v", err)
	}
	// Far too long.
	w := openStream(t, c, settings(clock.Minute))
	w.send(acquire(&zamokpb.Acquire{Ticket: 1, Meta: make([]byte, 10<<20)}))
	assert.Equal(t, codes.ResourceExhausted, status.Code(w.end()))

	unharmed.send(exclusive(1, "x", 0))
	unharmed.is(1, stateGranted)
}

// raw sends bytes as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (raw) Name() string                    { return "proto" }

// A caller without permission is refused, and nothing is done.
func TestDenied(t *testing.T) {
	n := startCluster(t, 1, func(c *NodeConfig) {
		c.Rules = theseRules(t, "rules: [{groups: [anonymous], names: [open], may: [lock]}]")
	}).leader()
	w := openStream(t, call(t, n), settings(clock.Minute))
	w.send(acquire(&zamokpb.Acquire{Ticket: 1, Items: []*zamokpb.Item{
		{Name: "open", Mode: zamokpb.Mode_MODE_SHARED},
		{Name: "secret/x", Mode: zamokpb.Mode_MODE_SHARED},
	}}))
	info := w.answer().Error
	assert.Equal(t, zamokpb.Code_CODE_DENIED, info.GetCode())
	assert.Contains(t, info.Message, "secret/x")
	w.send(exclusive(1, "open", 0))
	w.is(1, stateGranted)
}
