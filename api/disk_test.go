package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/raftnode"
)

// TestAFullDiskEndsNothing: below the mark nothing new begins, by whatever road, and what is there goes
// on and ends.
func TestAFullDiskEndsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	again := NodeConfig{ID: "n1", Dir: dir}
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Dir = dir
		again.Cluster = cfg.Cluster
	})
	first := c.leader()
	ctx := soon(t)
	s := openSession(t, ctx, call(t, first))
	held := s.hold("x")
	repeat := s.next("x", 0)
	repeat.Acquire.Ticket = held.Ticket
	require.NoError(t, first.Close())

	again.Tune = func(c *raftnode.Config) { c.Mark = 1 << 60 }
	again.Peer = first.Peer()
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
	require.Eventually(t, func() bool { return open() != nil }, patience, 10*time.Millisecond, "once it is announced")
	require.Equal(t, zamokpb.Code_CODE_DISK_LOW, infoOf(t, open()).Code)
	require.Equal(t, codes.ResourceExhausted, status.Code(open()))
	_, err = s.Acquire(ctx, s.next("y", 0))
	require.Equal(t, zamokpb.Code_CODE_DISK_LOW, infoOf(t, err).Code)
	stranger := dial(t, s.caller)
	stranger.say(hello(&zamokpb.Hello{Secret: stranger.secret, Settings: settings(clock.Minute)}))
	require.Equal(t, zamokpb.Code_CODE_DISK_LOW, infoOf(t, stranger.end()).Code)

	// What is there may be asked for again: its answer was lost, perhaps.
	_, err = s.OpenSession(ctx, &zamokpb.OpenSessionRequest{Secret: s.secret, Settings: settings(clock.Minute)})
	require.NoError(t, err)
	known := dial(t, s.caller)
	known.secret = s.secret
	known.say(hello(&zamokpb.Hello{Secret: s.secret, Settings: settings(clock.Minute)}))
	known.greeted()
	require.Equal(t, s.id, known.id)
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
