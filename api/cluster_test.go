package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/raftnode"
	"zamok/raftnode/peer"
)

// patience is how long a test waits for what should happen soon: the machine may be busy.
const patience = 30 * time.Second

// answerBytesMax: a listing, and what Get returns, ends with the element that brings it above this.
const answerBytesMax = 512 << 10

// steady is the election timeout of nodes that have others: on a machine that stands for a moment a
// leader must not change in the middle of a story about something else, which it does when the
// others do not hear it for this long. Most of what these tests take is waiting for first
// elections.
const steady = 750 * time.Millisecond

// alone is that of a node without others, which it can take nothing from: the shortest there is.
const alone = 50 * time.Millisecond

// cluster is nodes on loopback in this process.
type cluster struct {
	*testing.T
	nodes []*Node
}

// TestMain runs more parallel tests at once than there are processors, unless -parallel says
// otherwise: most of what they do is wait for elections. It checks that no goroutine is left after
// all tests.
func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		_ = p.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0)))
	}
	code := m.Run()
	if err := noneLeft(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// nodeConfig is the config of a node of a cluster that begins with a list.
func nodeConfig(id, list string) NodeConfig {
	members, err := peer.ParseList(list)
	if err != nil && list != "" {
		panic(err)
	}
	return NodeConfig{Config: raftnode.Config{ID: id, Peers: peer.Config{List: members}}}
}

// startCluster starts nodes n1, n2, … and ends them with the test.
func startCluster(t *testing.T, size int, change func(*NodeConfig)) *cluster {
	var configs []NodeConfig
	list := ""
	for i := range size {
		peers, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		id := fmt.Sprintf("n%d", i+1)
		list += fmt.Sprintf(",%s=%v", id, peers.Addr())
		cfg := nodeConfig(id, "")
		cfg.Peers.Listener, cfg.Logger = peers,
			slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
		cfg.Fatal = func(err error) { t.Errorf("fatal: %v", err) }
		if cfg.ElectionTimeout = alone; size > 1 {
			cfg.ElectionTimeout = steady
		}
		configs = append(configs, cfg)
	}
	c := &cluster{T: t, nodes: make([]*Node, size)}
	started := make(chan error, size)
	for i := range configs {
		configs[i].Peers.List = nodeConfig("", list[1:]).Peers.List
		if change != nil {
			change(&configs[i])
		}
		go func() {
			var err error
			c.nodes[i], err = StartNode(t.Context(), configs[i])
			started <- err
		}()
	}
	for range configs {
		require.NoError(t, <-started)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			require.NoError(t, n.Kill())
		}
	})
	return c
}

// noneLeft waits until no goroutine is left. gRPC's end a little after their connection, and goleak
// by itself waits for less than half a second.
func noneLeft() error {
	began := time.Now()
	err := goleak.Find()
	for err != nil && time.Since(began) < patience {
		err = goleak.Find()
	}
	return err
}

