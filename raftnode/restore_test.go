package raftnode

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/peer"
	"zamok/raftnode/store"
	"zamok/session"
)

// backupTTL is the lease under which the lock of a backup is held: longer than a busy machine takes
// to make the backup, and no longer than a test likes to wait for its end.
const backupTTL = 4 * time.Second

// backup is the state of a cluster in which one lock is held, and the grant's token.
func backup(t *testing.T) (file []byte, token uint64, stamp clock.Stamp) {
	n := alone(t)
	open := done(t, &fsm.OpenSession{Secret: session.Hash{1},
		Settings: session.Settings{TTL: clock.FromDuration(backupTTL)}}, n)
	held := done(t, &fsm.Acquire{
		Session: open.Result.Session, Ticket: 1,
		Items: []fsm.Item{{Name: "held", Mode: fsm.Exclusive}},
	}, n)
	require.Equal(t, fsm.Granted, held.Result.State)
	var all bytes.Buffer
	_, err := n.Freeze().WriteTo(&all)
	require.NoError(t, err)
	return all.Bytes(), held.Result.Token, held.Stamp
}

// startAt starts the node of a data directory, and waits for its epoch if it is to have one.
func startAt(t *testing.T, cfg Config, l net.Listener, leads bool) *Node {
	cfg.Peers.Listener, cfg.Fatal = l, func(err error) { t.Errorf("fatal: %v", err) }
	n, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Kill()) })
	if leads {
		until(t, "an epoch opens", func() bool { return n.Status().Leading })
	}
	return n
}

func peerPort(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// A restored backup is a new cluster of one node, which others can join: its tokens and stamps
// continue above the old ones, and no session of the old one holds anything.
func TestARestoredBackupIsANewCluster(t *testing.T) {
	t.Parallel()
	file, token, stamp := backup(t)
	peers := peerPort(t)
	dir := filepath.Join(t.TempDir(), "data")
	made, err := Restore(bytes.NewReader(file), RestoreConfig{
		Node: peer.Node{ID: "r1", Address: peers.Addr().String()}, Dir: dir,
		HoldOff: 2 * clock.Second,
	})
	require.NoError(t, err)
	require.Greater(t, made.Index, token)

	n := startAt(t, Config{ID: "r1", Store: store.Config{Dir: dir}}, peers, true)
	// never renewed
	a := done(t, &fsm.OpenSession{Secret: session.Hash{2},
		Settings: session.Settings{TTL: 10 * clock.Minute}}, n)
	require.Greater(t, a.Result.Index, made.Index)
	require.True(t, stamp.Before(a.Stamp), "%v is not before %v", stamp, a.Stamp)
	n.View(func(m *fsm.Machine) {
		require.Equal(t, fsm.ClusterID(made.Cluster), m.Cluster())
		require.False(t, m.Holds("held", token, fsm.TicketRef{}))
	})

	joins := peerPort(t)
	list, err := peer.ParseList("r1=" + peers.Addr().String())
	require.NoError(t, err)
	second := startAt(t, Config{ID: "r2", Store: store.Config{Memory: &store.Memory{}}, Join: list},
		joins, false)
	// on a busy machine the first may lose its epoch when it is
	until(t, "the second node is taken in", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), answerWait)
		defer cancel()
		err := n.Join(ctx, peer.Node{ID: "r2", Address: joins.Addr().String()})
		require.NotErrorIs(t, err, ErrRefused)
		return err == nil || second.Status().Leading
	})
	until(t, "the restored state reaches the second node", func() (known bool) {
		second.View(func(m *fsm.Machine) { _, known = m.Session(a.Result.Session) })
		return known
	})

	// What the dead cluster's clients may still believe in is not granted before that is over.
	got := done(t, &fsm.Acquire{
		Session: a.Result.Session, Ticket: 1,
		Items: []fsm.Item{{Name: "held", Mode: fsm.Exclusive}}, Wait: -1,
	}, n, second)
	until(t, fmt.Sprintf("a grant of what was requested: %+v", got), func() (held bool) {
		n.View(func(m *fsm.Machine) {
			if v, _ := m.Ticket(fsm.TicketRef{Session: a.Result.Session, Ticket: 1}); v.State ==
				fsm.Granted {
				require.Greater(t, v.Token, token)
				require.GreaterOrEqual(t, m.Time(), m.HoldOffUntil())
				held = true
			}
		})
		return held
	})
}

func TestARestoreThatFailsLeavesNothing(t *testing.T) {
	file, _, _ := backup(t)
	node := peer.Node{ID: "r1", Address: "127.0.0.1:1"}
	dir := filepath.Join(t.TempDir(), "data")

	damaged := bytes.Clone(file)
	damaged[len(damaged)/2] ^= 1
	for name, bad := range map[string][]byte{"damaged": damaged, "cut short": file[:len(file)-1],
		"empty": nil} {
		_, err := Restore(bytes.NewReader(bad), RestoreConfig{Node: node, Dir: dir})
		require.ErrorContains(t, err, "no cluster was made", name)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, name)
	}
	_, err := Restore(bytes.NewReader(file), RestoreConfig{Node: node, Dir: dir})
	require.NoError(t, err, "what failed before must not be in the way")

	before, err := os.ReadFile(filepath.Join(dir, "identity.json"))
	require.NoError(t, err)
	_, err = Restore(bytes.NewReader(file), RestoreConfig{Node: node, Dir: dir})
	require.ErrorContains(t, err, "is not empty")
	after, err := os.ReadFile(filepath.Join(dir, "identity.json"))
	require.NoError(t, err)
	require.Equal(t, before, after)
}
