package api

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"zamok/api/gate"
	"zamok/api/web"
	"zamok/api/zamokpb"
)

// A node that closes answers what waits there, ends what is held there, and takes not long.
func TestClosingEndsWhatIsHeld(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx := soon(t)
	for i, n := range []*Node{c.follower(), c.leader()} {
		name := []string{"follower", "leader"}[i]
		held := listen(ctx, t, n, hold(name))
		held.next("granted")
		waits := listen(ctx, t, n, hold(name))
		waits.next("queued")
		watch := listen(ctx, t, n, "/v1/watch?prefix=nothing/")
		watch.next("index")
		keyless, _ := inBackground(ctx, t, n, "/v1/acquire", `{"name":"`+name+`","wait":"forever"}`)
		keyed, _ := inBackground(ctx, t, n, "/v1/acquire", `{"name":"`+name+`","wait":"forever"}`,
			"Idempotency-Key", newKey())
		lockIs(ctx, t, n, name, 1, 3)
		began := time.Now()
		require.NoError(t, n.Close())
		assert.Less(t, time.Since(began), 8*time.Second)
		for _, done := range []<-chan reply{keyless, keyed} {
			r := answered(t, done)
			assert.Equal(t, 503, r.code, r.text)
			assert.Contains(t, r.text, `"outcome":"unknown"`)
			assert.NotEmpty(t, r.header.Get("Retry-After"))
		}
		assert.Equal(t, "node_stopping", held.next("lost").data["reason"])
		assert.Contains(t, []string{"unknown", "not_done"}, waits.next("error").data["outcome"])
		e := watch.any()
		for e.name == "index" {
			e = watch.any()
		}
		assert.Equal(t, "error", e.name)
		assert.Equal(t, "stopping", e.data["code"])
		assert.Empty(t, watch.any().name, "the stream has ended")
		if i == 0 {
			c.nodes = without(c.nodes, n)
		}
	}
}

// The node that holds a lock for a connection is killed: the lock is free after the ttl, not
// before.
func TestAKilledNodesHoldsEndWithTheirTTL(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, n := soon(t), c.follower()
	held := listen(ctx, t, n, hold("kill")+"&ttl=3s")
	held.next("granted")
	held.next("heartbeat")
	waits := listen(ctx, t, c.leader(), hold("kill"))
	waits.next("queued")
	began := time.Now()
	require.NoError(t, n.Kill())
	for held.any().name != "" {
	}
	waits.next("granted")
	assert.Greater(t, time.Since(began), 1500*time.Millisecond,
		"the last renewal was a second ago at most")
}

// Without a leader there is no heartbeat, and the lock is lost before its ttl has passed.
func TestAHoldWithoutALeaderIsLost(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, serveHTTP)
	ctx, n := soon(t), c.follower()
	const ttl = 6 * time.Second
	held := listen(ctx, t, n, hold("alone")+"&ttl="+ttl.String())
	held.next("granted")
	held.next("heartbeat")
	for _, other := range without(c.nodes, n) {
		require.NoError(t, other.Kill())
	}
	began := time.Now()
	e := held.any()
	for ; e.name == "heartbeat"; e = held.any() {
		left, err := time.ParseDuration(e.data["valid_for"].(string))
		require.NoError(t, err)
		assert.Greater(t, left, ttl/2, "a heartbeat follows a confirmation")
	}
	assert.Equal(t, "lost", e.name)
	assert.Equal(t, "unconfirmed", e.data["reason"])
	assert.Less(t, time.Since(began), ttl)
	c.nodes = []*Node{n}
	if testing.Short() {
		return // the next one takes as long as a node repeats a call
	}
	waits := listen(ctx, t, n, hold("alone")).refused
	assert.Equal(t, 503, waits.code, waits.text)
	assert.Equal(t, "unknown", waits.fields["outcome"], "a proxy may have sent it to another node")
}

// pipes is a listener for connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, more := <-p
	if !more {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// slowConn answers an Acquire after ten minutes, and all else at once.
type slowConn struct{ web.Gate }

func (slowConn) Do(ctx context.Context, _ gate.Arrival,
	request proto.Message) (proto.Message, error) {
	switch request.(type) {
	case *zamokpb.AcquireRequest:
		select {
		case <-time.After(10 * time.Minute):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return &zamokpb.AcquireResponse{
			State: &zamokpb.TicketState{Ticket: 1, State: zamokpb.State_STATE_GRANTED,
				Token: 9}}, nil
	}
	return &zamokpb.NowResponse{}, nil
}

func (slowConn) Cluster() string { return "" }

// The HTTP server cuts clients that are slow to send, and none that waits for its lock. The times
// are those of a bubble.
func TestOnlySlowSendersAreCut(t *testing.T) {
	for name, test := range map[string]struct {
		sends string
		after time.Duration
		code  int // 0: no answer
	}{
		"header": {"GET /v1/now HTTP/1.1\r\nHost: localhost\r\n", httpHeaderWait, 0},
		"body": {"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
			"100\r\n\r\n{\"name\":", 2 * httpHeaderWait, 408},
		"wait": {"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
			"12\r\n\r\n{\"name\":\"a\"}", 10 * time.Minute, 200},
		"idle": {"", httpHeaderWait, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := web.Config{
					Gate: slowConn{}, Begin: func() (end func(), err error) {
						return func() {}, nil
					}, Started: func() bool { return true },
				}
				server := newHTTPServer(web.New(config), slog.New(slog.DiscardHandler))
				connections, ended := make(pipes), make(chan struct{})
				go func() {
					defer close(ended)
					_ = server.Serve(connections)
				}()
				client, accepted := net.Pipe()
				connections <- accepted
				began := time.Now()
				_, err := io.WriteString(client, test.sends)
				require.NoError(t, err)
				answers := bufio.NewReader(client)
				answer, err := http.ReadResponse(answers, nil)
				took := time.Since(began)
				assert.Equal(t, test.after, took)
				if test.code == 0 {
					require.Error(t, err)
				} else {
					require.NoError(t, err)
					text, err := io.ReadAll(answer.Body)
					require.NoError(t, err)
					assert.Equal(t, test.code, answer.StatusCode, string(text))
					assert.False(t, strings.Contains(string(text), "pipe"), string(text))
				}
				close(connections)
				_ = server.Close()
				_ = client.Close()
				<-ended
			})
		})
	}
}
