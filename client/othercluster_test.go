package client_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api"
	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/admin"
)

// twoClusters starts two clusters, and gives the id of each.
func twoClusters(t *testing.T, test func(t *testing.T, a, b *cluster, idA, idB string)) {
	a, b := startNodes(t, 1, func(*api.NodeConfig) {}), startNodes(t, 1, func(*api.NodeConfig) {})
	_, infoA, err := admin.New(a.client(nil)).Members(soon(t))
	require.NoError(t, err)
	_, infoB, err := admin.New(b.client(nil)).Members(soon(t))
	require.NoError(t, err)
	require.NotEqual(t, infoA.ID, infoB.ID)
	test(t, a, b, infoA.ID, infoB.ID)
}

// unused checks that no session was opened in a cluster.
func (c *cluster) unused() {
	c.Helper()
	sessions, _, err := admin.New(c.client(nil)).Sessions(soon(c), 0, 0)
	require.NoError(c, err)
	require.Empty(c, sessions, "sessions in a cluster that should be unused")
}

// everyCall are all kinds of calls of a client.
func everyCall(ctx context.Context, c *client.Client) map[string]func() error {
	op := admin.New(c)
	return map[string]func() error{
		"TryLock":  func() error { _, err := c.TryLock(ctx, "x"); return err },
		"Get":      func() error { _, err := c.Get(ctx, "x", 0); return err },
		"List":     func() error { _, _, err := c.List(ctx, "", "", 0); return err },
		"Sessions": func() error { _, _, err := op.Sessions(ctx, 0, 0); return err },
		"Check": func() error {
			_, _, err := c.Check(ctx, client.Grant{Name: "x", Token: 1})
			return err
		},
		"Now":     func() error { _, err := op.Now(ctx); return err },
		"Members": func() error { _, _, err := op.Members(ctx); return err },
		"ForceRelease": func() error {
			_, err := op.ForceRelease(ctx, "x", 1, "a test")
			return err
		},
		"ExpireSession": func() error { return op.ExpireSession(ctx, 1, "a test") },
		"Join":          func() error { return op.Join(ctx, "n9", dead) },
		"Remove":        func() error { return op.Remove(ctx, "n1") },
		"Transfer":      func() error { return op.Transfer(ctx, "") },
		"Settings":      func() error { _, err := op.Settings(ctx); return err },
		"SetQuotas": func() error {
			_, err := op.SetQuotas(ctx, admin.Quotas{Share: 1})
			return err
		},
		"SetLongestTTL": func() error { _, err := op.SetLongestTTL(ctx, time.Hour); return err },
		"Backup":        func() error { _, err := op.Backup(ctx, io.Discard); return err },
		"Reserve": func() error {
			_, err := c.Reserve(ctx, client.NewReservation(time.Hour, client.ExclusiveItem("x")),
				func() error { return nil })
			return err
		},
		"Leader": func() error { _, _, err := c.Election("x").Leader(ctx); return err },
		"Watch": func() error {
			for _, err := range c.Watch(ctx, "", 0) {
				return err
			}
			return nil
		},
	}
}

// Clients that are given nodes of two clusters must not share themselves out between the clusters:
// each of the two would grant the lock.
func TestTwoClustersInOneListGiveNoTwoHolders(t *testing.T) {
	t.Parallel()
	twoClusters(t, func(t *testing.T, a, b *cluster, idA, idB string) {
		both, ctx := append(a.endpoints(), b.endpoints()...), soon(t)
		named := func(t *testing.T, err error) {
			t.Helper()
			require.ErrorIs(t, err, client.ErrWrongCluster)
			var e *client.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, client.NotDone, e.Outcome)
			for _, name := range append([]string{idA, idB}, both...) {
				require.ErrorContains(t, err, name)
			}
		}
		cl := a.client(func(cfg *client.Config) { cfg.Endpoints = both })
		for name, call := range everyCall(ctx, cl) {
			t.Run(name, func(t *testing.T) { named(t, call()) })
		}
		_, err := cl.Lock(ctx, "x")
		named(t, err)
		_, err = client.Dial(ctx, both...)
		named(t, err)
		a.unused()
		b.unused()

		ours := a.client(func(cfg *client.Config) { cfg.Endpoints, cfg.Cluster = both, idA })
		for range 5 {
			l, err := ours.TryLock(ctx, "x")
			require.NoError(t, err, "a client that knows its cluster uses that")
			require.NoError(t, l.Unlock(ctx))
			_, err = admin.New(ours).Now(ctx)
			require.NoError(t, err)
		}
		_, _, err = admin.New(ours).Members(ctx)
		named(t, err)
		b.unused()
	})
}

