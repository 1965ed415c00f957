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
			sink := beginSnapshot(t, st, 3, index, "state")
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
		meta, state, err := snapshots.Open(
			func() string { metas, _ := snapshots.List(); return metas[0].ID }())
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

// Another process may have the directory by then.
func TestASnapshotIsNotCompletedAfterTheStoreIsClosed(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		sink := beginSnapshot(t, reopen(), 1, 10, "state")
		metas, err := reopen().Snapshots().List()
		require.NoError(t, err)
		require.Empty(t, metas)
		require.ErrorIs(t, sink.Close(), ErrClosed)
		metas, err = reopen().Snapshots().List()
		require.NoError(t, err)
		require.Empty(t, metas)
	})
}

// A crash leaves files of snapshots that are not complete; Open removes them (S10).
func TestOpenRemovesUnfinishedSnapshots(t *testing.T) {
	dir := t.TempDir()
	st := open(t, Config{Dir: dir})
	fill(t, st, 1, 1, 1)
	snapshot(t, st, 1, 10, "state")
	require.NoError(t, st.Close())
	for _, left := range []string{"1-20-1.tmp", "1-30-1.tmp"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, snapshotFolder, left),
			[]byte("half"), 0o600))
	}
	st = open(t, Config{Dir: dir})
	assert.Empty(t, unfinishedIn(t, dir))
	metas, err := st.Snapshots().List()
	require.NoError(t, err)
	assert.Len(t, metas, 1)
}

// The end of one snapshot spares another that is being written: a follower can be sent one while it
// makes its own.
func TestOneSnapshotSparesAnother(t *testing.T) {
	dir := t.TempDir()
	st := open(t, Config{Dir: dir})
	own, sent := beginSnapshot(t, st, 1, 10, "own"), beginSnapshot(t, st, 1, 20, "sent")
	require.NoError(t, own.Cancel())
	assert.Equal(t, []string{sent.ID() + unfinished}, unfinishedIn(t, dir))
	require.NoError(t, sent.Close())
	metas, err := st.Snapshots().List()
	require.NoError(t, err)
	assert.Len(t, metas, 1)
}

// The removal of a snapshot is tried once: a second attempt would hide a failure that a disk shows
// once.
func TestARemovalThatFailsIsReported(t *testing.T) {
	dir := t.TempDir()
	st := open(t, Config{Dir: dir})
	oldest := beginSnapshot(t, st, 1, 10, "state")
	require.NoError(t, oldest.Close())
	require.NoError(t, beginSnapshot(t, st, 1, 20, "state").Close())
	path := filepath.Join(dir, "snapshots", oldest.ID())
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.MkdirAll(filepath.Join(path, "in the way"), 0o700))
	require.ErrorContains(t, beginSnapshot(t, st, 1, 30, "state").Close(), oldest.ID())
	require.NoError(t, os.RemoveAll(path))
	require.NoError(t, beginSnapshot(t, st, 1, 40, "state").Close(),
		"what is gone needs no removal")
}

// unfinishedIn lists the files of unfinished snapshots.
func unfinishedIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.tmp"))
	require.NoError(t, err)
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}

// A damaged snapshot that the log makes unnecessary is not listed, and is deleted when a newer one
// is complete.
func TestAnUnnecessarySnapshotThatIsDamagedGoes(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	st := open(t, cfg)
	fill(t, st, 1, 1, 30)
	snapshot(t, st, 1, 10, "state")
	metas, err := st.Snapshots().List()
	require.NoError(t, err)
	require.NoError(t, st.Close())
	path := filepath.Join(cfg.Dir, snapshotFolder, metas[0].ID)
	require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))

	st = open(t, cfg)
	metas, err = st.Snapshots().List()
	require.NoError(t, err)
	require.Empty(t, metas)
	require.FileExists(t, path)
	snapshot(t, st, 1, 20, "state")
	snapshot(t, st, 1, 25, "state")
	require.NoFileExists(t, path)
	metas, err = st.Snapshots().List()
	require.NoError(t, err)
	require.Len(t, metas, 2)
}

// A lateFailure is a medium on which the last step of a commit fails, when the file has its name
// already: the flush of the name does so on a disk that fails.
type lateFailure struct{ medium }

func (m lateFailure) create(name string) (draft, error) {
	d, err := m.medium.create(name)
	return draft{d, func() error { return errors.Join(d.commit(), io.ErrUnexpectedEOF) },
		d.discard}, err
}

// A failure so late leaves a snapshot that can be read, also when raft then cancels it: it may be
// the only one.
func TestNamedSnapshotIsNotEmptied(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 3))
		st.logs.snapshots.medium = lateFailure{st.medium}
		sink := beginSnapshot(t, st, 3, 10, "state")
		require.ErrorIs(t, sink.Close(), io.ErrUnexpectedEOF)
		require.NoError(t, sink.Cancel())

		_, state, err := reopen().Snapshots().Open(sink.ID())
		require.NoError(t, err)
		defer state.Close()
		text, err := io.ReadAll(state)
		require.NoError(t, err)
		require.Equal(t, "state", string(text))
	})
}
