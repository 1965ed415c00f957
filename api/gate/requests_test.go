package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"zamok/api/audit"
	"zamok/api/gate/limits"
	"zamok/api/gate/rules"
	"zamok/api/metrics"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
)

// testGate is a gate with these rules, in front of a node without members; "": it has no rules.
func testGate(t *testing.T, text string) *Gate {
	var set *rules.Set
	if text != "" {
		var err error
		set, err = rules.Parse([]byte(text))
		require.NoError(t, err)
	}
	g := New(Config{
		Rules: func() *rules.Set { return set },
		Limits: limits.New(limits.Config{Logger: slog.New(slog.DiscardHandler),
			Clock: clock.System()}), Metrics: metrics.New(),
		Audit: audit.New(audit.Config{Out: io.Discard,
			Allow: func(string, bool) bool { return true }}),
	})
	t.Cleanup(g.Limits.Stop)
	g.Start(testNode{m: fsm.New()})
	return g
}

// callerContext is the context of a call of a caller.
func callerContext(ctx context.Context, c Caller) context.Context {
	return newContext(ctx, client{caller: c})
}

// admit is what the gate says of a request.
func admit(ctx context.Context, g *Gate, request proto.Message) error {
	admission, err := g.admitMessage(ctx, Stream{}, request)
	admission.End()
	return err
}

// testNode leads a cluster without members.
type testNode struct {
	m       *fsm.Machine
	lowDisk string
}

func (n testNode) View(f func(*fsm.Machine))  { f(n.m) }
func (testNode) Leader() (id, address string) { return "n1", "" }
func (testNode) Servers() []raftnode.Server   { return nil }
func (testNode) HasServer(peer.Server) bool   { return false }
func (testNode) LeaderServer() peer.Server    { return peer.Server{} }
func (testNode) ReadBarrier(context.Context) (s clock.Stamp, now clock.Time, err error) {
	return s, now, nil
}
func (n testNode) NoRoom() string { return n.lowDisk }

// TestEveryRequestHasARow compares the table with the services: each call and each message of a
// session's stream has one row, whose checks bear a request without any field, and no row is of
// anything else.
func TestEveryRequestHasARow(t *testing.T) {
	g := testGate(t, "")
	left := make(map[*Request]bool)
	for _, d := range requests {
		left[d] = true
	}
	requireRow := func(d *Request, name protoreflect.FullName) {
		require.NotNil(t, d, name)
		require.True(t, left[d], "%s has a row of its own", name)
		delete(left, d)
		require.Same(t, d, Of(d.Message))
		require.Equal(t, d.Method != "", (d.call != nil) != (d.stream != nil),
			"%s is carried out in one way, a message by its stream", name)
		err := admit(t.Context(), g, d.Message.ProtoReflect().New().Interface())
		if e := (*wire.Error)(nil); errors.As(err, &e) {
			assert.Equal(t, zamokpb.Code_CODE_INVALID, e.Code(), "%s: %v", name, err)
		}
		_ = admit(t.Context(), g, d.Message) // nor does a missing message panic
	}
	services := zamokpb.File_zamok_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			d := OfMethod(fmt.Sprintf("/%s/%s", services.Get(i).FullName(), m.Name()))
			if !m.IsStreamingClient() {
				require.NotNil(t, d, m.FullName())
				require.Equal(t, m.Input().FullName(),
					d.Message.ProtoReflect().Descriptor().FullName())
				requireRow(d, m.FullName())
				continue
			}
			messages :=
				new(zamokpb.ClientMessage).ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
			for k := range messages.Len() {
				kind, err := protoregistry.GlobalTypes.FindMessageByName(
					messages.Get(k).Message().FullName())
				require.NoError(t, err)
				own := Of(kind.Zero().Interface())
				require.Equal(t, own == d, own.Method != "", "one of them begins the stream")
				requireRow(own, messages.Get(k).FullName())
			}
		}
	}
	require.Empty(t, left)

	var e *wire.Error
	require.ErrorAs(t, admit(t.Context(), g, &zamokpb.Answer{}), &e)
	assert.Equal(t, zamokpb.Code_CODE_INTERNAL, e.Code())
}

