package store

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A copy has what was complete before it, and only that.
func TestCopyOfAMemory(t *testing.T) {
	t.Parallel()
	original := new(Memory)
	st := open(t, Config{Memory: original})
	fill(t, st, 1, 1, 20)
	require.NoError(t, st.Votes().SetUint64([]byte(keyVoteTerm), 2))
	require.NoError(t, st.Votes().Set([]byte(keyVoteCandidate), []byte("n2")))
	require.NoError(t, st.Logs().DeleteRange(1, 5))
	snapshot(t, st, 1, 5, "state")
	open7 := beginSnapshot(t, st, 1, 7, "state")
	require.NoError(t, st.RecordCluster(ID{1}))

	image, err := original.Copy()
	require.NoError(t, err)
	require.NoError(t, open7.Close())
	fill(t, st, 3, 21, 30)
	require.NoError(t, st.Logs().DeleteRange(6, 10))

	after := open(t, Config{Memory: image})
	assert.Equal(t, "marked", stateOf(after))
	assert.Equal(t, st.Identity(), after.Identity())
	first, last := span(t, after.Logs())
	assert.Equal(t, [2]uint64{6, 20}, [2]uint64{first, last})
	term, err := after.Votes().GetUint64([]byte(keyCurrentTerm))
	require.NoError(t, err)
	assert.Equal(t, uint64(1), term)
	candidate, err := after.Votes().Get([]byte(keyVoteCandidate))
	require.NoError(t, err)
	assert.Equal(t, "n2", string(candidate))
	snapshots, err := after.Snapshots().List()
	require.NoError(t, err)
	require.Len(t, snapshots, 1)
	_, from, err := after.Snapshots().Open(snapshots[0].ID)
	require.NoError(t, err)
	state, err := io.ReadAll(from)
	require.NoError(t, err)
	assert.Equal(t, "state", string(state))

	unused, err := new(Memory).Copy()
	require.NoError(t, err)
	assert.Equal(t, "empty", stateOf(open(t, Config{Memory: unused})))
}
