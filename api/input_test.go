package api

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"zamok/api/conns"
	"zamok/api/gate/rules"
	"zamok/api/service"
	"zamok/api/wire"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
)

// badInput is a request that validation refuses, and the field that it names.
type badInput struct {
	field string
	send  func(context.Context, caller) error
}

func badSessions() []badInput {
	open := func(field string, change func(*zamokpb.OpenSessionRequest)) badInput {
		return badInput{field, func(ctx context.Context, c caller) error {
			r := &zamokpb.OpenSessionRequest{Secret: newSecret(),
				Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute)}}
			change(r)
			_, err := c.OpenSession(ctx, r)
			return err
		}}
	}
	return []badInput{
		open("secret", func(r *zamokpb.OpenSessionRequest) { r.Secret = r.Secret[1:] }),
		open("sent", func(r *zamokpb.OpenSessionRequest) { r.Sent = make([]byte, 32+1) }),
		open("settings", func(r *zamokpb.OpenSessionRequest) { r.Settings = nil }),
		open("ttl", func(r *zamokpb.OpenSessionRequest) { r.Settings.Ttl = 1 }),
		open("ttl", func(r *zamokpb.OpenSessionRequest) {
			r.Settings.Ttl = int64(fsm.LongestTTLMax) + 1
		}),
		open("label", func(r *zamokpb.OpenSessionRequest) { r.Settings.Label = "a\nb" }),
		{"secret", func(ctx context.Context, c caller) error {
			_, err := c.RenewSession(ctx, &zamokpb.RenewSessionRequest{Session: 1})
			return err
		}},
		{"sent", func(ctx context.Context, c caller) error {
			_, err := c.RenewSession(ctx,
				&zamokpb.RenewSessionRequest{Session: 1, Secret: newSecret(),
					Sent: make([]byte, 33)})
			return err
		}},
		{"secret", func(ctx context.Context, c caller) error {
			_, err := c.CloseSession(ctx, &zamokpb.CloseSessionRequest{Session: 1})
			return err
		}},
	}
}

