package gate

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/gate/identity"
	"zamok/api/gate/rules"
	"zamok/api/history"
	"zamok/api/service"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// oneRequest is a stream whose client sends a request and nothing more.
type oneRequest struct {
	request proto.Message
	sent    bool
}

func (o *oneRequest) RecvMsg(m any) error {
	if o.sent {
		return io.EOF
	}
	o.sent = true
	proto.Merge(m.(proto.Message), o.request)
	return nil
}
func (*oneRequest) SendMsg(any) error { return nil }

// TestAHeldCallEndsWithItsRights: with its caller's token, and with the rules that allowed it,
// although no message comes.
func TestAHeldCallEndsWithItsRights(t *testing.T) {
	token, line, err := identity.NewToken("alice", time.Time{})
	require.NoError(t, err)
	from := Arrival{Address: "192.0.2.1:1", Tokens: []string{"Bearer " + token}}
	allowed, err := rules.Parse(
		[]byte("rules: [{identities: [alice], names: [x], may: [lock, watch]}]"))
	require.NoError(t, err)
	other, err := rules.Parse(
		[]byte("rules: [{identities: [alice], names: [y], may: [lock, watch]}]"))
	require.NoError(t, err)
	acquire := func(g *Gate, ctx context.Context) error {
		request := &zamokpb.AcquireRequest{
			Acquire: &zamokpb.Acquire{Ticket: 1, Items: []*zamokpb.Item{{Name: "x"}}}}
		ctx, err := g.Identify(ctx, from, zamokpb.Zamok_Acquire_FullMethodName)
		require.NoError(t, err)
		lasting, stop := g.whileAllowed(ctx, request, false)
		defer stop()
		<-lasting.Done()
		return context.Cause(lasting)
	}
	watch := func(g *Gate, ctx context.Context) error {
		return g.Stream(ctx, from, zamokpb.Zamok_Watch_FullMethodName,
			&oneRequest{request: &zamokpb.WatchRequest{Prefix: "x"}})
	}
	for name, call := range map[string]func(*Gate, context.Context) error{"acquire": acquire,
		"watch": watch} {
		for _, test := range []struct {
			name   string
			change func(v *atomic.Pointer[identity.Verifier], set *atomic.Pointer[rules.Set])
			code   zamokpb.Code
			says   string
		}{
			{"token", func(v *atomic.Pointer[identity.Verifier], _ *atomic.Pointer[rules.Set]) {
				v.Store(&identity.Verifier{})
			}, zamokpb.Code_CODE_UNAUTHENTICATED, "the token is not known here"},
			{"rules", func(_ *atomic.Pointer[identity.Verifier], set *atomic.Pointer[rules.Set]) {
				set.Store(other)
			},
				zamokpb.Code_CODE_DENIED,
				"the call ends, because the rules have changed: alice may not "},
			{"nothing", func(*atomic.Pointer[identity.Verifier], *atomic.Pointer[rules.Set]) {},
				zamokpb.Code_CODE_UNKNOWN, "canceled"},
		} {
			t.Run(name+" "+test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					v, set := new(atomic.Pointer[identity.Verifier]), new(atomic.Pointer[rules.Set])
					v.Store(&identity.Verifier{Tokens: identity.Tokens{line.ID: line}})
					set.Store(allowed)
					g := testGate(t, "")
					g.Identity.Verifier, g.Rules = func() identity.Verifier { return *v.Load() },
						set.Load
					g.Service = service.New(service.Config{History: history.New(),
						Stopping: make(chan struct{})})
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan error, 1)
					go func() { ended <- call(g, ctx) }()
					time.Sleep(time.Hour)
					synctest.Wait()
					require.Empty(t, ended, "it is allowed")
					test.change(v, set)
					time.Sleep(AuthenticateEvery)
					synctest.Wait()
					cancel()
					e := wire.Explain(<-ended)
					assert.Equal(t, test.code, e.Code())
					assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, e.Info.Outcome)
					assert.ErrorContains(t, e, test.says)
				})
			})
		}
	}
}

// endless is a stream whose messages are empty.
type endless struct{}

func (endless) RecvMsg(any) error { return nil }
func (endless) SendMsg(any) error { return nil }

// TestAStreamEndsWithItsToken: when the token of a stream is taken out of the file, nothing is sent
// or received any more.
func TestAStreamEndsWithItsToken(t *testing.T) {
	token, line, err := identity.NewToken("alice", time.Time{})
	require.NoError(t, err)
	known := identity.Tokens{line.ID: line}
	g := testGate(t, "")
	g.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
	from := Arrival{Address: "192.0.2.1:1", Tokens: []string{"Bearer " + token}}
	began, err := g.Identify(t.Context(), from, "")
	require.NoError(t, err)
	open := func() *stream { // it is authenticated with its first message
		return &stream{Messages: endless{}, gate: g, ctx: began,
			d: OfMethod(zamokpb.Zamok_Session_FullMethodName)}
	}
	lives, sends, receives, another := open(), open(), open(), open()
	require.NoError(t, lives.SendMsg(nil))
	another.ctx = callerContext(began, Caller{Identity: "bob"})
	require.ErrorContains(t, another.SendMsg(nil), "another identity, not of bob")
	known = nil
	require.NoError(t, lives.RecvMsg(nil), "it was authenticated a moment ago")
	lives.checked.Add(-int64(AuthenticateEvery))
	for _, ended := range []error{lives.RecvMsg(nil), lives.SendMsg(nil), sends.SendMsg(nil),
		sends.RecvMsg(nil), receives.RecvMsg(nil)} {
		require.ErrorContains(t, ended, "the token is not known here")
		e := wire.Explain(ended)
		require.Equal(t, zamokpb.Code_CODE_UNAUTHENTICATED, e.Code())
		require.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, e.Info.Outcome, "of what was in flight")
	}
}

// TestAStreamThatEndedCountsNoMore: its first frame may be admitted when its time for that has
// passed.
func TestAStreamThatEndedCountsNoMore(t *testing.T) {
	g := testGate(t, "")
	ctx := callerContext(t.Context(), Caller{Identity: "alice"})
	most := g.Limits.Most("streams-per-identity")
	require.Positive(t, most)
	for range most + 1 {
		f := &frames{stream: &stream{Messages: endless{}, gate: g, ctx: ctx,
			d: OfMethod(zamokpb.Zamok_Session_FullMethodName)}}
		f.end()
		require.ErrorContains(t, f.open(&zamokpb.OpenStream{
			Secret:   make([]byte, secretBytes),
			Settings: &zamokpb.SessionSettings{Ttl: int64(time.Minute)},
		}), "the stream has ended")
	}
}