// untilItWaits is a context that ends as soon as a node which has this logger has queried the
// others of its list in vain.
func untilItWaits(t testing.TB) (context.Context, *slog.Logger) {
	ctx, cancel := context.WithCancel(soon(t))
	t.Cleanup(cancel)
	return ctx, slog.New(slog.NewTextHandler(writer(func(line []byte) {
		if bytes.Contains(line, []byte("msg=\"waiting for the initial members")) {
			cancel()
		}
	}), nil))
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// leader waits for an epoch, and for every node to know it.
func (c *cluster) leader() *Node {
	var leads *Node
	require.Eventually(c, func() bool {
		leads = nil
		for _, n := range c.nodes {
			if n.Raft().Status().Leading {
				leads = n
			}
		}
		if leads == nil {
			return false
		}
		for _, n := range c.nodes {
			if id, client := n.Raft().Leader(); id != leads.cfg.ID || client == "" {
				return false
			}
		}
		return true
	}, 2*patience, 5*time.Millisecond) // two elections may be needed
	return leads
}

// follower returns a node that does not lead.
func (c *cluster) follower() *Node {
	leads := c.leader()
	for _, n := range c.nodes {
		if n != leads {
			return n
		}
	}
	return nil
}

// caller calls one node.
type caller struct {
	zamokpb.ZamokClient
	admin zamokpb.AdminClient
	conn  *grpc.ClientConn
}

// call connects to a node, and hangs up at the end of the test.
func call(t testing.TB, n *Node) caller { return callAddress(t, n.Client()) }

func callAddress(t testing.TB, address string) caller {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return caller{zamokpb.NewZamokClient(conn), zamokpb.NewAdminClient(conn), conn}
}

// persistent repeats a unary call that was not done because the node called does not lead or the
// leader is overloaded, and one whose outcome a leader could not see: a machine that stands for a
// moment may cause each in the middle of a story about something else. Each call has patience of
// its own.
type persistent struct{ *grpc.ClientConn }

func (p persistent) Invoke(ctx context.Context, method string, args, reply any,
	opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := p.ClientConn.Invoke(ctx, method, args, reply, opts...)
	for notLed(err) || overloaded(err) || anyInfoOf(err).GetCode() == zamokpb.Code_CODE_UNKNOWN {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
		err = p.ClientConn.Invoke(relaying(ctx), method, args, reply, opts...)
	}
	return err
}

// notLed reports whether a call did nothing for want of a leader.
func notLed(err error) bool {
	info := anyInfoOf(err)
	return info.GetCode() == zamokpb.Code_CODE_NOT_LEADER &&
		!strings.Contains(info.GetMessage(), "waits on")
}

// overloaded reports whether the leader had no time for a call. What a limit refuses, which is
// named, is a test's own matter.
func overloaded(err error) bool {
	info := anyInfoOf(err)
	return info.GetCode() == zamokpb.Code_CODE_OVERLOADED && info.Field == ""
}

// anyInfoOf is what an error says beside its text, or nil.
func anyInfoOf(err error) *zamokpb.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*zamokpb.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// soon is a context for what should be answered soon.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// lasting is ctx until it is canceled, whatever its deadline: for what is used as long as its test
// takes, which nobody knows on a busy machine.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})
	return long, cancel
}

// relaying is the context of a call that its node is to relay.
func relaying(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, zamokpb.RelayKey, "1")
}

// infoOf is the detail of an error, which every error has.
func infoOf(t testing.TB, err error) *zamokpb.ErrorInfo {
	t.Helper()
	require.Error(t, err)
	info := anyInfoOf(err)
	require.NotNil(t, info, "an error without ErrorInfo: %v", err)
	return info
}

func newSecret() []byte {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret)
	return secret
}

// sessionOf is a session opened by unary calls, which numbers its tickets.
type sessionOf struct {
	testing.TB
	caller
	ctx    context.Context
	id     uint64
	secret []byte
	ticket uint64
}

func openSession(t testing.TB, ctx context.Context, c caller) *sessionOf {
	ctx, cancel := lasting(ctx)
	t.Cleanup(cancel)
	again := persistent{c.conn}
	c.ZamokClient, c.admin = zamokpb.NewZamokClient(again), zamokpb.NewAdminClient(again)
	s := &sessionOf{TB: t, caller: c, ctx: ctx, secret: newSecret()}
	opened, err := c.OpenSession(ctx, &zamokpb.OpenSessionRequest{
		Secret: s.secret, Sent: []byte("opening"),
		Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute), Label: "of a test"},
	})
	require.NoError(t, err)
	require.Equal(t, "opening", string(opened.Sent))
	require.EqualValues(t, clock.Minute, opened.Ttl)
	s.id = opened.Session
	return s
}

// next is a request for one exclusive lock under the next ticket.
func (s *sessionOf) next(name string, wait clock.Span) *zamokpb.AcquireRequest {
	s.ticket++
	return &zamokpb.AcquireRequest{
		Session: s.id, Secret: s.secret, Sent: []byte("asking"),
		Acquire: &zamokpb.Acquire{
			Ticket: s.ticket, Wait: int64(wait),
			Items: []*zamokpb.Item{{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
		},
	}
}

// hold acquires a free lock.
func (s *sessionOf) hold(name string) *zamokpb.TicketState {
	answer, err := s.Acquire(s.ctx, s.next(name, 0))
	require.NoError(s, err)
	require.Equal(s, zamokpb.State_STATE_GRANTED, answer.State.State)
	require.Equal(s, "asking", string(answer.Sent))
	return answer.State
}

func (s *sessionOf) drop(ticket uint64) *zamokpb.TicketState {
	answer, err := s.Drop(s.ctx,
		&zamokpb.DropRequest{Session: s.id, Secret: s.secret, Ticket: ticket,
			Sent: []byte("dropping")})
	require.NoError(s, err)
	require.Equal(s, "dropping", string(answer.Sent))
	return answer.State
}

// takesTime leaves a test out of the quick half: it waits for spans of time, and no mutant names
// it.
func takesTime(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it waits for spans of time: left out with -short")
	}
}
