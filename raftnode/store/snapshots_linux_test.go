package store

import (
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A snapshot that meets a full disk leaves neither its folder nor its blocks,
// and its descriptor only until Go's next collection (S10).
func TestFailedSnapshotLeavesNothing(t *testing.T) {
	for name, end := range map[string]func(raft.SnapshotSink) error{
		"cancelled": raft.SnapshotSink.Cancel,
		"closed":    raft.SnapshotSink.Close,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			st := open(t, Config{Dir: dir})
			before := len(openFiles(t))
			for range 3 {
				assert.Zero(t, failSnapshot(t, st.Snapshots(), dir, end), "blocks of 512 bytes")
			}
			assert.Empty(t, unfinishedIn(t, dir))
			require.Eventually(t, func() bool {
				runtime.GC()
				return len(openFiles(t)) <= before
			}, 30*time.Second, time.Millisecond, "the descriptors stay")
		})
	}
	t.Run("successful", func(t *testing.T) {
		dir := t.TempDir()
		st := open(t, Config{Dir: dir})
		// Only those of this store: what other tests left is collected at any moment.
		its := func() []int {
			return descriptors(t, func(target string) bool { return strings.HasPrefix(target, dir) })
		}
		before := len(its())
		sink, err := st.Snapshots().Create(1, 10, 1, raft.Configuration{}, 1, nil)
		require.NoError(t, err)
		require.NoError(t, sink.Close())
		require.Len(t, its(), before, "without any collection")
	})
	t.Run("without the rule", func(t *testing.T) {
		dir := t.TempDir()
		plain, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, hclog.NewNullLogger())
		require.NoError(t, err)
		blocks := failSnapshot(t, plain, dir, raft.SnapshotSink.Cancel)
		assert.NotZero(t, blocks, "raft no longer needs the rule S10: the test has lost its meaning")
		assert.NotEmpty(t, unfinishedIn(t, dir), "raft no longer needs the rule S10: the test has lost its meaning")
	})
}

// failSnapshot begins a snapshot whose state meets a full disk, and ends it. It
// returns how many blocks the state takes afterwards.
func failSnapshot(t *testing.T, snapshots raft.SnapshotStore, dir string, end func(raft.SnapshotSink) error) (blocks int64) {
	t.Helper()
	sink, err := snapshots.Create(1, 10, 1, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	_, err = sink.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	state := breakFile(t, filepath.Join(dir, "snapshots", sink.ID()+".tmp", "state.bin"), "/dev/full")
	defer state.leave()
	require.NotZero(t, state.blocks())
	_, err = sink.Write(make([]byte, 1<<20))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, end(sink), syscall.ENOSPC)
	return state.blocks()
}

func openFiles(t *testing.T) []int { return descriptors(t, func(string) bool { return true }) }

// The same on a disk that is really full, through a raft that leads: its
// snapshots fail one after the other and leave nothing, and the first one for
// which there is room succeeds.
func TestSnapshotsOfALeaderOnAFullDisk(t *testing.T) {
	dir := smallDisk(t, 24<<20)
	st := open(t, Config{Dir: dir, ReservedSpace: 1 << 20, LowSpace: 2 << 20})
	bootstrap(t, st)
	node, machine := startRaft(t, st)
	for range 50 {
		require.NoError(t, apply(node, string(make([]byte, 1<<10))).Error())
	}
	free, err := st.Free()
	require.NoError(t, err)

	machine.grow(30 << 20)
	for range 5 {
		require.ErrorContains(t, node.Snapshot().Error(), "no space left on device")
		require.Empty(t, unfinishedIn(t, dir))
		left, err := st.Free()
		require.NoError(t, err)
		require.InDelta(t, free, left, 256<<10, "the blocks of a failed snapshot")
		require.NoError(t, apply(node, "x").Error(), "writing goes on")
	}
	machine.grow(-29 << 20)
	require.NoError(t, node.Snapshot().Error())
	require.NoError(t, node.Shutdown().Error())
}