func badTickets() []badInput {
	acquire := func(field string, change func(*zamokpb.AcquireRequest)) badInput {
		return badInput{field, func(ctx context.Context, c caller) error {
			r := &zamokpb.AcquireRequest{Session: 1, Secret: newSecret(), Acquire: &zamokpb.Acquire{
				Ticket: 1, Items: []*zamokpb.Item{{Name: "x", Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
			}}
			change(r)
			_, err := c.Acquire(ctx, r)
			return err
		}}
	}
	return []badInput{
		acquire("ticket", func(r *zamokpb.AcquireRequest) { r.Acquire = nil }),
		acquire("items", func(r *zamokpb.AcquireRequest) { r.Acquire.Items = nil }),
		acquire("name", func(r *zamokpb.AcquireRequest) { r.Acquire.Items[0].Name = "" }),
		acquire("mode", func(r *zamokpb.AcquireRequest) { r.Acquire.Items[0].Mode = 77 }),
		acquire("wait", func(r *zamokpb.AcquireRequest) { r.Acquire.Wait = -2 }),
		acquire("secret", func(r *zamokpb.AcquireRequest) { r.Secret = nil }),
		acquire("sent", func(r *zamokpb.AcquireRequest) { r.Sent = make([]byte, 33) }),
		{"ticket", func(ctx context.Context, c caller) error {
			_, err := c.Drop(ctx, &zamokpb.DropRequest{Session: 1, Secret: newSecret()})
			return err
		}},
		{"ticket", func(ctx context.Context, c caller) error {
			_, err := c.Downgrade(ctx, &zamokpb.DowngradeRequest{Session: 1, Secret: newSecret()})
			return err
		}},
	}
}

func badReads() []badInput {
	long := strings.Repeat("x", fsm.NameBytesMax+1)
	return []badInput{
		{"name", func(ctx context.Context, c caller) error {
			_, err := c.Get(ctx, &zamokpb.GetRequest{Name: "a\x00b"})
			return err
		}},
		{"limit", func(ctx context.Context, c caller) error {
			_, err := c.Get(ctx, &zamokpb.GetRequest{Name: "a", Limit: service.ShowMax + 1})
			return err
		}},
		{"prefix", func(ctx context.Context, c caller) error {
			_, err := c.List(ctx, &zamokpb.ListRequest{Prefix: long})
			return err
		}},
		{"after", func(ctx context.Context, c caller) error {
			_, err := c.List(ctx, &zamokpb.ListRequest{After: long})
			return err
		}},
		{"limit", func(ctx context.Context, c caller) error {
			_, err := c.ListSessions(ctx, &zamokpb.ListSessionsRequest{Limit: service.ListMax + 1})
			return err
		}},
		{"token", func(ctx context.Context, c caller) error {
			_, err := c.Check(ctx, &zamokpb.CheckRequest{Name: "a"})
			return err
		}},
		{"ticket", func(ctx context.Context, c caller) error {
			_, err := c.Check(ctx, &zamokpb.CheckRequest{Name: "a", Token: 1, Session: 1})
			return err
		}},
		{"prefix", func(ctx context.Context, c caller) error {
			stream, err := c.Watch(ctx, &zamokpb.WatchRequest{Prefix: long})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}},
	}
}

func badOrders() []badInput {
	return []badInput{
		{"name", func(ctx context.Context, c caller) error {
			_, err := c.admin.ForceRelease(ctx, &zamokpb.ForceReleaseRequest{Token: 1})
			return err
		}},
		{"token", func(ctx context.Context, c caller) error {
			_, err := c.admin.ForceRelease(ctx, &zamokpb.ForceReleaseRequest{Name: "x"})
			return err
		}},
		{"reason", func(ctx context.Context, c caller) error {
			_, err := c.admin.ForceRelease(ctx,
				&zamokpb.ForceReleaseRequest{Name: "x", Token: 1, Reason: strings.Repeat("x", 513)})
			return err
		}},
		{"session", func(ctx context.Context, c caller) error {
			_, err := c.admin.ExpireSession(ctx, &zamokpb.ExpireSessionRequest{})
			return err
		}},
		{"id", func(ctx context.Context, c caller) error {
			_, err := c.admin.Join(ctx, &zamokpb.JoinRequest{Id: "N 1", Peer: "host:1"})
			return err
		}},
		{"peer", func(ctx context.Context, c caller) error {
			_, err := c.admin.Join(ctx, &zamokpb.JoinRequest{Id: "n2", Peer: "nowhere"})
			return err
		}},
		{"peer", func(ctx context.Context, c caller) error {
			_, err := c.admin.Join(ctx, &zamokpb.JoinRequest{Id: "n2", Peer: "a:1,n3=b:2"})
			return err
		}},
		{"id", func(ctx context.Context, c caller) error {
			_, err := c.admin.Remove(ctx, &zamokpb.RemoveRequest{})
			return err
		}},
		{"longest_ttl", func(ctx context.Context, c caller) error {
			_, err := c.admin.Settings(ctx,
				&zamokpb.SettingsRequest{LongestTtl: int64(fsm.LongestTTLMax) + 1})
			return err
		}},
		{"longest_ttl", func(ctx context.Context, c caller) error {
			_, err := c.admin.Settings(ctx, &zamokpb.SettingsRequest{LongestTtl: -1})
			return err
		}},
		{"quotas.share", func(ctx context.Context, c caller) error {
			_, err := c.admin.Settings(ctx,
				&zamokpb.SettingsRequest{Quotas: &zamokpb.Quotas{Share: 101}})
			return err
		}},
		{"quotas", func(ctx context.Context, c caller) error {
			_, err := c.admin.Settings(ctx,
				&zamokpb.SettingsRequest{LongestTtl: int64(clock.Hour),
					Quotas: &zamokpb.Quotas{Share: 1}})
			return err
		}},
	}
}

// TestBadInputNamesTheField: nothing of it is proposed, and no session is harmed.
func TestBadInputNamesTheField(t *testing.T) {
	c := startCluster(t, 1, nil)
	ctx, leader := soon(t), c.leader()
	to := call(t, leader)
	before, err := to.Now(ctx, &zamokpb.NowRequest{})
	require.NoError(t, err)
	for _, list := range [][]badInput{badSessions(), badTickets(), badReads(), badOrders()} {
		for _, bad := range list {
			err := bad.send(ctx, to)
			info := infoOf(t, err)
			assert.Equal(t, bad.field, info.Field, err)
			assert.Equal(t, zamokpb.Code_CODE_INVALID, info.Code)
			assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
			assert.Equal(t, codes.InvalidArgument, status.Code(err))
			assert.Contains(t, err.Error(), bad.field)
		}
	}
	after, err := to.Now(ctx, &zamokpb.NowRequest{})
	require.NoError(t, err)
	// A read barrier is an entry, and one announcement may come between.
	assert.LessOrEqual(t, after.Stamp.Index, before.Stamp.Index+3, "something was proposed")
}

// TestTooMuchMetadata: 10 MiB of it end the call and nothing else.
func TestTooMuchMetadata(t *testing.T) {
	c := startCluster(t, 1, nil)
	ctx, to := soon(t), call(t, c.leader())
	md := metadata.AppendToOutgoingContext(ctx, "x-much", strings.Repeat("x", 10<<20))
	_, err := to.Now(md, &zamokpb.NowRequest{})
	require.Error(t, err)
	t.Log(err)
	_, err = to.Now(ctx, &zamokpb.NowRequest{})
	require.NoError(t, err, "the same connection serves on")

	_, err = to.List(ctx, &zamokpb.ListRequest{Prefix: strings.Repeat("x", 64<<10+1)})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, err = to.Now(ctx, &zamokpb.NowRequest{})
	require.NoError(t, err)
}

// The largest acquisition comes in, also in a frame with as much before it as the Go client puts
// there.
func TestTheLargestAcquisitionIsTaken(t *testing.T) {
	c := startCluster(t, 1, nil)
	w := openStream(t, call(t, c.leader()), settings(clock.Minute))
	var frame []*zamokpb.ClientMessage
	for ticket := range uint64(6) { // the Go client ends a frame with what brings it above 24 KiB
		c := widest(w.hubID(), ticket+1)
		if ticket < 5 {
			c.Items = c.Items[:1]
		}
		frame = append(frame, acquire(&zamokpb.Acquire{
			Ticket: c.Ticket, Wait: -1, Items: wire.Items(c.Items), Owner: c.Owner,
			Meta: []byte(c.Meta),
		}))
	}
	assert.Greater(t, proto.Size(&zamokpb.ClientFrame{Messages: frame}), 60<<10)
	w.send(frame...)
	for ticket := range uint64(6) {
		w.is(ticket+1, stateGranted)
	}
}

// A connection has so many calls in flight; one more waits until one of them has ended.
func TestCallsOfAConnectionAreBounded(t *testing.T) {
	c := startCluster(t, 1, nil)
	to := call(t, c.leader())
	ctx, cancel := context.WithCancel(soon(t))
	for range conns.StreamsPerConn {
		_, err := to.Session(ctx)
		require.NoError(t, err)
	}
	one := make(chan error, 1)
	go func() {
		_, err := to.Now(soon(t), &zamokpb.NowRequest{})
		one <- err
	}()
	_, err := call(t, c.leader()).Now(soon(t), &zamokpb.NowRequest{})
	require.NoError(t, err, "another connection is not concerned")
	require.Empty(t, one)
	cancel()
	require.NoError(t, <-one)
}

// theseRules are rules that do not change.
func theseRules(t *testing.T, text string) func() *rules.Set {
	set, err := rules.Parse([]byte(text))
	require.NoError(t, err)
	return func() *rules.Set { return set }
}
