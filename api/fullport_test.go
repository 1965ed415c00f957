package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"zamok/api/gate/identity"
	"zamok/api/gate/limits"
	"zamok/api/zamokpb"
	"zamok/clock"
)

// fullNode is a node with few connections, whose callers have tokens: alice may operate, and bob
// may lock. Anybody may watch public/.
type fullNode struct {
	*testing.T
	*Node
	tokens map[string]string
}

// fullConns is how many connections a port of it has, and fullAdmitted how many of them are
// admitted at most: the rest is for newcomers and operators.
const (
	fullConns    = 40
	fullAdmitted = 33
)

func startFull(t *testing.T) fullNode {
	tokens, known := tokensFor(t, "alice", "bob")
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		serveHTTP(cfg)
		cfg.ConnsMax = fullConns
		cfg.Identity.Verifier = func() identity.Verifier { return identity.Verifier{Tokens: known} }
		cfg.Rules = theseRules(t, `
rules:
  - {identities: [alice], may: [operate]}
  - {identities: [bob], names: ["*"], may: [lock, read]}
  - {groups: [anonymous], names: [public/*], may: [watch]}
`)
	})
	return fullNode{t, c.leader(), tokens}
}

func (n fullNode) as(who string) context.Context {
	return metadata.AppendToOutgoingContext(soon(n), "authorization", "Bearer "+n.tokens[who])
}

// from returns a dialer with an address of this machine.
func (n fullNode) from(host string) *net.Dialer {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}, Timeout: patience}
	conn, err := dialer.Dial("tcp", n.Client())
	if err != nil {
		n.Skip("this machine has no second loopback address: ", err)
	}
	require.NoError(n, conn.Close())
	return dialer
}

// callFrom makes a connection for gRPC.
func (n fullNode) callFrom(dialer *net.Dialer) caller {
	conn, err := grpc.NewClient("passthrough:///"+n.Client(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", to)
		}))
	require.NoError(n, err)
	n.Cleanup(func() { _ = conn.Close() })
	return caller{zamokpb.NewZamokClient(conn), zamokpb.NewAdminClient(conn), conn}
}

func (n fullNode) checkHealth(from caller) error {
	_, err := healthpb.NewHealthClient(from.conn).Check(soon(n), &healthpb.HealthCheckRequest{})
	return err
}

// get makes a connection for one request over HTTP.
func (n fullNode) get(path, who string) (code int, err error) {
	request, err := http.NewRequestWithContext(soon(n), "GET", "http://"+n.HTTP()+path, nil)
	require.NoError(n, err)
	if who != "" {
		request.Header.Set("Authorization", "Bearer "+n.tokens[who])
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, answer.Body.Close()
}

// besiege keeps connections from two addresses, together more than a port has, until the test ends.
// Each has a call, again and again, and is made again when it is closed. Besiege returns when they
// fill the port.
func (n fullNode) besiege(address string, call func(conn net.Conn, number uint32) error) {
	var open, calls atomic.Int64
	var all sync.WaitGroup
	done, stop := context.WithCancel(context.Background())
	once := func(dialer *net.Dialer) {
		conn, err := dialer.DialContext(done, "tcp", address)
		if err != nil {
			return
		}
		defer conn.Close()
		open.Add(1)
		defer open.Add(-1)
		closed := make(chan struct{})
		all.Go(func() {
			_, _ = io.Copy(io.Discard, conn)
			close(closed)
		})
		beat := time.NewTicker(100 * time.Millisecond)
		defer beat.Stop()
		for number := uint32(0); call(conn, number) == nil; number++ {
			calls.Add(1)
			select {
			case <-beat.C:
			case <-closed:
				return
			case <-done.Done():
				return
			}
		}
	}
	for _, host := range []string{"127.0.0.2", "127.0.0.3"} {
		dialer := n.from(host)
		for range fullConns/2 + 5 {
			all.Go(func() {
				// a machine's processors are not what is besieged
				ticker := time.NewTicker(100 * time.Millisecond)
				defer ticker.Stop()
				for done.Err() == nil {
					once(dialer)
					<-ticker.C
				}
			})
		}
	}
	n.Cleanup(func() {
		stop()
		all.Wait()
	})
	require.Eventually(n, func() bool {
		return calls.Load() > 4*fullConns && open.Load() >= fullConns-2
	}, patience, 5*time.Millisecond)
}

// besiegeGRPC begins calls with their headers alone.
func (n fullNode) besiegeGRPC() {
	n.besiege(n.Client(), func(conn net.Conn, number uint32) error {
		f := http2.NewFramer(conn, nil)
		if number == 0 {
			if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
				return err
			}
			if err := f.WriteSettings(); err != nil {
				return err
			}
		}
		return openSessionStream(f, 2*number+1)
	})
}

