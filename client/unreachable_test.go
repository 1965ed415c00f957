package client_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/client/admin"
)

// dead is an address without a listener. A port that was free a moment ago might be another test's
// by now.
const dead = "127.0.0.1:1"

func TestDialNamesEveryEndpointAndWhy(t *testing.T) {
	c := startCluster(t, 1)
	ctx := soon(t)
	peer := c.nodes[0].Peer()
	_, err := client.Dial(ctx, dead, peer)
	require.ErrorIs(t, err, client.ErrUnavailable)
	var all *client.Error
	require.ErrorAs(t, err, &all)
	require.Len(t, all.Nodes, 2)
	require.ErrorContains(t, err, dead)
	require.ErrorContains(t, err, "refused")
	require.ErrorContains(t, err, peer)
	require.NotContains(t, err.Error(), "rpc error")

	cl, err := client.Dial(ctx, dead, c.nodes[0].Client())
	require.NoError(t, err, "one that answers is enough")
	_, err = cl.TryLock(ctx, "x")
	require.NoError(t, err)
	hangUp(t, cl)
}

// An attempt without a connection had no effect, so what the next node says is the whole truth.
// Each client asks its endpoints in another order.
func TestAnAttemptWithoutAConnectionLeavesNoDoubt(t *testing.T) {
	c := startCluster(t, 1)
	ctx := soon(t)
	_, cluster, err := admin.New(c.client(nil)).Members(ctx)
	require.NoError(t, err)
	for range 10 {
		cl := c.client(func(cfg *client.Config) {
			cfg.Endpoints, cfg.Cluster = []string{dead, c.nodes[0].Client()}, cluster.ID
		})
		err := admin.New(cl).ExpireSession(ctx, 1, "a test")
		require.ErrorIs(t, err, client.ErrSessionExpired)
		var e *client.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, client.NotDone, e.Outcome, "%v", e)
		_, err = admin.New(cl).ForceRelease(ctx, "x", 1, "a test")
		require.NoError(t, err)
	}
}

func TestBadConfigNamesTheField(t *testing.T) {
	for field, cfg := range map[string]client.Config{
		"Endpoints":      {},
		"endpoint":       {Endpoints: []string{"http://host:1/x"}},
		"TTL":            {Endpoints: []string{"a"}, TTL: time.Second},
		"Meta":           {Endpoints: []string{"a"}, Meta: make([]byte, 4097)},
		"RequestTimeout": {Endpoints: []string{"a"}, RequestTimeout: -1},
	} {
		_, err := client.New(cfg)
		var e *client.Error
		require.ErrorAs(t, err, &e, field)
		require.ErrorIs(t, err, client.ErrInvalid)
		require.Equal(t, field, e.Field)
	}
}

// record keeps what was logged.
type record struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

func (r *record) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(strings.Lines(r.b.String()))
}

func TestLockWaitsWhileNoNodeCanBeReached(t *testing.T) {
	takesTime(t)
	t.Parallel()
	log := &record{}
	c, ctx := startCluster(t, 1), soon(t)
	cl, err := client.New(client.Config{
		Endpoints: c.endpoints(), RequestTimeout: 300 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := admin.New(cl).Now(ctx); return err == nil },
		testTimeout, pollEvery)
	require.NoError(t, c.nodes[0].Kill())
	_, err = cl.TryLock(ctx, "x")
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "TryLock gives up by itself")
	_, err = admin.New(cl).Now(ctx)
	require.ErrorIs(t, err, client.ErrUnavailable)

	// when an attempt has just taken too long, the error says that
	for refused := false; !refused; {
		bounded, cancel := context.WithTimeout(ctx, 3*time.Second)
		_, err = cl.Lock(bounded, "x")
		cancel()
		require.NoError(t, ctx.Err())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, client.ErrUnavailable)
		require.ErrorContains(t, err, c.nodes[0].Client())
		refused = strings.Contains(err.Error(), "refused")
	}
	require.Eventually(t, func() bool { return len(log.lines()) > 0 }, testTimeout,
		5*time.Millisecond)
	require.Len(t, log.lines(), 1, "one warning in one outage")
	_ = cl.Close() // nothing was opened, or it can't be known
}

