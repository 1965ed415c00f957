package api

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"zamok/api/conns"
	"zamok/api/gate"
	"zamok/api/gate/limits"
	"zamok/api/service"
	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/session"
)

// relayingCaller opens sessions' streams that are to be relayed.
type relayingCaller struct{ zamokpb.ZamokClient }

func (c relayingCaller) Session(ctx context.Context,
	options ...grpc.CallOption) (grpc.BidiStreamingClient[zamokpb.ClientFrame, zamokpb.ServerFrame],
	error) {
	return c.ZamokClient.Session(relaying(ctx), options...)
}

func relayedTo(c caller) caller {
	c.ZamokClient = relayingCaller{c.ZamokClient}
	return c
}

// TestARelayedStream is served as any other, but its break is not its client's.
func TestARelayedStream(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	leader, follower := c.leader(), c.follower()
	through := relayedTo(call(t, follower))
	releasing := settings(clock.Minute)
	releasing.ReleaseOnDisconnect = int64(clock.Millisecond)
	w := openStream(t, through, releasing)
	assert.Equal(t, leader.cfg.ID, w.state.Node)
	w.send(exclusive(1, "relayed", 0))
	token := w.is(1, stateGranted).State.Token
	w.hangUp()
	require.Equal(t, codes.Canceled, status.Code(w.end()))
	attached := func() bool { return leader.server.hub.Counts().Streams > 0 }
	require.Eventually(t, func() bool { return !attached() }, patience, time.Millisecond,
		"the leader learns of it")
	held := func() (yes bool) {
		leader.Raft().View(func(m *fsm.Machine) {
			yes = m.Holds("relayed", token, fsm.TicketRef{})
		})
		return yes
	}
	require.Never(t, func() bool { return !held() }, 200*time.Millisecond, 10*time.Millisecond,
		"the session has its ttl")

	next := w.again(through)
	next.send((&zamokpb.CloseSession{}).Message())
	require.NotNil(t, next.next().GetChange())
	require.Equal(t, zamokpb.Reason_REASON_CLOSED, next.next().GetSessionEnded().GetReason())
	require.NoError(t, next.end(), "relayed with its status")
	follower.server.relaysNoCall(t)

	// The leader's own error at the end of a stream comes through.
	unknown := dial(t, through)
	unknown.send(openMessage(&zamokpb.OpenStream{Secret: unknown.Secret, Session: 1 << 40}))
	require.Equal(t, zamokpb.Code_CODE_NO_SESSION, infoOf(t, unknown.end()).Code)

	// And where there is none, that it is missing.
	last := openStream(t, through, settings(clock.Minute))
	require.NoError(t, leader.Kill())
	err := last.end()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, infoOf(t, err).Outcome)

	// What could not be sent to it was not done. Another may lead by now, and answers. A connection
	// that was made in the moment in which it ended may take a call, and loses it: of that call it
	// is not known.
	require.Eventually(t, func() bool {
		_, err := through.admin.ExpireSession(relaying(soon(t)),
			&zamokpb.ExpireSessionRequest{Session: 1 << 40, Reason: "a test"})
		return infoOf(t, err).Outcome == zamokpb.Outcome_OUTCOME_NOT_DONE
	}, patience, time.Millisecond)
	opening := dial(t, through)
	opening.send(openMessage(&zamokpb.OpenStream{Secret: opening.Secret, Session: 1 << 40}))
	require.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, infoOf(t, opening.end()).Outcome,
		"the relay has not read whether this opens a session")
}