// besiegeHTTP sends requests without their bodies.
func (n fullNode) besiegeHTTP() {
	n.besiege(n.HTTP(), func(conn net.Conn, number uint32) (err error) {
		if number == 0 {
			_, err = fmt.Fprintf(conn, "POST /v1/acquire HTTP/1.1\r\nHost: %v\r\n"+
				"Content-Length: 10000\r\n\r\n", n.HTTP())
		} else {
			_, err = io.WriteString(conn, " ")
		}
		return err
	})
}

// Two addresses without credentials take all connections of a port again and again, and have a call
// on each. Holders keep their streams, and newcomers with an identity, operators and health checks
// are served at the first attempt.
func TestAnonymousClientsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	t.Run("gRPC", func(t *testing.T) {
		n := startFull(t)
		here := n.from("127.0.0.1")
		holder := openStreamIn(n.as("bob"), t, n.callFrom(here), settings(clock.Minute))
		n.besiegeGRPC()
		for i := range 5 {
			_, err := n.callFrom(here).Now(n.as("bob"), &zamokpb.NowRequest{})
			require.NoError(t, err, "bob, %d", i)
			_, err = n.callFrom(here).admin.Settings(n.as("alice"),
				&zamokpb.SettingsRequest{Identities: 1})
			require.NoError(t, err, "alice, %d", i)
			require.NoError(t, n.checkHealth(n.callFrom(here)), "health, %d", i)
			holder.send(exclusive(uint64(i+1), "held", 0))
			holder.is(uint64(i+1), stateGranted)
			holder.send(drop(uint64(i + 1)))
			holder.is(uint64(i+1), stateEnded)
		}
	})
	t.Run("HTTP", func(t *testing.T) {
		n := startFull(t)
		ctx, cancel := context.WithCancel(soon(t))
		defer cancel()
		held := listen(ctx, t, n.Node, "/v1/hold?name=held&ttl=1m",
			"Authorization", "Bearer "+n.tokens["bob"])
		held.next("granted")
		n.besiegeHTTP()
		for range 5 {
			for _, probe := range [][2]string{
				{"/healthz", ""}, {"/readyz", ""}, {"/v1/now", "bob"}, {"/v1/members", "alice"},
			} {
				code, err := n.get(probe[0], probe[1])
				require.NoError(t, err, probe)
				require.Equal(t, http.StatusOK, code, probe)
			}
		}
		code, err := n.get("/v1/lock?name=held", "bob")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code)
		select {
		case e, more := <-held.events:
			require.True(t, more && e.name == "heartbeat", "%v", e)
		default:
		}
	})
}

// silent makes connections that begin HTTP/2 and say nothing more; they read what they are sent.
func (n fullNode) silent(conns int) {
	for range conns {
		conn, err := net.Dial("tcp", n.Client())
		require.NoError(n, err)
		n.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, http2.ClientPreface)
		require.NoError(n, err)
		require.NoError(n, http2.NewFramer(conn, nil).WriteSettings())
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
}