func TestDoorNamesTheField(t *testing.T) {
	c := startCluster(t, 1)
	a, ctx := c.client(nil), soon(t)
	for name, ask := range map[string]func() error{
		"empty name":    func() error { _, err := a.Lock(ctx, ""); return err },
		"control in it": func() error { _, err := a.Lock(ctx, "a\x00b"); return err },
		"not UTF-8":     func() error { _, err := a.Lock(ctx, "\xff"); return err },
		"long name": func() error {
			_, err := a.TryLock(ctx, strings.Repeat("x", 513))
			return err
		},
		"much metadata": func() error {
			_, err := a.Lock(ctx, "x", client.WithMeta(make([]byte, 4097)))
			return err
		},
		"10 MiB": func() error {
			_, err := a.Lock(ctx, "x", client.WithMeta(make([]byte, 10<<20)))
			return err
		},
		"no items": func() error { _, err := a.LockAll(ctx, nil); return err },
		"too many items": func() error {
			_, err := a.LockAll(ctx, make([]client.Item, 65))
			return err
		},
		"negative hold": func() error {
			_, err := a.Lock(ctx, "x", client.WithMaxHold(-1))
			return err
		},
		"get":          func() error { _, err := a.Get(ctx, "", 0); return err },
		"get no UTF-8": func() error { _, err := a.Get(ctx, "\xff", 0); return err },
	} {
		err := ask()
		require.ErrorIs(t, err, client.ErrInvalid, name)
		var e *client.Error
		require.ErrorAs(t, err, &e, name)
		require.NotEmpty(t, e.Field, name)
		require.Equal(t, client.NotDone, e.Outcome, name)
	}
	l, err := a.Lock(ctx, "x")
	require.NoError(t, err, "and the session lives")
	require.NoError(t, l.Unlock(ctx))
}

// An address that leads to something else is reported in a sentence, and of a question it is never
// said that it may have taken effect.
func TestAWrongEndpointIsExplained(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.EnableHTTP2, secure.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	abrupt, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer abrupt.Close()
	// as a server with TLS, if it closes before it has read all: the rest is answered by a reset
	go func() {
		for {
			conn, err := abrupt.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}()
	for name, test := range map[string]struct {
		address, says string
		tls           *tls.Config
	}{
		"nobody":          {dead, "nobody listens there (connection refused)", nil},
		"a port for HTTP": {web.Listener.Addr().String(), "name the node's port for clients", nil},
		"a reset": {abrupt.Addr().String(),
			"wants TLS (--cacert, or Config.TLS) or a certificate (--cert), has reached a limit",
			nil},
		"TLS": {secure.Listener.Addr().String(),
			"wants TLS (--cacert, or Config.TLS)", nil},
		"no TLS": {web.Listener.Addr().String(),
			"does not talk TLS, and this client does: leave out --cacert (Config.TLS)",
			&tls.Config{}},
		"another's TLS": {secure.Listener.Addr().String(),
			"of no authority that this client trusts: name its authority (--cacert, or",
			&tls.Config{}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := client.New(client.Config{
				Endpoints: []string{test.address, dead}, TLS: test.tls, RequestTimeout: testTimeout,
				Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			defer c.Close()
			for _, ask := range []func() error{
				func() error { _, err := admin.New(c).Now(soon(t)); return err },
				func() error { _, err := c.Lock(soon(t), "x"); return err },
				func() error { _, err := client.Dial(soon(t), dead); return err },
			} {
				err := ask()
				require.ErrorIs(t, err, client.ErrUnavailable)
				require.ErrorContains(t, err,
					"no endpoint leads to a node; start the nodes, or correct the endpoints or TLS",
					"it fails at once")
				require.NotContains(t, err.Error(), "may have taken effect")
			}
			_, err = admin.New(c).Now(soon(t))
			require.ErrorContains(t, err, test.address+": ")
			require.ErrorContains(t, err, test.says)
		})
	}
}
