package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/store"
)

// TestAFullDiskEndsNothing: below the threshold nothing new begins, by any kind of call, and what
// is there goes on and ends.
func TestAFullDiskEndsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	again := nodeConfig("n1", "")
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Store.Dir = dir
		again.Peers.List = cfg.Peers.List
	})
	first := c.leader()
	ctx := soon(t)
	s := openSession(t, ctx, call(t, first))
	held := s.hold("x")
	repeat := s.next("x", 0)
	repeat.Acquire.Ticket = held.Ticket
	require.NoError(t, first.Close())

	again.Store.Dir, again.Store.LowSpace = dir, 1<<60
	again.ListenPeers = first.Peer()
	full, err := StartNode(ctx, again)
	require.NoError(t, err)
	c.nodes[0] = full
	s.caller = call(t, c.leader())
	open := func() error {
		_, err := s.OpenSession(ctx, &zamokpb.OpenSessionRequest{
			Secret: newSecret(), Settings: &zamokpb.SessionSettings{Ttl: int64(clock.Minute)},
		})
		return err
	}
	require.Eventually(t, func() bool { return open() != nil }, patience, 10*time.Millisecond,
		"once it is announced")
	require.Equal(t, zamokpb.Code_CODE_DISK_LOW, infoOf(t, open()).Code)
	require.Equal(t, codes.ResourceExhausted, status.Code(open()))
	_, err = s.Acquire(ctx, s.next("y", 0))
	require.Equal(t, zamokpb.Code_CODE_DISK_LOW, infoOf(t, err).Code)
	another := dial(t, s.caller)
	another.send(openMessage(
		&zamokpb.OpenStream{Secret: another.Secret, Settings: settings(clock.Minute)}))
	require.Equal(t, zamokpb.Code_CODE_DISK_LOW, infoOf(t, another.end()).Code)

	// What is there may be requested again: its answer was lost, perhaps.
	_, err = s.OpenSession(ctx,
		&zamokpb.OpenSessionRequest{Secret: s.secret, Settings: settings(clock.Minute)})
	require.NoError(t, err)
	known := dial(t, s.caller)
	known.Secret = s.secret
	known.send(openMessage(&zamokpb.OpenStream{Secret: s.secret, Settings: settings(clock.Minute)}))
	known.readState()
	require.Equal(t, s.id, known.Session)
	answer, err := s.Acquire(ctx, repeat)
	require.NoError(t, err)
	require.Equal(t, held.Token, answer.State.Token)

	_, err = s.RenewSession(ctx, &zamokpb.RenewSessionRequest{Session: s.id, Secret: s.secret})
	require.NoError(t, err)
	s.drop(held.Ticket)
	members, err := s.admin.Members(ctx, &zamokpb.MembersRequest{})
	require.NoError(t, err)
	require.True(t, members.Members[0].DiskLow)
}

// roomError is the free bytes of each node's disk.
type roomError [3]atomic.Uint64

func (r *roomError) of(n *Node) *atomic.Uint64 { return &r[n.cfg.ID[1]-'1'] }

// startWithRoom starts three nodes whose disks a test can fill.
func startWithRoom(t *testing.T) (*cluster, *roomError) {
	free := &roomError{}
	return startCluster(t, len(free), func(cfg *NodeConfig) {
		mine := &free[cfg.ID[1]-'1']
		mine.Store(1 << 40)
		cfg.Store.Dir, cfg.ListenHTTP = t.TempDir(), "127.0.0.1:0"
		cfg.Store.Wrap.Free = func() uint64 { return mine.Load() }
	}), free
}

