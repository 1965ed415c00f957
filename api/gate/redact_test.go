package gate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"zamok/api/wire"
	"zamok/api/zamokpb"
)

const hidden = "hidden/x"

// fill sets every field of a message: texts and bytes to what must not be seen.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		one := func() protoreflect.Value {
			switch f.Kind() {
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(hidden)
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes([]byte(hidden))
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true)
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(1)
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(7)
			case protoreflect.Uint64Kind:
				return protoreflect.ValueOfUint64(7)
			}
			return protoreflect.ValueOfInt64(7)
		}
		switch {
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message())
		case f.IsList():
			m.Mutable(f).List().Append(one())
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		default:
			m.Set(f, one())
		}
	}
}

// shown are the responses that have texts of others all the same, and why.
var shown = map[protoreflect.Name]string{
	"MembersResponse": "nodes are no locks",
	"BackupChunk":     "only operators have backups",
	"WatchFrame":      "made of what its watch may be sent, see Gate.Watches",
}

// TestAResponseHasNothingHidden fills every response with a name that its caller may neither read
// nor watch.
func TestAResponseHasNothingHidden(t *testing.T) {
	g := testGate(t, "rules: [{identities: [bob], names: [open], may: [lock, read, watch]}]")
	bob := callerContext(t.Context(), Caller{Identity: "bob"})
	services := zamokpb.File_zamok_proto.Services()
	seen := 0
	look := func(d *Request, m proto.Message) {
		switch m := m.(type) { // what the caller has named itself, or is its own session's
		case *zamokpb.GetResponse:
			m.Lock.Name = "open"
			for _, ticket := range append(m.Holders, m.Queue...) {
				ticket.Items = append(ticket.Items, &zamokpb.Item{Name: "open"})
			}
		}
		g.redact(bob, d, m, nil)
		assert.NotContains(t, prototext.Format(texts(m)), hidden, "%s",
			m.ProtoReflect().Descriptor().Name())
		seen++
	}
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			method := services.Get(i).Methods().Get(j)
			d, output := OfMethod(fmt.Sprintf("/%s/%s", services.Get(i).FullName(), method.Name())),
				method.Output()
			require.NotNil(t, d, method.FullName())
			if shown[output.Name()] != "" {
				continue
			}
			kind, err := protoregistry.GlobalTypes.FindMessageByName(output.FullName())
			require.NoError(t, err)
			if output.Name() == "ServerFrame" {
				message :=
					new(zamokpb.ServerMessage).ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
				for k := range message.Len() {
					m := &zamokpb.ServerMessage{}
					fill(m.ProtoReflect().Mutable(message.Get(k)).Message())
					look(d, &zamokpb.ServerFrame{Messages: []*zamokpb.ServerMessage{m}})
				}
				continue
			}
			m := kind.New()
			fill(m)
			look(d, m.Interface())
		}
	}
	require.Greater(t, seen, 20)

	e := &wire.Error{Info: &zamokpb.ErrorInfo{}}
	fill(e.Info.ProtoReflect())
	g.redact(bob, nil, nil, e)
	assert.NotContains(t, prototext.Format(texts(e.Info)), hidden)
	require.Len(t, e.Info.Blockers, 1)
	require.Len(t, e.Info.Cycle, 1)

	// Of its own ticket the caller sees each lock, and not who is in its way at one that it may not
	// read.
	own := &zamokpb.Ticket{
		Identity: "bob", Items: []*zamokpb.Item{{Name: "open"}, {Name: hidden}},
		Blockers: []*zamokpb.Blocker{{Name: hidden, Session: 7, Owner: "x", Label: "y"},
			{Name: "open", Session: 8}},
	}
	g.redact(bob, Of(&zamokpb.GetRequest{}),
		&zamokpb.GetResponse{Lock: &zamokpb.LockSummary{Name: "open"},
			Queue: []*zamokpb.Ticket{own}}, nil)
	require.Len(t, own.Items, 2)
	require.Len(t, own.Blockers, 2)
	assert.True(t, proto.Equal(&zamokpb.Blocker{}, own.Blockers[0]), "%v", own.Blockers)
	assert.Equal(t, uint64(8), own.Blockers[1].Session)

	// What the caller may lock has its name, since it can find out that it is locked; and its own
	// owner is shown.
	g = testGate(t, "rules: [{identities: [bob], names: [open], may: [lock]}]")
	e.Info.Blockers = []*zamokpb.Blocker{{Name: "open", Session: 7, Owner: "x"},
		{Session: 8, Owner: "mine"}}
	e.Info.Cycle = []*zamokpb.Link{
		{Name: "open", Session: 7, Owner: "x", State: zamokpb.State_STATE_WAITING}}
	g.redact(bob, nil, nil, e)
	require.Len(t, e.Info.Blockers, 2)
	assert.True(t, proto.Equal(&zamokpb.Blocker{Name: "open"}, e.Info.Blockers[0]), "%v",
		e.Info.Blockers)
	assert.True(t, proto.Equal(&zamokpb.Blocker{Session: 8, Owner: "mine"}, e.Info.Blockers[1]),
		"%v", e.Info.Blockers)
	assert.True(t, proto.Equal(&zamokpb.Link{Name: "open", State: zamokpb.State_STATE_WAITING},
		e.Info.Cycle[0]), "%v", e.Info.Cycle)
}

// texts keeps of a message what can name a lock or a client. The rest is of the caller's own
// session, or of the server.
func texts(m proto.Message) proto.Message {
	m = proto.Clone(m)
	clearFields(m.ProtoReflect())
	return m
}

func clearFields(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch f.FullName() {
		case "zamok.v1.Change.text", "zamok.v1.SessionEnded.text", "zamok.v1.SessionState.node",
			"zamok.v1.ErrorInfo.message",
			"zamok.v1.ErrorInfo.field", "zamok.v1.ErrorInfo.leader",
			"zamok.v1.ErrorInfo.leader_address", "zamok.v1.ErrorInfo.cluster",
			"zamok.v1.QueuePosition.name", // that the caller requested
			// Of a ticket with a lock that the caller may read, all but its other locks.
			"zamok.v1.Ticket.owner", "zamok.v1.Ticket.meta", "zamok.v1.Ticket.label",
			"zamok.v1.Ticket.identity":
			m.Clear(f)
			return true
		}
		switch {
		case f.Name() == "sent": // the caller's own
			m.Clear(f)
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				clearFields(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			clearFields(v.Message())
		}
		return true
	})
}
