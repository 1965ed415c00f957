package access

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoregistry"

	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/raftnode"
)

func guard(authorize Authorize) *Guard {
	return &Guard{
		Authorize: authorize, Timeout: func() time.Duration { return time.Second }, Servers: func() []raftnode.Server { return nil },
	}
}

// Every request of the protocol has a rule, also if all of its fields are missing.
func TestEveryRequestHasARule(t *testing.T) {
	g := guard(nil)
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

// An acquisition needs permission for each of its locks.
func TestEachLockIsAuthorized(t *testing.T) {
	var asked []string
	g := guard(func(_ context.Context, verb Verb, name string) error {
		assert.Equal(t, VerbAcquire, verb)
		if asked = append(asked, name); name == "b" {
			return errors.New("not you")
		}
		return nil
	})
	a := &zamokpb.Acquire{Ticket: 1}
	for _, name := range []string{"a", "b", "c"} {
		a.Items = append(a.Items, &zamokpb.Item{Name: name, Mode: zamokpb.Mode_MODE_SHARED})
	}
	require.ErrorContains(t, g.Admit(t.Context(), a), "not you")
	assert.Equal(t, []string{"a", "b"}, asked)
}

// A unary acquisition uses a session, which a stream was asked for when it was opened.
func TestUnaryAcquireIsAuthorizedForItsSession(t *testing.T) {
	g := guard(func(_ context.Context, verb Verb, _ string) error {
		if verb == VerbSession {
			return errors.New("not you")
		}
		return nil
	})
	a := &zamokpb.Acquire{Ticket: 1, Items: []*zamokpb.Item{{Name: "a", Mode: zamokpb.Mode_MODE_SHARED}}}
	require.NoError(t, g.Admit(t.Context(), a))
	r := &zamokpb.AcquireRequest{Session: 1, Secret: make([]byte, 16), Acquire: a}
	require.ErrorContains(t, g.Admit(t.Context(), r), "not you")
	require.NoError(t, guard(nil).Admit(t.Context(), r))
}