// TestOneFullDiskStopsNothing: a follower whose disk is nearly full refuses nothing for the others.
// Only when a majority is full does nothing new begin. On a machine that stands for a moment the
// leader may change, or not have had contact with a node just then: what is demanded comes to be
// so.
func TestOneFullDiskStopsNothing(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c, free := startWithRoom(t)
	ctx := soon(t)
	leader, followers := c.leader(), []*Node(nil)
	to := make(map[*Node]caller)
	for _, n := range c.nodes {
		to[n] = call(t, n)
		if n != leader {
			followers = append(followers, n)
		}
	}
	comes := func(what string, so func() bool) {
		t.Helper()
		require.Eventually(t, so, patience, 10*time.Millisecond, what)
	}
	fill := func(n *Node) {
		t.Helper()
		free.of(n).Store(2 * store.DefaultReservedSpace)
		comes("it is announced", func() (announced bool) {
			c.leader().Raft().View(func(m *fsm.Machine) {
				member, _ := m.Member(n.cfg.ID)
				announced = member.FreeBytes < member.LowSpaceThreshold
			})
			return announced
		})
	}
	// begin opens a session, and acquires a lock that no other session wants.
	begin := func(ctx context.Context, n *Node) error {
		secret := newSecret()
		opened, err := to[n].OpenSession(ctx,
			&zamokpb.OpenSessionRequest{Secret: secret, Settings: settings(clock.Minute)})
		if err != nil {
			return err
		}
		_, err = to[n].Acquire(ctx,
			&zamokpb.AcquireRequest{Session: opened.Session, Secret: secret,
				Acquire: &zamokpb.Acquire{
					Ticket: 1,
					Items: []*zamokpb.Item{{Name: fmt.Sprint(opened.Session),
						Mode: zamokpb.Mode_MODE_EXCLUSIVE}},
				}})
		return err
	}
	fill(followers[0])
	comes("the leader takes it", func() bool { return begin(ctx, c.leader()) == nil })
	comes("the follower passes it on",
		func() bool { return begin(relaying(ctx), followers[0]) == nil })
	comes("only the leader decides that", func() bool { return notLed(begin(ctx, followers[0])) })
	comes("nor on a stream", func() bool {
		client := dial(t, to[followers[0]])
		defer client.hangUp()
		client.send(
			openMessage(&zamokpb.OpenStream{Secret: newSecret(), Settings: settings(clock.Minute)}))
		return notLed(client.receive())
	})

	fill(followers[1])
	comes("the leader names the nodes without room", func() bool {
		err := begin(ctx, c.leader())
		return err != nil && infoOf(t, err).Code == zamokpb.Code_CODE_DISK_LOW &&
			strings.Contains(err.Error(), followers[0].cfg.ID) &&
			strings.Contains(err.Error(), followers[1].cfg.ID)
	})
}

// TestANodeThatTakesNoEntriesIsNotReady: while its log has no room clients had better go to another
// node. A disk that is nearly full is no reason.
func TestANodeThatTakesNoEntriesIsNotReady(t *testing.T) {
	t.Parallel()
	c, free := startWithRoom(t)
	follower, ctx := c.follower(), soon(t)
	check := healthpb.NewHealthClient(call(t, follower).conn)
	ready := func() (int, string) { return fetch(t, follower.HTTP(), "/readyz") }
	becomes := func(code int, contains string, health healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		// on a stalled machine there may be no leader for a moment
		require.Eventually(t, func() bool {
			now, text := ready()
			answer, err := check.Check(ctx, &healthpb.HealthCheckRequest{})
			return now == code && strings.Contains(text, contains) && err == nil &&
				answer.Status == health
		}, patience, 10*time.Millisecond, "%s and %v", contains, health)
	}
	becomes(http.StatusOK, "ready\n", healthpb.HealthCheckResponse_SERVING)
	free.of(follower).Store(2 * store.DefaultReservedSpace)
	becomes(http.StatusOK, "ready\n", healthpb.HealthCheckResponse_SERVING)
	free.of(follower).Store(0)
	becomes(http.StatusServiceUnavailable,
		"not ready: the log of this node takes no entries: store: the disk is full",
		healthpb.HealthCheckResponse_NOT_SERVING)
	free.of(follower).Store(1 << 40)
	becomes(http.StatusOK, "ready\n", healthpb.HealthCheckResponse_SERVING)
}
