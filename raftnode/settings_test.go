package raftnode

import (
	"errors"
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
	cfg := Config{ID: "n1",
		Peers: peer.Config{Listener: (&network{doors: map[string]*door{}}).listen("h1:1")},
		Fatal: func(error) {}}
	cfg, err := cfg.withDefaults()
	require.NoError(t, err)
	run := &raftRun{shortest: timeoutMin, runs: &compose(cfg).runs,
		notifyCh: make(chan bool, notifyChSize)}
	c := run.raftConfig()
	require.NoError(t, raft.ValidateConfig(c))
	assert.Equal(t, 250*time.Millisecond, c.HeartbeatTimeout)
	assert.Equal(t, 250*time.Millisecond, c.ElectionTimeout)
	assert.Equal(t, 250*time.Millisecond, c.LeaderLeaseTimeout,
		"the longest that there may be; the transport makes it longer")
	assert.Equal(t, 50*time.Millisecond, c.CommitTimeout)
	assert.Equal(t, 64, c.MaxAppendEntries)
	assert.True(t, c.BatchApplyCh)
	assert.False(t, c.PreVoteDisabled, "a node that comes back must not depose the leader")
	assert.True(t, c.ShutdownOnRemove)
	assert.EqualValues(t, 4096, c.SnapshotThreshold)
	assert.EqualValues(t, 4096, c.TrailingLogs)
	assert.Equal(t, 20*time.Second, c.SnapshotInterval)
	assert.Greater(t, cap(c.NotifyCh), 1, "raft's main loop waits until it is read")
	assert.False(t, c.NoSnapshotRestoreOnStart)
	// It makes NewRaft hang on a long log. The raft that go.mod names has no such setting; a later
	// one has.
	if restore := reflect.ValueOf(*c).FieldByName("RestoreCommittedLogs"); restore.IsValid() {
		assert.False(t, restore.Bool())
	}
}

// A wrong setting, also one of the disk or of the peers, is named as a field of Config.
func TestAWrongSettingIsNamed(t *testing.T) {
	for field, spoil := range map[string]func(*Config){
		"ID":                  func(c *Config) { c.ID = "N1" },
		"Peers.Listener":      func(c *Config) { c.Peers.Listener = nil },
		"Fatal":               func(c *Config) { c.Fatal = nil },
		"Peers.List":          func(c *Config) { c.ID = "n2" },
		"TokenBase":           func(c *Config) { c.TokenBase = fsm.TokenBaseMax + 1 },
		"ElectionTimeout":     func(c *Config) { c.ElectionTimeout = time.Millisecond },
		"SnapshotEvery":       func(c *Config) { c.SnapshotEvery = time.Millisecond },
		"Store.ReservedSpace": func(c *Config) { c.Store.ReservedSpace = 1 << 40 },
		"Peers.AllowedNames":  func(c *Config) { c.Peers.AllowedNames = []string{"n["} },
	} {
		list, err := peer.ParseList("n1=h1:1")
		require.NoError(t, err)
		cfg := Config{
			ID: "n1", Fatal: func(error) {}, Store: store.Config{Memory: &store.Memory{}},
			Peers: peer.Config{List: list,
				Listener: (&network{doors: map[string]*door{}}).listen("h1:1")},
		}
		spoil(&cfg)
		_, err = Open(t.Context(), cfg)
		wrong, ok := errors.AsType[*ConfigError](err)
		require.True(t, ok, "%s: %v", field, err)
		assert.Equal(t, field, wrong.Field)
		assert.EqualError(t, wrong,
			"configuration: "+field+": "+wrong.Reason.Error()+"; nothing was started")
	}
}

// One message to a follower at a time: more of them wedge (TestARefusedAppendWedges…).
func TestTheTransportDoesNotPipeline(t *testing.T) {
	inBubble(t, func(b *bubble) {
		_, err := b.nodes[0].runs.latest.Load().transport.AppendEntriesPipeline("n2", "h2:1")
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
			ID: "n1", Store: store.Config{Memory: &store.Memory{}},
			Peers: peer.Config{List: list, Listener: d, Dial: w.dialer(d)}, Source: clock.Runtime(),
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

// A plain machine does not see entries of configuration, and raft can't make a snapshot right
// behind one: it would have to wait for the next command, on a quiet cluster forever.
func TestASnapshotRightBehindAChangeOfMembers(t *testing.T) {
	inLoneBubble(t, func(t *testing.T, n *Node) {
		time.Sleep(2 * maintenanceTick) // the announcement is out, nothing else is written
		run := n.runs.latest.Load()
		before := run.raft.LastIndex()
		require.NoError(t, run.raft.AddNonvoter("n2", "h2:1", 0, 0).Error())
		require.Equal(t, before+1, run.raft.LastIndex())
		future := run.raft.Snapshot()
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

// Raft may end when the leader's snapshot is complete and the log that it takes the place of is not
// deleted yet. The raft that follows in this process must not append behind that log.
func TestRaftStartsAgainBehindALeadersSnapshot(t *testing.T) {
	n := alone(t)
	run := n.runs.latest.Load()
	taken := run.raft.Snapshot()
	require.NoError(t, taken.Error())
	meta, state, err := taken.Open()
	require.NoError(t, err)
	defer state.Close()
	sink, err := n.store.Snapshots().Create(meta.Version, run.raft.LastIndex()+10, meta.Term,
		meta.Configuration, meta.ConfigurationIndex, nil)
	require.NoError(t, err)
	_, err = io.Copy(sink, state)
	require.NoError(t, err)
	require.NoError(t, sink.Close())

	n.runs.restart(run)
	done(t, nil, n)
}

// Raft was seen to reject everything when a leader that had handed over was elected again
// (hashicorp/raft#696), so it ends after a transfer, and a new one begins on the same data.
func TestRaftIsNewAfterATransfer(t *testing.T) {
	inBubble(t, func(b *bubble) {
		for range 6 {
			leader := b.leader(b.nodes...)
			require.NoError(b, b.fence(leader))
			before, applied := leader.runs.latest.Load(), leader.Status().Applied
			require.NoError(b, leader.Transfer(b.Context(), b.others(leader)[0].self.ID))
			require.NotSame(b, before, leader.runs.latest.Load())
			next := b.leader(b.nodes...)
			require.NotSame(b, leader, next)
			require.NoError(b, b.fence(next))
			time.Sleep(time.Second)
			require.GreaterOrEqual(b, leader.Status().Applied.Index, applied.Index)
		}
	})
}
