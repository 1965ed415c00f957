package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

func TestConfigNamesWhatIsWrong(t *testing.T) {
	empty, used := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(used, "x"), nil, 0o600))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	in := func(dir string) NodeConfig {
		return NodeConfig{Config: raftnode.Config{ID: "n1", Store: store.Config{Dir: dir}}}
	}
	for _, c := range []struct {
		field  string
		config NodeConfig
		want   string
	}{
		{"ID", NodeConfig{}, "the id is missing"},
		{"ID", nodeConfig("N1", ""), "lower-case"},
		{"Store.Dir", in(empty), "also if its disk was lost"},
		{"Store.Dir", in(filepath.Join(empty, "new")), "holds nothing"},
		{"ConnsMax", NodeConfig{Config: raftnode.Config{ID: "n1"}, ConnsMax: -1}, "below zero"},
		{"Listen", NodeConfig{Config: raftnode.Config{ID: "n1"}, Listen: taken.Addr().String()},
			"address already in use"},
		{"ListenPeers", NodeConfig{Config: raftnode.Config{ID: "n1"},
			ListenPeers: taken.Addr().String()}, "address already in use"},
		{"ListenPeers", nodeConfig("n1", "n1="+taken.Addr().String()), "address already in use"},
	} {
		n, err := StartNode(t.Context(), c.config)
		require.Error(t, err, c.field)
		assert.Nil(t, n)
		wrong, ok := errors.AsType[*raftnode.ConfigError](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, c.field, wrong.Field)
		assert.Contains(t, err.Error(), c.want)
		assert.Contains(t, err.Error(), "nothing was started")
	}
	assert.NoDirExists(t, filepath.Join(empty, "new"))
	c := in(used)
	assert.NoError(t, c.complete(), "what has data needs no list")
	require.NoError(t, noneLeft())
}

// A start that waits for the other nodes of its list ends with its context, and leaves nothing.
func TestAStartThatIsGivenUp(t *testing.T) {
	ctx, logger := untilItWaits(t)
	cfg := nodeConfig("n1", "n1=127.0.0.1:1,n2=127.0.0.1:2")
	cfg.Logger, cfg.ListenPeers = logger, "127.0.0.1:0"
	_, err := StartNode(ctx, cfg)
	require.ErrorIs(t, err, context.Canceled)
	assert.Contains(t, err.Error(), "n2")
	require.NoError(t, noneLeft())
}

// TestThreeNodesOnDisk: real ports and real files; the leader stops cleanly, a node restarts, and
// what was held is held.
func TestThreeNodesOnDisk(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	configs := make(map[string]NodeConfig)
	c := startCluster(t, 3, func(cfg *NodeConfig) {
		cfg.Store.Dir = filepath.Join(root, cfg.ID)
		configs[cfg.ID] = *cfg
	})
	first := c.leader()
	ctx := soon(t)
	s := openSession(t, ctx, call(t, first))
	held := s.hold("disk")
	hourAgo, _ := raftnode.TokenClock(time.Now().Add(-time.Hour))
	assert.Greater(t, held.Token, hourAgo)
	waiting := s.acquire(ctx, s.next("disk", fsm.Forever))
	s.waiters("disk", 1)

	began := time.Now()
	require.NoError(t, first.Close())
	info := infoOf(t, (<-waiting).err)
	assert.Equal(t, zamokpb.Outcome_OUTCOME_UNKNOWN, info.Outcome, info)
	assert.Contains(t, []zamokpb.Code{zamokpb.Code_CODE_NOT_LEADER, zamokpb.Code_CODE_STOPPING},
		info.Code)
	c.nodes = without(c.nodes, first)
	second := c.leader()
	t.Logf("another leads %v after the leader began to stop", time.Since(began))
	s.caller = call(t, second)
	check, err := s.Check(ctx, &zamokpb.CheckRequest{Name: "disk", Token: held.Token})
	require.NoError(t, err)
	assert.True(t, check.Held)
	s.waiters("disk", 1)
	again := s.next("disk", fsm.Forever)
	s.ticket--
	again.Acquire.Ticket = s.ticket
	waiting = s.acquire(ctx, again) // the same ticket: it kept its position

	cfg := configs[first.cfg.ID]
	cfg.Peers.Listener, cfg.ListenPeers = nil, first.Peer()
	back, err := StartNode(ctx, cfg)
	require.NoError(t, err)
	c.nodes = append(c.nodes, back)
	c.leader()
	s.drop(held.Ticket)
	o := <-waiting
	require.NoError(t, o.err)
	require.Eventually(t, func() (same bool) {
		back.Raft().View(func(m *fsm.Machine) {
			same = m.Holds("disk", o.answer.State.Token, fsm.TicketRef{})
		})
		return same
	}, patience, 5*time.Millisecond)
}

func without(nodes []*Node, one *Node) (rest []*Node) {
	for _, n := range nodes {
		if n != one {
			rest = append(rest, n)
		}
	}
	return rest
}

