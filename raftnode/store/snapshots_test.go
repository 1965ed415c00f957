package store

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSnapshotsKeepTheLastTwo(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 3))
		snapshots := st.Snapshots()
		listed := func() (indexes []uint64) {
			metas, err := snapshots.List()
			require.NoError(t, err)
			for _, meta := range metas {
				indexes = append(indexes, meta.Index)
			}
			return indexes
		}
		require.Empty(t, listed())

		write := func(index uint64) raft.SnapshotSink {
			sink, err := snapshots.Create(1, index, 3, raft.Configuration{}, 1, nil)
			require.NoError(t, err)
			_, err = io.WriteString(sink, "state")
			require.NoError(t, err)
			require.NotContains(t, listed(), index, "a snapshot counts when it is closed")
			return sink
		}
		first := write(10)
		require.NoError(t, first.Close())
		require.NoError(t, first.Close(), "raft may end what is ended")
		require.Equal(t, []uint64{10}, listed())
		require.NoError(t, write(20).Cancel())
		late := write(25)
		require.NoError(t, write(30).Close())
		require.Equal(t, []uint64{30, 10}, listed())
		require.Error(t, late.Close(), "it was overtaken")
		require.NoError(t, late.Cancel())
		require.Equal(t, []uint64{30, 10}, listed())
		require.NoError(t, write(40).Close())
		require.Equal(t, []uint64{40, 30}, listed())

		snapshots = reopen().Snapshots()
		require.Equal(t, []uint64{40, 30}, listed())
		meta, state, err := snapshots.Open(func() string { metas, _ := snapshots.List(); return metas[0].ID }())
		require.NoError(t, err)
		defer state.Close()
		text, err := io.ReadAll(state)
		require.NoError(t, err)
		assert.Equal(t, "state", string(text))
		assert.EqualValues(t, 5, meta.Size)
		_, _, err = snapshots.Open("3-20-0")
		assert.Error(t, err)
	})
}

// A crash leaves folders that raft never removes; Open does (S10).
func TestOpenRemovesUnfinishedSnapshots(t *testing.T) {
	dir := t.TempDir()
	st := open(t, Config{Dir: dir})
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 1))
	sink, err := st.Snapshots().Create(1, 10, 1, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	require.NoError(t, sink.Close())
	require.NoError(t, st.Close())
	for _, left := range []string{"1-20-1.tmp", "1-30-1.tmp"} {
		folder := filepath.Join(dir, "snapshots", left)
		require.NoError(t, os.Mkdir(folder, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "state.bin"), []byte("half"), 0o644))
	}
	st = open(t, Config{Dir: dir})
	assert.Empty(t, unfinishedIn(t, dir))
	metas, err := st.Snapshots().List()
	require.NoError(t, err)
	assert.Len(t, metas, 1)
}

// The sweep after one snapshot must not take the folder of another that is being
// written: a follower can be sent one while it makes its own.
func TestSweepSparesASnapshotInProgress(t *testing.T) {
	dir := t.TempDir()
	st := open(t, Config{Dir: dir})
	own, err := st.Snapshots().Create(1, 10, 1, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	sent, err := st.Snapshots().Create(1, 20, 1, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	require.NoError(t, own.Cancel())
	assert.Equal(t, []string{sent.ID() + ".tmp"}, unfinishedIn(t, dir))
	require.NoError(t, sent.Close())
	metas, err := st.Snapshots().List()
	require.NoError(t, err)
	assert.Len(t, metas, 1)
}

// unfinishedIn lists the folders of unfinished snapshots.
func unfinishedIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.tmp"))
	require.NoError(t, err)
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}

// lateFailure is a store of snapshots whose last step fails, when the snapshot has its name already: the
// flush of the name does so on a disk that fails.
type lateFailure struct{ raft.SnapshotStore }

type lateFailingSink struct{ raft.SnapshotSink }

func (s lateFailure) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, trans)
	return lateFailingSink{sink}, err
}

func (s lateFailingSink) Close() error {
	return errors.Join(s.SnapshotSink.Close(), io.ErrUnexpectedEOF)
}

// A failure so late leaves a snapshot that can be read. It was emptied, as one that is not finished; as the
// first of a node, it kept raft from starting.
func TestNamedSnapshotIsNotEmptied(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inner, err := raft.NewFileSnapshotStore(dir, snapshotsKept, io.Discard)
	require.NoError(t, err)
	snapshots, err := newCheckedSnapshots(lateFailure{inner}, filepath.Join(dir, "snapshots"), nil, &record{})
	require.NoError(t, err)
	sink, err := snapshots.Create(1, 10, 3, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	_, err = io.WriteString(sink, "state")
	require.NoError(t, err)
	require.ErrorIs(t, sink.Close(), io.ErrUnexpectedEOF)

	_, state, err := snapshots.Open(sink.ID())
	require.NoError(t, err)
	defer state.Close()
	text, err := io.ReadAll(state)
	require.NoError(t, err)
	require.Equal(t, "state", string(text))
}