// An endpoint that does not answer does not count as one of another cluster.
func TestASilentEndpointIsNoError(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	// connections are made, and nothing is said on them
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	cl := c.client(func(cfg *client.Config) {
		cfg.Endpoints = []string{dead, silent.Addr().String(), c.nodes[0].Client()}
	})
	_, cluster, err := admin.New(cl).Members(soon(t))
	require.NoError(t, err)
	require.NotEmpty(t, cluster.ID)
	_, err = cl.TryLock(soon(t), "x")
	require.NoError(t, err)
}

// mute is a node that answers nothing for as long as it is waited for.
type mute struct {
	zamokpb.UnimplementedZamokServer
}

func (mute) Now(ctx context.Context, _ *zamokpb.NowRequest) (*zamokpb.NowResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// serveMute serves one, and gives its address.
func serveMute(t testing.TB) string {
	server := grpc.NewServer()
	zamokpb.RegisterZamokServer(server, mute{})
	return serve(t, server)
}

// Two clusters can't both have most of a list, so when most endpoints have said the same, a silent
// one causes no delay.
func TestASilentMinorityIsNotWaitedFor(t *testing.T) {
	c := startCluster(t, 1)
	_, err := admin.New(c.client(nil)).Now(soon(t)) // it knows its cluster
	require.NoError(t, err)
	silent := serveMute(t)
	cl := c.client(func(cfg *client.Config) {
		cfg.Endpoints, cfg.RequestTimeout = []string{"a:1", "b:1", silent}, 45*time.Second
		cfg.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
			if address != silent {
				address = c.nodes[0].Client()
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	})
	began := time.Now()
	_, err = admin.New(cl).Now(soon(t))
	require.NoError(t, err)
	require.Less(t, time.Since(began), 4500*time.Millisecond, "a tenth of the request timeout")
}

// young is a node that has just started, and does not know its cluster yet.
type young struct {
	zamokpb.UnimplementedZamokServer
	calls chan struct{}
}

func (y young) Now(context.Context, *zamokpb.NowRequest) (*zamokpb.NowResponse, error) {
	select {
	case y.calls <- struct{}{}:
	default:
	}
	st, err := status.New(codes.Unavailable, "which cluster?").WithDetails(
		&zamokpb.ErrorInfo{Code: zamokpb.Code_CODE_NOT_LEADER})
	if err != nil {
		return nil, err
	}
	return nil, st.Err()
}

// A node that does not know its cluster yet gets another call soon, however long another one is
// silent.
func TestASilentEndpointHoldsUpNoStart(t *testing.T) {
	t.Parallel()
	calls := make(chan struct{}, 2)
	server := grpc.NewServer()
	zamokpb.RegisterZamokServer(server, young{calls: calls})
	cl, err := client.New(client.Config{
		Endpoints: []string{serve(t, server), serveMute(t)}, RequestTimeout: 4 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	defer cl.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := admin.New(cl).Now(ctx)
		ended <- err
	}()
	for range cap(calls) {
		select {
		case <-calls:
		case err := <-ended:
			require.FailNow(t, "it got one call only", "%v", err)
		}
	}
	cancel()
	require.Error(t, until(t, ended, "the call"))
}

// A cluster was made anew at the addresses of another one. A client of the old one does nothing
// there, says so, and continues if the old one comes back in time.
func TestAClientStaysWithItsCluster(t *testing.T) {
	t.Parallel()
	twoClusters(t, func(t *testing.T, a, b *cluster, idA, idB string) {
		g := &gate{to: a.nodes[0].Client()}
		cl := a.client(func(cfg *client.Config) {
			cfg.Endpoints, cfg.RequestTimeout = []string{"cluster:1"}, 3*time.Second
			cfg.Dialer = g.dial
		})
		ctx := soon(t)
		held, err := cl.Lock(ctx, "x")
		require.NoError(t, err)
		waits := make(chan error, 1)
		go func() {
			_, err := cl.Lock(ctx, "x")
			waits <- err
		}()
		a.waiting(a.client(nil), "x", 1)
		g.lead(b.nodes[0].Client())
		// a call that is sent on a connection just before that shows as broken is in doubt, rightly
		_, err = admin.New(cl).Now(ctx)
		require.ErrorIs(t, err, client.ErrWrongCluster)
		for name, call := range everyCall(ctx, cl) {
			t.Run(name, func(t *testing.T) {
				err := call()
				require.ErrorIs(t, err, client.ErrWrongCluster)
				for _, name := range []string{idA, idB, "cluster:1"} {
					require.ErrorContains(t, err, name)
				}
				// as there, the session waits for its cluster while its lease is valid
				if name != "TryLock" {
					require.NotErrorIs(t, err, client.ErrUnavailable)
					var e *client.Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, client.NotDone, e.Outcome)
				}
			})
		}
		b.unused()
		require.NoError(t, held.Err(), "the lease is believed in")
		g.lead(a.nodes[0].Client())
		if err := held.Unlock(ctx); err != nil { // it continues
			mayHaveDone(t, err)
		}
		require.NoError(t, until(t, waits, "the wait that kept its place"))
	})
}

// When the lease is over, too, calls that wait end, and what was held may stand in the old cluster.
func TestAClientWhoseClusterIsGoneSaysSo(t *testing.T) {
	t.Parallel()
	twoClusters(t, func(t *testing.T, a, b *cluster, idA, idB string) {
		g := &gate{to: a.nodes[0].Client()}
		cl := a.client(func(cfg *client.Config) {
			cfg.Endpoints, cfg.TTL = []string{"cluster:1"}, 5*time.Second
			cfg.Dialer = g.dial
		})
		ctx := soon(t)
		held, err := cl.Lock(ctx, "x")
		require.NoError(t, err)
		waits := make(chan error, 1)
		go func() {
			_, err := cl.Lock(ctx, "x")
			// on a busy machine the first session may be over already, and this one's be another
			for err == nil {
				_, err = cl.Lock(ctx, "x")
			}
			waits <- err
		}()
		g.lead(b.nodes[0].Client())
		err = until(t, waits, "the end of the wait")
		require.ErrorIs(t, err, client.ErrWrongCluster)
		require.ErrorContains(t, err, idA)
		require.ErrorContains(t, err, idB)
		until(t, held.Lost(), "the loss")
		err = held.Unlock(ctx)
		require.ErrorIs(t, err, client.ErrLost)
		unknown(t, err)
		_, err = cl.TryLock(ctx, "x")
		require.ErrorIs(t, err, client.ErrWrongCluster,
			"it does not go over to the new one by itself")
		b.unused()
	})
}

// The address that a node announced leads to a node of another cluster by now.
func TestALearntAddressOfAnotherClusterIsNotUsed(t *testing.T) {
	t.Parallel()
	twoClusters(t, func(t *testing.T, a, b *cluster, _, idB string) {
		var out record
		cl := a.client(func(cfg *client.Config) {
			cfg.Endpoints, cfg.Logger = []string{"given:1"},
				slog.New(slog.NewTextHandler(&out, nil))
			cfg.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
				if address != "given:1" {
					address = b.nodes[0].Client()
				} else {
					address = a.nodes[0].Client()
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", address)
			}
		})
		ctx := soon(t)
		other := a.client(nil)
		// a node that leads from its start announces its address a little later
		require.Eventually(t, func() bool {
			members, _, err := admin.New(other).Members(ctx)
			return err == nil && members[0].Client != ""
		}, testTimeout, pollEvery)
		_, err := cl.Lock(ctx, "x") // its session learns the members' addresses
		require.NoError(t, err)
		refused := func() bool {
			for m, err := range cl.Watch(ctx, "", 0) { // goes to any node
				require.NoError(t, err)
				require.NotNil(t, m)
				break
			}
			return strings.Contains(strings.Join(out.lines(), ""), idB)
		}
		require.Eventually(t, refused, testTimeout, pollEvery,
			"the node of another cluster was not met")
		require.Equal(t, 1, strings.Count(strings.Join(out.lines(), ""),
			"belongs to another cluster and is ignored"), "said once")
		_, err = cl.TryLock(ctx, "y")
		require.NoError(t, err)
		b.unused()
	})
}