// What one node has passed on, another does not pass on again; and who is named as the caller
// counts between nodes only.
func TestARelayedCallGoesNoFurther(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	leader, follower := c.leader(), c.follower()
	named := metadata.AppendToOutgoingContext(relaying(soon(t)), zamokpb.CallerKey, "root",
		zamokpb.CallerKey, "10.0.0.1:7")

	s := openSession(t, named, call(t, follower))
	require.Equal(t, "anonymous@127.0.0.1", identityOf(leader, s.id), "a client names nobody")
	s = openSession(t, named, call(t, leader))
	require.Equal(t, "anonymous@127.0.0.1", identityOf(leader, s.id))

	between := func(to *Node) caller {
		servers := leader.Raft().Servers()
		i := slices.IndexFunc(servers, func(s raftnode.Server) bool { return s.ID == to.cfg.ID })
		node := peer.Server{Name: to.cfg.ID, Incarnation: servers[i].Incarnation}
		conn, err := grpc.NewClient("passthrough:///"+node.Name,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return follower.Raft().DialRelay(ctx, node)
			}))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return caller{zamokpb.NewZamokClient(conn), zamokpb.NewAdminClient(conn), conn}
	}
	s = openSession(t, named, between(leader))
	require.Equal(t, "root", identityOf(leader, s.id), "a node does")
	for _, n := range c.nodes {
		if n != leader && n != follower {
			_, err := between(n).Now(named, &zamokpb.NowRequest{})
			require.Equal(t, zamokpb.Code_CODE_NOT_LEADER, infoOf(t, err).Code)
		}
	}
}

// identityOf is what a node has of the client that opened a session.
func identityOf(n *Node, id uint64) (identity string) {
	n.Raft().View(func(m *fsm.Machine) {
		s, _ := m.Session(session.ID(id))
		identity = s.Identity
	})
	return identity
}

// longestAnswer is the longest answer over HTTP, and the longest message of gRPC that is relayed.
const longestAnswer = 4 << 20

// Long answers are cut into pages, and passed on whole, also over HTTP, where one byte of metadata
// may be written as six.
func TestALongAnswerIsRelayed(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, serveHTTP)
	leader := c.leader()
	ctx := soon(t)
	long := settings(clock.Minute)
	long.Meta = bytes.Repeat([]byte("<"), fsm.MetaBytesMax)
	const sessions, openers = 300, 10
	to := call(t, leader)
	opened := make(chan error, openers)
	for range openers {
		go func() {
			var err error
			for left := sessions / openers; left > 0 && err == nil; left-- {
				one := &zamokpb.OpenSessionRequest{Secret: newSecret(), Settings: long}
				_, err = to.OpenSession(ctx, one)
				// Of many at once a busy node refuses some, and another node may lead by now.
				for status.Code(err) == codes.Unavailable && ctx.Err() == nil {
					_, err = to.OpenSession(relaying(ctx), one)
				}
			}
			opened <- err
		}()
	}
	for range openers {
		require.NoError(t, <-opened)
	}
	through := zamokpb.NewZamokClient(persistent{call(t, c.follower()).conn})
	total, pages, longest := 0, 0, 0
	for after := uint64(0); ; pages++ {
		list, err := through.ListSessions(relaying(ctx),
			&zamokpb.ListSessionsRequest{Limit: service.ListMax, After: after})
		require.NoError(t, err)
		if len(list.Sessions) == 0 {
			break
		}
		total += len(list.Sessions)
		longest = max(longest, proto.Size(list))
		after = list.Sessions[len(list.Sessions)-1].Session
	}
	require.Equal(t, sessions, total)
	require.Greater(t, pages, 1, "they are cut off by their bytes")
	require.Greater(t, longest, answerBytesMax)
	require.Less(t, longest, answerBytesMax+2*fsm.MetaBytesMax)
	page := send(ctx, t, c.follower(), "GET", "/v1/sessions", "")
	require.Equal(t, 200, page.code)
	require.Less(t, len(page.text), longestAnswer)
	require.Greater(t, len(page.text), 5*answerBytesMax)
}

