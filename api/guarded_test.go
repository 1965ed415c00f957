package api

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"fmt"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// everythingAllowed are rules under which every call is allowed to those who prove an identity, so
// that a call which is denied to others was denied by them.
const everythingAllowed = `
rules:
  - {groups: [authenticated], names: ["*"], may: [lock, read, watch, release]}
  - {groups: [authenticated], may: [operate]}
`

// TestEveryCallNeedsPermission calls every method that a node serves, as the node describes itself:
// what is denied is not done, and the answer reports that. A method that is added needs a call
// here.
func TestEveryCallNeedsPermission(t *testing.T) {
	t.Parallel()
	n := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Rules = theseRules(t, everythingAllowed)
	}).leader()
	called := map[string]bool{}
	conn, err := grpc.NewClient("passthrough:///"+n.Client(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, in, out any,
			conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			called[method] = true
			return invoke(ctx, method, in, out, conn, opts...)
		}),
		grpc.WithStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
				open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				called[method] = true
				return open(ctx, desc, conn, method, opts...)
			}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	to, ctx := caller{zamokpb.NewZamokClient(conn), zamokpb.NewAdminClient(conn), conn}, soon(t)
	for _, send := range allowedCalls() {
		clear(called)
		// A relayed identity is accepted only on connections of other nodes.
		err := send(metadata.AppendToOutgoingContext(ctx, zamokpb.CallerKey, "root",
			zamokpb.CallerKey, "127.0.0.1:1"), to)
		info := infoOf(t, err)
		assert.Equal(t, zamokpb.Code_CODE_DENIED, info.Code, "%v: %v", called, err)
		assert.Equal(t, codes.PermissionDenied, status.Code(err))
		assert.Contains(t, err.Error(), "anonymous@127.0.0.1 may not")
	}
}

// TestEveryMethodIsCalled: those calls leave out no method of the services.
func TestEveryMethodIsCalled(t *testing.T) {
	called := map[string]bool{}
	for _, send := range allowedCalls() {
		record := recording{called}
		_ = send(t.Context(), caller{zamokpb.NewZamokClient(record),
			zamokpb.NewAdminClient(record), nil})
	}
	// TestReflection shows that no others of ours are served
	services := zamokpb.File_zamok_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			method := fmt.Sprintf("/%s/%s", services.Get(i).FullName(), methods.Get(j).Name())
			assert.True(t, called[method], "%s is called by no test of permissions", method)
		}
	}
}

// recording is a connection that only records what is called.
type recording struct{ called map[string]bool }

func (r recording) Invoke(_ context.Context, method string, _, _ any, _ ...grpc.CallOption) error {
	r.called[method] = true
	return status.Error(codes.Unimplemented, method)
}

func (r recording) NewStream(_ context.Context, _ *grpc.StreamDesc, method string,
	_ ...grpc.CallOption) (grpc.ClientStream, error) {
	r.called[method] = true
	return nil, status.Error(codes.Unimplemented, method)
}

// allowedRequests has every request over HTTP once, with good input: the rest of the path, and the
// body.
var allowedRequests = map[string][2]string{
	"POST /v1/acquire":                  {"", `{"name":"x","session":"1","ticket":"1"}`},
	"POST /v1/renew":                    {"", `{"session":"1"}`},
	"POST /v1/release":                  {"", `{"session":"1"}`},
	"POST /v1/downgrade":                {"", `{"session":"1"}`},
	"GET /v1/hold":                      {"?name=x", ""},
	"GET /v1/check":                     {"?name=x&token=1", ""},
	"POST /v1/sessions":                 {"", "{}"},
	"GET /v1/sessions":                  {"", ""},
	"POST /v1/sessions/{session}/renew": {"", "{}"},
	"DELETE /v1/sessions/{session}":     {"", ""},
	"GET /v1/lock":                      {"?name=x", ""},
	"GET /v1/locks":                     {"", ""},
	"GET /v1/watch":                     {"", ""},
	"GET /v1/now":                       {"", ""},
	"GET /v1/members":                   {"", ""},
	"LOCK /v1/terraform/lock":           {"?name=x", `{"ID":"1"}`},
	"UNLOCK /v1/terraform/lock":         {"?name=x", `{"ID":"1"}`},
	"POST /v1/admin/release":            {"", `{"name":"x","token":"1"}`},
	"POST /v1/admin/expire":             {"", `{"session":"1"}`},
	"POST /v1/admin/transfer":           {"", "{}"},
	"POST /v1/admin/join":               {"", `{"id":"n2","peer":"h:1"}`},
	"POST /v1/admin/remove":             {"", `{"id":"n1"}`},
	"GET /v1/admin/backup":              {"", ""},
}

