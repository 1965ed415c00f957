package access

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoregistry"

	"zamok/api/access/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/raftnode"
)

// guard admits with these rules; "": with none.
func guard(t *testing.T, text string) *Guard {
	var set *rules.Set
	if text != "" {
		var err error
		set, err = rules.Parse([]byte(text))
		require.NoError(t, err)
	}
	return &Guard{
		Rules: func() *rules.Set { return set }, Servers: func() []raftnode.Server { return nil },
	}
}

// Every request of the protocol has a rule, also if all of its fields are missing.
func TestEveryRequestHasARule(t *testing.T) {
	g := guard(t, "")
	services := zamokpb.File_zamok_proto.Services()
	requests := 0
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			input := methods.Get(j).Input().FullName()
			if input == new(zamokpb.ClientFrame).ProtoReflect().Descriptor().FullName() {
				continue // its messages have rules
			}
			kind, err := protoregistry.GlobalTypes.FindMessageByName(input)
			require.NoError(t, err)
			err = g.Admit(t.Context(), kind.New().Interface())
			if err != nil {
				assert.Equal(t, zamokpb.Code_CODE_INVALID, err.(*wire.Error).Code(), "%s: %v", input, err)
			}
			requests++
		}
	}
	assert.Greater(t, requests, 15)
	for _, message := range []any{(*zamokpb.OpenStream)(nil), (*zamokpb.Acquire)(nil), (*zamokpb.TicketRequest)(nil)} {
		var e *wire.Error
		require.ErrorAs(t, g.Admit(t.Context(), message), &e)
		assert.Equal(t, zamokpb.Code_CODE_INVALID, e.Code(), "%T", message)
	}
	var e *wire.Error
	require.ErrorAs(t, g.Admit(t.Context(), "unknown"), &e)
	assert.Equal(t, zamokpb.Code_CODE_INTERNAL, e.Code())
}

// Each setting that all clients obey is changed by operators only, and every change is on record. All may read them.
func TestOnlyOperatorsChangeSettings(t *testing.T) {
	g := guard(t, "rules: [{identities: [alice], names: ['*'], may: [lock, read, watch, release]}, {identities: [root], may: [operate]}]")
	alice, root := NewContext(t.Context(), Caller{Identity: "alice"}), NewContext(t.Context(), Caller{Identity: "root"})
	for _, r := range []*zamokpb.SettingsRequest{
		{LongestTtl: int64(time.Hour)}, {Quotas: &zamokpb.Quotas{Sessions: 1}}, {Quotas: &zamokpb.Quotas{Tickets: 1}},
		{Quotas: &zamokpb.Quotas{Bytes: 1}}, {Quotas: &zamokpb.Quotas{Share: 1}},
	} {
		require.ErrorContains(t, g.Admit(alice, r), "alice may not operate", "%v", r)
		require.NoError(t, g.Admit(root, r), "%v", r)
		require.True(t, g.IsOperation(r), "%v", r)
	}
	for _, r := range []*zamokpb.SettingsRequest{{}, {Quotas: &zamokpb.Quotas{}}} {
		require.NoError(t, g.Admit(alice, r))
		require.False(t, g.IsOperation(r))
	}
}

// An acquisition needs permission for each of its locks, and a session for some.
func TestEachLockIsAuthorized(t *testing.T) {
	g := guard(t, "rules: [{identities: [alice], names: [a, c*], may: [lock]}, {identities: [bob], names: [a], may: [read]}]")
	alice, bob := NewContext(t.Context(), Caller{Identity: "alice"}), NewContext(t.Context(), Caller{Identity: "bob"})
	acquire := func(names ...string) *zamokpb.AcquireRequest {
		a := &zamokpb.Acquire{Ticket: 1}
		for _, name := range names {
			a.Items = append(a.Items, &zamokpb.Item{Name: name, Mode: zamokpb.Mode_MODE_SHARED})
		}
		return &zamokpb.AcquireRequest{Session: 1, Secret: make([]byte, 16), Acquire: a}
	}
	require.NoError(t, g.Admit(alice, acquire("a", "c/d")))
	require.NoError(t, g.Admit(alice, acquire("a", "c/d").Acquire), "on a stream")
	for _, r := range []any{acquire("a", "b", "c"), acquire("b").Acquire} {
		var e *wire.Error
		require.ErrorAs(t, g.Admit(alice, r), &e)
		assert.Equal(t, zamokpb.Code_CODE_DENIED, e.Code())
		assert.Equal(t, `not done: alice may not lock "b": no rule allows it or any other verb`, e.Error())
	}
	open := &zamokpb.OpenStream{Session: 1, Secret: make([]byte, 16)}
	require.NoError(t, g.Admit(alice, open))
	require.ErrorContains(t, g.Admit(bob, open), "bob may not lock")
	require.ErrorContains(t, g.Admit(t.Context(), open), "an unknown caller may not lock")
	require.NoError(t, g.Admit(bob, &zamokpb.NowRequest{}))
	require.ErrorContains(t, g.Admit(t.Context(), &zamokpb.NowRequest{}), "may not do anything here")
}