// More calls are held open through one node than a connection takes; others are relayed all the
// same.
func TestManyHeldCallsAreRelayed(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 2, nil)
	leader, through := c.leader(), c.follower()
	holder := openSession(t, relaying(soon(t)), call(t, through))
	holder.hold("x")
	ctx, end := context.WithCancel(relaying(soon(t)))
	const callers, each = 2, conns.StreamsPerConn/2 + 50
	for range callers { // a client's connection takes no more either
		s := openSession(t, ctx, call(t, through))
		for range each {
			s.acquire(s.ctx, s.next("x", fsm.Forever))
		}
	}
	require.Eventually(t, func() (all bool) {
		leader.Raft().View(func(m *fsm.Machine) {
			lock, _ := m.Lock("x")
			all = lock.Waiters == callers*each
		})
		return all
	}, patience, 5*time.Millisecond)
	_, err := holder.RenewSession(holder.ctx,
		&zamokpb.RenewSessionRequest{Session: holder.id, Secret: holder.secret})
	require.NoError(t, err)
	end()
	through.server.relaysNoCall(t)
}

// A node that relays ends without waiting for the calls that it relays.
func TestARelayThatStops(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	through := c.follower()
	w := openStream(t, relayedTo(call(t, through)), settings(clock.Minute))
	s := openSession(t, relaying(soon(t)), call(t, through))
	s.hold("x")
	waiting := s.acquire(s.ctx, s.next("x", fsm.Forever))
	s.waiters("x", 1)
	began := time.Now()
	require.NoError(t, through.Close())
	assert.Less(t, time.Since(began), patience/2)
	t.Logf("stopped within %v", time.Since(began))
	for _, err := range []error{(<-waiting).err, w.end()} {
		info := infoOf(t, err)
		assert.Equal(t, zamokpb.Code_CODE_STOPPING, info.Code)
		assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, info.Outcome)
	}
	c.nodes = without(c.nodes, through)
	leader := c.leader()
	require.Eventually(t, func() (dropped bool) {
		leader.Raft().View(func(m *fsm.Machine) {
			lock, _ := m.Lock("x")
			dropped = lock.Waiters == 0
		})
		return dropped
	}, patience, 5*time.Millisecond, "the call broke, so its ticket is dropped")
	leader.Raft().View(func(m *fsm.Machine) {
		_, lives := m.Session(session.ID(w.Session))
		assert.True(t, lives)
	})
}

// TestRelayWithTLS: a client's certificate names it also where another node relays, which shows
// none.
func TestRelayWithTLS(t *testing.T) {
	t.Parallel()
	pool, certificate := selfSigned(t)
	c := startCluster(t, 2, func(cfg *NodeConfig) {
		cfg.ClientTLS = func() *tls.Config {
			return &tls.Config{
				Certificates: []tls.Certificate{certificate}, ClientCAs: pool,
				ClientAuth: tls.RequireAndVerifyClientCert,
			}
		}
	})
	leader := c.leader()
	for _, n := range c.nodes {
		conn, err := grpc.NewClient("passthrough:///"+n.Client(),
			grpc.WithTransportCredentials(credentials.NewTLS(
				&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{certificate}})))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		s := openSession(t, relaying(soon(t)),
			caller{zamokpb.NewZamokClient(conn), zamokpb.NewAdminClient(conn), conn})
		s.hold(n.cfg.ID)
		require.Equal(t, "a test", identityOf(leader, s.id))
	}
	_, err := call(t, leader).Now(soon(t), &zamokpb.NowRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err), "without TLS no call is served")
}

func selfSigned(t *testing.T) (*x509.CertPool, tls.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return pool, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// relaysNoCall waits until the node counts no relayed call of the test any more: all that one
// caller may have is free.
func (s *server) relaysNoCall(t *testing.T) {
	who := gate.Caller{Address: "127.0.0.1:1"}.Principal()
	require.Eventually(t, func() bool {
		end, err := s.limits.OpenMany(limits.Relays, who,
			s.limits.Most("relayed-calls-per-identity"))
		if err != nil {
			return false
		}
		end()
		return true
	}, patience, time.Millisecond)
}