// TestEveryRequestOverHTTPNeedsPermission: the same for all routes that are described.
func TestEveryRequestOverHTTPNeedsPermission(t *testing.T) {
	t.Parallel()
	n := startCluster(t, 1, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.Rules, cfg.Profile = theseRules(t, everythingAllowed), true
	}).leader()
	const terraform = "/v1/terraform/lock" // OpenAPI has no such methods
	served := []string{"LOCK " + terraform, "UNLOCK " + terraform}
	for path, item := range described(t).paths {
		for method := range item.(fields) {
			if path != terraform {
				served = append(served, strings.ToUpper(method)+" "+path)
			}
		}
	}
	served = slices.DeleteFunc(served, func(route string) bool {
		// as /readyz, and to those who may read it with what /v1/members has
		return route == "GET /v1/status"
	})
	assert.ElementsMatch(t, slices.Collect(maps.Keys(allowedRequests)), served)
	for route, rest := range allowedRequests {
		method, path, _ := strings.Cut(route, " ")
		path = strings.ReplaceAll(path, "{session}", "1") + rest[0]
		answer := send(soon(t), t, n, method, path, rest[1], "Zamok-Secret",
			strings.Repeat("a", 32))
		assert.Equal(t, http.StatusForbidden, answer.code, "%s: %s", route, answer.text)
		assert.Equal(t, "denied", answer.fields["code"], "%s: %s", route, answer.text)
	}
	for _, path := range []string{"", "cmdline", "profile", "symbol", "trace", "heap"} {
		code, _ := fetch(t, n.HTTP(), "/debug/pprof/"+path)
		assert.Equal(t, http.StatusForbidden, code, path)
	}
	status := send(soon(t), t, n, "GET", "/v1/status", "")
	assert.Equal(t, http.StatusOK, status.code)
	assert.NotContains(t, status.fields, "cluster")
}

// allowedCalls has every call once, with good input.
func allowedCalls() []func(context.Context, caller) error {
	secret := newSecret()
	items := []*zamokpb.Item{{Name: "x", Mode: zamokpb.Mode_MODE_EXCLUSIVE}}
	calls := []func(context.Context, caller) error{
		func(ctx context.Context, c caller) error {
			_, err := c.OpenSession(ctx,
				&zamokpb.OpenSessionRequest{Secret: secret,
					Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute)}})
			return err
		},
		func(ctx context.Context, c caller) error {
			stream, err := c.Session(ctx)
			return first(func() error {
				open := openMessage(&zamokpb.OpenStream{Secret: secret,
					Settings: settings(clock.Minute)})
				// Recv has the reason
				_ = stream.Send(&zamokpb.ClientFrame{Messages: []*zamokpb.ClientMessage{open}})
				_, err := stream.Recv()
				return err
			}, err)
		},
		func(ctx context.Context, c caller) error {
			_, err := c.RenewSession(ctx, &zamokpb.RenewSessionRequest{Session: 1, Secret: secret})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.CloseSession(ctx, &zamokpb.CloseSessionRequest{Session: 1, Secret: secret})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.Acquire(ctx,
				&zamokpb.AcquireRequest{Session: 1, Secret: secret,
					Acquire: &zamokpb.Acquire{Ticket: 1, Items: items}})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.Drop(ctx, &zamokpb.DropRequest{Session: 1, Secret: secret, Ticket: 1})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.Downgrade(ctx,
				&zamokpb.DowngradeRequest{Session: 1, Secret: secret, Ticket: 1})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.Get(ctx, &zamokpb.GetRequest{Name: "x"})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.List(ctx, &zamokpb.ListRequest{})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.ListSessions(ctx, &zamokpb.ListSessionsRequest{})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.Check(ctx, &zamokpb.CheckRequest{Name: "x", Token: 1})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.Now(ctx, &zamokpb.NowRequest{})
			return err
		},
		func(ctx context.Context, c caller) error {
			stream, err := c.Watch(ctx, &zamokpb.WatchRequest{})
			return first(func() error { _, err := stream.Recv(); return err }, err)
		},
	}
	return append(calls, allowedAdminCalls()...)
}

// allowedAdminCalls has every call of an operator once, with good input.
func allowedAdminCalls() []func(context.Context, caller) error {
	return []func(context.Context, caller) error{
		func(ctx context.Context, c caller) error {
			_, err := c.admin.ForceRelease(ctx, &zamokpb.ForceReleaseRequest{Name: "x", Token: 1})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.admin.ExpireSession(ctx, &zamokpb.ExpireSessionRequest{Session: 1})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.admin.Members(ctx, &zamokpb.MembersRequest{})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.admin.Join(ctx, &zamokpb.JoinRequest{Id: "n2", Peer: "h:1"})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.admin.Remove(ctx, &zamokpb.RemoveRequest{Id: "n1"})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.admin.Transfer(ctx, &zamokpb.TransferRequest{})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.admin.Settings(ctx, &zamokpb.SettingsRequest{})
			return err
		},
		func(ctx context.Context, c caller) error {
			_, err := c.admin.Settings(ctx, &zamokpb.SettingsRequest{LongestTtl: int64(clock.Hour)})
			return err
		},
		func(ctx context.Context, c caller) error {
			stream, err := c.admin.Backup(ctx, &zamokpb.BackupRequest{})
			return first(func() error { _, err := stream.Recv(); return err }, err)
		},
	}
}

// first receives the first answer of a stream, if there is a stream.
func first(recv func() error, err error) error {
	if err != nil {
		return err
	}
	return recv()
}