// TestMembershipOverTheWire: a node joins, gets the leadership, and is removed, by operators' calls
// that are relayed where that is needed.
func TestMembershipOverTheWire(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(c *NodeConfig) { c.ElectionTimeout = steady })
	first := c.leader()
	long, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	ctx, to := relaying(long), call(t, first)
	cfg := nodeConfig("n2", "")
	cfg.Version, cfg.ElectionTimeout = "of tests", steady
	var err error
	cfg.Join, err = peer.ParseList(first.cfg.ID + "=" + first.Peer())
	require.NoError(t, err)
	// if it hears of it at all
	cfg.Fatal = func(err error) { assert.ErrorIs(t, err, raftnode.ErrRemoved) }
	joiner, err := StartNode(ctx, cfg)
	require.NoError(t, err)
	c.nodes = append(c.nodes, joiner)
	_, err = to.admin.Join(ctx, &zamokpb.JoinRequest{Id: "n2", Peer: joiner.Peer()})
	require.NoError(t, err)
	require.Equal(t, first, c.leader())

	by := call(t, joiner)
	var members *zamokpb.MembersResponse
	require.Eventually(t, func() bool {
		members, err = by.admin.Members(ctx, &zamokpb.MembersRequest{})
		return err == nil && len(members.Members) == 2 && members.Members[1].Version == "of tests"
	}, patience, 10*time.Millisecond)
	assert.True(t, members.Members[1].Voter)
	assert.Equal(t, joiner.Client(), members.Members[1].Client)

	// Of two nodes the new leader has no majority until the old one has opened its raft anew: on a
	// busy machine it may lose its epoch again because of that.
	handOver := func(to string, wanted *Node) {
		for try := 0; c.leader() != wanted; try++ {
			require.Less(t, try, 10)
			_, err := by.admin.Transfer(ctx, &zamokpb.TransferRequest{To: to})
			require.True(t, err == nil || try > 0 || status.Code(err) == codes.Unavailable,
				"%v", err)
		}
	}
	handOver("n2", joiner)
	handOver("", first)
	_, err = by.admin.Remove(ctx, &zamokpb.RemoveRequest{Id: "n2"})
	require.NoError(t, err)
	members, err = to.admin.Members(ctx, &zamokpb.MembersRequest{})
	require.NoError(t, err)
	assert.Len(t, members.Members, 1)
}

// A dead node is seen in the list of members, whichever node answers, and in the leader's metrics;
// a living one is in contact all the time, and lacks nothing for long.
func TestADeadNodeIsSeen(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 3, func(cfg *NodeConfig) { cfg.ListenHTTP = "127.0.0.1:0" })
	ctx, to := relaying(soon(t)), make(map[*Node]caller)
	for _, n := range c.nodes {
		to[n] = call(t, n)
	}
	answer, peers := (*zamokpb.MembersResponse)(nil), map[string]*zamokpb.Member{}
	look := func(by *Node) (err error) {
		answer, err = to[by].admin.Members(ctx, &zamokpb.MembersRequest{})
		for _, m := range answer.GetMembers() {
			peers[m.Id] = m
		}
		return err
	}
	term := func() uint64 { return c.leader().Raft().Status().Term }
	var dead *Node
	var contactTerm uint64 // the term in which the leader had contact with it
	require.Eventually(t, func() bool {
		dead, contactTerm = c.follower(), term()
		return look(dead) == nil && peers[dead.cfg.ID].Behind != nil && term() == contactTerm
	}, patience, 10*time.Millisecond)
	require.NoError(t, dead.Close())
	living := without(c.nodes, dead)
	c.nodes = living
	for _, by := range living {
		require.Eventually(t, func() bool {
			return look(by) == nil && peers[answer.Leader] != nil &&
				time.Duration(peers[dead.cfg.ID].GetLastContact()) > 2*time.Second
		}, patience, 10*time.Millisecond)
		assert.Nil(t, peers[answer.Leader].LastContact)
		assert.Nil(t, peers[answer.Leader].Behind)
		// another leader, as on a machine that stands for a moment, never had contact with it
		if term() == contactTerm {
			assert.NotNil(t, peers[dead.cfg.ID].Behind)
		}
	}
	require.Eventually(t, func() bool {
		leader := c.leader()
		other := without(living, leader)[0]
		_, text := fetch(t, leader.HTTP(), "/metrics")
		samples, _ := scrape(t, text)
		lag, known := samples[`zamok_peer_lag_entries{peer="`+other.cfg.ID+`"}`]
		_, silent := fetch(t, other.HTTP(), "/metrics")
		return known && lag == 0 &&
			samples[`zamok_peer_last_contact_seconds{peer="`+other.cfg.ID+`"}`] < 1 &&
			samples[`zamok_peer_last_contact_seconds{peer="`+dead.cfg.ID+`"}`] > 2 &&
			!strings.Contains(silent, "zamok_peer_lag_entries{") // only the leader knows
	}, patience, 10*time.Millisecond)
}

