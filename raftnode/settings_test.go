package raftnode

import (
	"io"
	"log/slog"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
)

// What raft is run with. Each line was learned, most of them from an outage.
func TestRaftsSettings(t *testing.T) {
	cfg := Config{ID: "n1", Peers: peer.Config{Listener: (&network{doors: map[string]*door{}}).listen("h1:1")}, Fatal: func(error) {}}
	cfg, err := cfg.settled()
	require.NoError(t, err)
	in := &instance{shortest: timeoutMin, node: &Node{cfg: cfg, log: cfg.Logger}, notices: make(chan bool, noticesMax)}
	c := in.raftConfig()
	require.NoError(t, raft.ValidateConfig(c))
	assert.Equal(t, 250*time.Millisecond, c.HeartbeatTimeout)
	assert.Equal(t, 250*time.Millisecond, c.ElectionTimeout)
	assert.Equal(t, 250*time.Millisecond, c.LeaderLeaseTimeout, "the longest that there may be; the transport makes it longer")
	assert.Equal(t, 50*time.Millisecond, c.CommitTimeout)
	assert.Equal(t, 64, c.MaxAppendEntries)
	assert.True(t, c.BatchApplyCh)
	assert.False(t, c.PreVoteDisabled, "a node that comes back must not depose the leader")
	assert.True(t, c.ShutdownOnRemove)
	assert.EqualValues(t, 4096, c.SnapshotThreshold)
	assert.EqualValues(t, 4096, c.TrailingLogs)
	assert.Equal(t, 20*time.Second, c.SnapshotInterval)
	assert.Greater(t, cap(c.NotifyCh), 1, "raft's main loop waits until a notice is taken")
	assert.False(t, c.NoSnapshotRestoreOnStart)
	// It makes NewRaft hang on a long log. The raft that go.mod names has no such setting; a later one
	// has.
	if restore := reflect.ValueOf(*c).FieldByName("RestoreCommittedLogs"); restore.IsValid() {
		assert.False(t, restore.Bool())
	}
}

// One message to a follower at a time: more of them wedge (TestARefusedAppendWedges…).
func TestTheTransportDoesNotPipeline(t *testing.T) {
	inBubble(t, func(b *bubble) {
		_, err := b.nodes[0].instance.Load().transport.AppendEntriesPipeline("n2", "h2:1")
		require.ErrorIs(b, err, raft.ErrPipelineReplicationNotSupported)
	})
}

// inLoneBubble runs a test on a node that is a cluster by itself.
func inLoneBubble(t *testing.T, test func(t *testing.T, n *Node)) {
	synctest.Test(t, func(t *testing.T) {
		list, err := peer.ParseList("n1=h1:1")
		require.NoError(t, err)
		w := &network{doors: make(map[string]*door)}
		d := w.listen("h1:1")
		n, err := Open(t.Context(), Config{
			ID: "n1", Store: store.Config{Memory: &store.Memory{}}, Peers: peer.Config{List: list, Listener: d, Dial: w.dialer(d)}, Source: clock.Runtime(),
			Fatal:  func(err error) { t.Error(err) },
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		require.NoError(t, err)
		for !n.Status().Leading {
			time.Sleep(10 * time.Millisecond)
		}
		test(t, n)
		require.NoError(t, n.Close())
	})
}

// A plain machine does not see entries of configuration, and raft can't make a snapshot right behind
// one: it would have to wait for the next command, on a quiet cluster forever.
func TestASnapshotRightBehindAChangeOfMembers(t *testing.T) {
	inLoneBubble(t, func(t *testing.T, n *Node) {
		time.Sleep(2 * maintenanceTick) // the announcement is out, nothing else is written
		in := n.instance.Load()
		before := in.raft.LastIndex()
		require.NoError(t, in.raft.AddNonvoter("n2", "h2:1", 0, 0).Error())
		require.Equal(t, before+1, in.raft.LastIndex())
		future := in.raft.Snapshot()
		require.NoError(t, future.Error())
		meta, snapshot, err := future.Open()
		require.NoError(t, err)
		defer snapshot.Close()
		require.Equal(t, before+1, meta.Index)
		m, err := fsm.Restore(snapshot)
		require.NoError(t, err)
		n.View(func(live *fsm.Machine) { require.Equal(t, live.Digest(), m.Digest()) })
	})
}

// Raft may end when the leader's snapshot is complete and the log that it takes the place of is not deleted yet. The
// raft that follows in this process must not append behind that log.
func TestRaftStartsAgainBehindALeadersSnapshot(t *testing.T) {
	n := alone(t)
	in := n.instance.Load()
	taken := in.raft.Snapshot()
	require.NoError(t, taken.Error())
	meta, state, err := taken.Open()
	require.NoError(t, err)
	defer state.Close()
	sink, err := n.store.Snapshots().Create(meta.Version, in.raft.LastIndex()+10, meta.Term, meta.Configuration, meta.ConfigurationIndex, nil)
	require.NoError(t, err)
	_, err = io.Copy(sink, state)
	require.NoError(t, err)
	require.NoError(t, sink.Close())

	n.reopen(in)
	done(t, nil, n)
}

// Raft was seen to refuse everything when a leader that had handed over was elected again
// (hashicorp/raft#696), so it ends after a transfer, and a new one begins on the same data.
func TestRaftIsNewAfterATransfer(t *testing.T) {
	inBubble(t, func(b *bubble) {
		for range 6 {
			leader := b.leader(b.nodes...)
			require.NoError(b, b.fence(leader))
			before, applied := leader.instance.Load(), leader.Status().Applied
			require.NoError(b, leader.Transfer(b.Context(), b.others(leader)[0].self.ID))
			require.NotSame(b, before, leader.instance.Load())
			next := b.leader(b.nodes...)
			require.NotSame(b, leader, next)
			require.NoError(b, b.fence(next))
			time.Sleep(time.Second)
			require.GreaterOrEqual(b, leader.Status().Applied.Index, applied.Index)
		}
	})
}
