package store

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A snapshot that meets a full disk leaves neither its file nor a descriptor of it (S10).
func TestFailedSnapshotLeavesNothing(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, sink raft.SnapshotSink){
		"cancelled": func(t *testing.T, sink raft.SnapshotSink) {
			require.NoError(t, sink.Cancel())
		},
		"closed": func(t *testing.T, sink raft.SnapshotSink) {
			require.ErrorIs(t, sink.Close(), syscall.ENOSPC)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			st := open(t, Config{Dir: dir})
			sink := beginSnapshot(t, st, 1, 10, string(make([]byte, 1<<20)))
			state := breakFile(t, filepath.Join(dir, snapshotFolder, sink.ID()+unfinished),
				"/dev/full")
			require.NotZero(t, state.blocks())
			_, err := sink.Write(make([]byte, 1<<20))
			require.ErrorIs(t, err, syscall.ENOSPC)
			end(t, sink)
			assert.Zero(t, state.links(), "names of the file")
			state.leave()
			assert.Empty(t, unfinishedIn(t, dir))
			assert.Empty(t, descriptors(t, func(target string) bool {
				return strings.HasPrefix(target, filepath.Join(dir, snapshotFolder))
			}))
			metas, err := st.Snapshots().List()
			require.NoError(t, err)
			assert.Empty(t, metas)
			snapshot(t, st, 1, 10, "now there is room")
		})
	}
}

// The same on a disk that is really full, through a raft that leads: its
// snapshots fail one after the other and leave nothing, and the first one for
// which there is room succeeds.
func TestSnapshotsOfALeaderOnAFullDisk(t *testing.T) {
	dir := smallDisk(t, 48<<20)
	st := open(t, Config{Dir: dir, ReservedSpace: 2 * SegmentBytes, LowSpace: 3 * SegmentBytes})
	bootstrap(t, st)
	node, machine := startRaft(t, st)
	for range 50 {
		require.NoError(t, apply(node, string(make([]byte, 1<<10))).Error())
	}
	free := st.FreeBytes()

	machine.grow(50 << 20)
	for range 5 {
		require.ErrorContains(t, node.Snapshot().Error(), "no space left on device")
		require.Empty(t, unfinishedIn(t, dir))
		require.InDelta(t, free, st.FreeBytes(), 256<<10, "the blocks of a failed snapshot")
		require.NoError(t, apply(node, "x").Error(), "writing goes on")
	}
	machine.grow(-49 << 20)
	require.NoError(t, node.Snapshot().Error())
	require.NoError(t, node.Shutdown().Error())
}