// A node that can't continue ends and reports why, also without a Fatal that ends the process.
func TestANodeThatCannotGoOnEnds(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(cfg *NodeConfig) { cfg.Fatal = nil })
	n := c.leader()
	reason := errors.New("the disk failed")
	go n.fatal(reason)
	select {
	case <-n.Done():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	require.ErrorIs(t, n.Err(), reason)
	_, err := call(t, n).Now(soon(t), &zamokpb.NowRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
}

// TestBackupIsAFileThatRestores, also through a follower.
func TestBackupIsAFileThatRestores(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, nil)
	leader := c.leader()
	ctx := soon(t)
	s := openSession(t, ctx, call(t, leader))
	held := s.hold("backup")
	big := s.next("big", 0)
	big.Acquire.Items = nil
	for i := range fsm.ItemsMax {
		big.Acquire.Items = append(big.Acquire.Items,
			&zamokpb.Item{Name: fmt.Sprintf("%0500d", i), Mode: zamokpb.Mode_MODE_SHARED})
	}
	for range 4 {
		s.ticket++
		big.Acquire.Ticket = s.ticket
		_, err := s.Acquire(ctx, big)
		require.NoError(t, err)
	}
	stream, err := call(t, c.follower()).admin.Backup(relaying(ctx), &zamokpb.BackupRequest{})
	require.NoError(t, err)
	const chunkBytes = 64 << 10
	var file bytes.Buffer
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.LessOrEqual(t, len(chunk.Data), chunkBytes)
		file.Write(chunk.Data)
	}
	require.Greater(t, file.Len(), chunkBytes, "more than one chunk")
	m, err := fsm.Restore(&file)
	require.NoError(t, err)
	require.NoError(t, m.Check())
	assert.True(t, m.Holds("backup", held.Token, fsm.TicketRef{}))
}

func TestHealth(t *testing.T) {
	takesTime(t)
	t.Parallel()
	c := startCluster(t, 2, nil)
	leader, follower := c.leader(), c.follower()
	ctx := soon(t)
	for _, n := range c.nodes {
		health := healthpb.NewHealthClient(call(t, n).conn)
		for _, service := range []string{"", "zamok.v1.Zamok", "zamok.v1.Admin"} {
			answer, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: service})
			require.NoError(t, err)
			assert.Equal(t, healthpb.HealthCheckResponse_SERVING, answer.Status)
		}
		_, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: "other"})
		assert.Equal(t, codes.NotFound, status.Code(err))
		list, err := health.List(ctx, &healthpb.HealthListRequest{})
		require.NoError(t, err)
		assert.Len(t, list.Statuses, 3)
	}
	watch, err := healthpb.NewHealthClient(call(t, follower).conn).Watch(ctx,
		&healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	answer, err := watch.Recv()
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, answer.Status)
	require.NoError(t, leader.Kill()) // of two nodes one can't lead
	answer, err = watch.Recv()
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, answer.Status)
}

// TestTooManyConnections: where each has a call, one too many is hung up on, and there is room
// again when one has left.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(cfg *NodeConfig) { cfg.ConnsMax = 2 })
	ctx, n := soon(t), c.leader()
	one, two, three := call(t, n), call(t, n), call(t, n)
	for _, to := range []caller{one, two} {
		openStream(t, to, settings(clock.Minute))
	}
	_, err := three.Now(ctx, &zamokpb.NowRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.NoError(t, one.conn.Close())
	require.Eventually(t, func() bool {
		_, err := three.Now(ctx, &zamokpb.NowRequest{})
		return err == nil
	}, patience, 20*time.Millisecond)
}

// What happens to locks is counted by the leader only.
func TestMetricsAreTheLeaders(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(cfg *NodeConfig) { cfg.Store.Dir = t.TempDir() })
	leader := c.leader()
	ctx := soon(t)
	s := openSession(t, ctx, call(t, leader))
	first := s.hold("a")
	_, err := s.Acquire(ctx, s.next("a", 0))
	require.Error(t, err)
	s.drop(first.Ticket)
	s.hold("b")
	_, err = s.admin.ExpireSession(ctx, &zamokpb.ExpireSessionRequest{Session: s.id})
	require.NoError(t, err)
	_, err = s.Now(ctx, &zamokpb.NowRequest{})
	require.NoError(t, err)
	counts := []string{
		`zamok_grants_total{mode="exclusive"} 2`,
		`zamok_lock_hold_seconds_count{mode="exclusive"} 2`,
		`zamok_lock_wait_seconds_count{mode="exclusive"} 2`,
		`zamok_refusals_total{reason="try_failed"} 1`,
		`zamok_sessions_expired_total{reason="expired_by_operator"} 1`,
	}
	for _, n := range c.nodes {
		text := n.server.metricsText(t)
		for _, line := range counts {
			if n == leader {
				assert.Contains(t, text, line+"\n")
			} else {
				assert.NotContains(t, text, line+"\n")
			}
		}
	}
	text := leader.server.metricsText(t)
	_, families := scrape(t, text)
	assert.Equal(t, contractMetrics, families)
	assert.NotContains(t, text, "zamok_entry_commands_count 0\n")
	assert.NotContains(t, text, "zamok_raft_leader_changes_total 0\n")
}