// TestAnAddressDoesNotTakeEveryConnection: neither with silent connections, nor with those that
// have calls. At its limit its newcomers get in if one of its connections has no call, its
// operators and health checks always. It is the same when all addresses together are at the limit
// of the port.
func TestAnAddressDoesNotTakeEveryConnection(t *testing.T) {
	t.Parallel()
	n := startFull(t)
	const perAddress = fullConns * 3 / 4
	here, there := n.from("127.0.0.1"), n.from("127.0.0.2")
	now := func(c caller, who string) error {
		_, err := c.Now(n.as(who), &zamokpb.NowRequest{})
		return err
	}
	served := func(from *net.Dialer) {
		require.NoError(t, now(n.callFrom(from), "alice"))
		require.NoError(t, n.checkHealth(n.callFrom(from)))
	}
	refused := func(from *net.Dialer, limit string) caller {
		c := n.callFrom(from)
		info := infoOf(t, now(c, "bob"))
		require.Equal(t, limit, info.Field, info.Message)
		assert.Equal(t, zamokpb.Code_CODE_OVERLOADED, info.Code)
		assert.Equal(t, zamokpb.Outcome_OUTCOME_NOT_DONE, info.Outcome)
		assert.Zero(t, info.RetryAfter, "another node may have room")
		return c
	}
	n.silent(2 * perAddress)
	owner := openSession(t, n.as("bob"), n.callFrom(here))
	held := owner.next("owned", 0)
	_, err := owner.Acquire(owner.ctx, held)
	require.NoError(t, err)
	var streams []*wireClient
	stream := func(from *net.Dialer) {
		streams = append(streams,
			openStreamIn(n.as("bob"), t, n.callFrom(from), settings(clock.Minute)))
	}
	for range perAddress - 1 {
		stream(here)
	}
	stream(here) // in the place of the owner's connection, which has no call
	late := refused(here, "connections-per-address")
	_, err = late.Acquire(n.as("bob"), held)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, infoOf(t, err).Outcome,
		"the one before is done")
	n.silent(2 * perAddress)
	served(here)
	renewal := &zamokpb.RenewSessionRequest{Session: streams[0].Session, Secret: streams[0].Secret}
	_, err = n.callFrom(here).RenewSession(n.as("bob"), renewal)
	require.NoError(t, err, "what keeps a session needs no room")
	for range fullAdmitted - perAddress {
		stream(there)
	}
	refused(there, "connections")
	served(there)
	n.silent(2 * perAddress)

	streams[3].send(closeSession())
	require.NoError(t, streams[3].end()) // its connection stays, without a call
	require.Eventually(t, func() bool { return now(n.callFrom(here), "bob") == nil },
		patience, time.Millisecond)
	for i, w := range streams {
		if i != 3 {
			w.send(exclusive(1, fmt.Sprint(i), 0))
			w.is(1, stateGranted)
		}
	}
}

// TestAnonymousCallersGiveWay, even during a call, to callers with an identity.
func TestAnonymousCallersGiveWay(t *testing.T) {
	t.Parallel()
	n := startFull(t)
	watch := func(from *net.Dialer) error {
		stream, err := n.callFrom(from).Watch(soon(t), &zamokpb.WatchRequest{Prefix: "public/"})
		require.NoError(t, err)
		_, err = stream.Recv()
		return err
	}
	for i := range fullAdmitted {
		require.NoError(t, watch(n.from(fmt.Sprintf("127.0.0.%d", 2+i%2))))
	}
	info := infoOf(t, watch(n.from("127.0.0.4")))
	require.Equal(t, "connections", info.Field, info.Message)
	w := openStreamIn(n.as("bob"), t, n.callFrom(n.from("127.0.0.4")), settings(clock.Minute))
	for range 3 {
		require.Error(t, watch(n.from("127.0.0.4")))
	}
	w.send(exclusive(1, "held", 0))
	w.is(1, stateGranted)
}

// TestARelayedStreamKeepsItsConnection: at the node that relays it, anonymous clients do not
// displace it.
func TestARelayedStreamKeepsItsConnection(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, func(cfg *NodeConfig) { cfg.ConnsMax = fullConns })
	n := fullNode{T: t, Node: c.follower()}
	w := openStreamIn(relaying(soon(t)), t, call(t, n.Node), settings(clock.Minute))
	n.silent(3 * fullConns)
	require.NoError(t, n.checkHealth(call(t, n.Node)), "all of them were accepted")
	w.send(exclusive(1, "held", 0))
	w.is(1, stateGranted)
}

// TestHealthWatchesOfAnAddressLeaveRoom for those of others.
func TestHealthWatchesOfAnAddressLeaveRoom(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(cfg *NodeConfig) { cfg.Limits = limits.Set{"public-streams": 8} })
	n := fullNode{T: t, Node: c.leader()}
	watch := func(from caller) error {
		stream, err := healthpb.NewHealthClient(from.conn).Watch(soon(t),
			&healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		return err
	}
	greedy := n.callFrom(n.from("127.0.0.2"))
	for range 6 {
		require.NoError(t, watch(greedy))
	}
	refusedBy(t, watch(greedy), "public-streams-per-address")
	for range 2 {
		require.NoError(t, watch(call(t, n.Node)))
	}
	refusedBy(t, watch(call(t, n.Node)), "public-streams")
}