// Each setting that all clients obey is changed by operators only, and every change is on record.
// All may read them.
func TestOnlyOperatorsChangeSettings(t *testing.T) {
	g := testGate(t,
		"rules: [{identities: [alice], names: ['*'], may: [lock, read, watch, release]}, "+
			"{identities: [root], may: [operate]}]")
	alice, root := callerContext(t.Context(), Caller{Identity: "alice"}),
		callerContext(t.Context(), Caller{Identity: "root"})
	for _, r := range []*zamokpb.SettingsRequest{
		{LongestTtl: int64(time.Hour)}, {Quotas: &zamokpb.Quotas{Sessions: 1}},
		{Quotas: &zamokpb.Quotas{Tickets: 1}},
		{Quotas: &zamokpb.Quotas{Bytes: 1}}, {Quotas: &zamokpb.Quotas{Share: 1}},
	} {
		require.ErrorContains(t, admit(alice, g, r), "alice may not operate", "%v", r)
		require.NoError(t, admit(root, g, r), "%v", r)
		require.True(t, Of(r).Acts(r), "%v", r)
	}
	for _, r := range []*zamokpb.SettingsRequest{{}, {Quotas: &zamokpb.Quotas{}}} {
		require.NoError(t, admit(alice, g, r))
		require.False(t, Of(r).Acts(r))
	}
}

// An acquisition needs permission for each of its locks, and a session for some.
func TestEachLockIsAuthorized(t *testing.T) {
	g := testGate(t,
		"rules: [{identities: [alice], names: [a, c*], may: [lock]}, {identities: [bob], names: "+
			"[a], may: [read]}]")
	alice, bob := callerContext(t.Context(), Caller{Identity: "alice"}),
		callerContext(t.Context(), Caller{Identity: "bob"})
	acquire := func(names ...string) *zamokpb.AcquireRequest {
		a := &zamokpb.Acquire{Ticket: 1}
		for _, name := range names {
			a.Items = append(a.Items, &zamokpb.Item{Name: name, Mode: zamokpb.Mode_MODE_SHARED})
		}
		return &zamokpb.AcquireRequest{Secret: make([]byte, 16),
			Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute)}, Acquire: a}
	}
	require.NoError(t, admit(alice, g, acquire("a", "c/d")))
	require.NoError(t, admit(alice, g, acquire("a", "c/d").Acquire), "on a stream")
	for _, r := range []proto.Message{acquire("a", "b", "c"), acquire("b").Acquire} {
		var e *wire.Error
		require.ErrorAs(t, admit(alice, g, r), &e)
		assert.Equal(t, zamokpb.Code_CODE_DENIED, e.Code())
		assert.Equal(t, `not done: alice may not lock "b": no rule allows it or any other verb`,
			e.Error())
	}
	open := &zamokpb.OpenStream{Secret: make([]byte, 16),
		Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute)}}
	require.NoError(t, admit(alice, g, open))
	require.ErrorContains(t, admit(bob, g, open), "bob may not lock")
	require.ErrorContains(t, admit(t.Context(), g, open), "an unknown caller may not lock")
	require.NoError(t, admit(bob, g, &zamokpb.NowRequest{}))
	require.ErrorContains(t, admit(t.Context(), g, &zamokpb.NowRequest{}),
		"may not do anything here")
}

// TestTheAuditLogShowsSpans as people write them.
func TestTheAuditLogShowsSpans(t *testing.T) {
	acquire := &zamokpb.Acquire{Ticket: 1, Wait: -1, MaxHold: int64(90 * clock.Second),
		Items: []*zamokpb.Item{{Name: "x"}}}
	want := map[string]string{"ticket": "1", "wait": "forever", "max_hold": "1m30s", "lock 1": "x"}
	assert.Equal(t, want, subject(acquire))
	assert.Equal(t, want,
		subject(&zamokpb.AcquireRequest{Secret: []byte("a secret"), Acquire: acquire}))
	assert.Equal(t, map[string]string{"longest_ttl": "2h0m0s", "quotas.share": "30"},
		subject(&zamokpb.SettingsRequest{LongestTtl: int64(2 * clock.Hour),
			Quotas: &zamokpb.Quotas{Share: 30}}))
}

// TestReadsOfACallerAreLimited: those that wait for their turn count, too.
func TestReadsOfACallerAreLimited(t *testing.T) {
	g := testGate(t, "")
	most := g.Limits.Most("held-calls-per-identity")
	require.Positive(t, most)
	greedy, other := callerContext(t.Context(), Caller{Identity: "greedy"}),
		callerContext(t.Context(), Caller{Identity: "other"})
	reads := []proto.Message{
		&zamokpb.GetRequest{Name: "x"}, &zamokpb.ListRequest{}, &zamokpb.ListSessionsRequest{},
		&zamokpb.MembersRequest{},
	}
	var open []Admission
	for i := range most {
		a, err := g.admitMessage(greedy, Stream{}, reads[i%len(reads)])
		require.NoError(t, err)
		open = append(open, a)
	}
	for _, r := range reads {
		var e *wire.Error
		require.ErrorAs(t, admit(greedy, g, r), &e)
		assert.Equal(t, "held-calls-per-identity", e.Info.Field)
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, e.Info.Outcome)
		require.NoError(t, admit(other, g, r))
	}
	for _, a := range open {
		a.End()
	}
	require.NoError(t, admit(greedy, g, reads[0]), "none of them reads any more")
}
