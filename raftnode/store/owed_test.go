package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/tail"
)

// What a node owes is kept over restarts. It rises to what is higher, and sinks only from what it
// is.
func TestWhatIsOwedIsKept(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 2, 1, 5)
		assert.Equal(t, tail.State{Log: tail.End{Term: 2, Index: 5}}, st.Tail())
		require.NoError(t, st.Owe(tail.End{Term: 2, Index: 9}))
		require.NoError(t, st.Owe(tail.End{Term: 1, Index: 12}))

		st = reopen()
		owed := tail.End{Term: 2, Index: 9}
		assert.Equal(t, tail.State{Log: tail.End{Term: 2, Index: 5}, Owed: owed}, st.Tail())
		require.NoError(t, st.Owe(tail.End{Term: 3, Index: 7}))
		require.NoError(t, st.Sink(owed, tail.End{}))
		assert.Equal(t, tail.End{Term: 3, Index: 7}, st.Tail().Owed, "it has owed more since")
		require.NoError(t, st.Sink(st.Tail().Owed, tail.End{Term: 2, Index: 6}))

		st = reopen()
		assert.Equal(t, tail.End{Term: 2, Index: 6}, st.Tail().Owed)
		require.NoError(t, st.Sink(st.Tail().Owed, tail.End{}))
		assert.Zero(t, reopen().Tail().Owed)
	})
}

// Open can make a node owe before anything else uses its votes.
func TestALogThatIsCutIsOwed(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 4, 1, 5)
		require.NoError(t, st.Owe(tail.End{Term: 4, Index: 5}))
		require.NoError(t, st.Owe(tail.End{Term: 3, Index: 8}))
		st = reopen()
		assert.Equal(t, tail.End{Term: 4, Index: 5}, st.Tail().Owed)
		require.NoError(t, st.Owe(tail.Unknown(4)))
		st = reopen()
		assert.Equal(t, tail.Unknown(4), st.Tail().Owed)
		assert.True(t, st.Tail().Owes())
		require.NoError(t, st.votes.table.Put(Values{keyOwed: []byte("short")}))
		_, err := newVotes(st.votes.table, st.votes.serialWriter)
		require.ErrorIs(t, err, errRecord)
		require.NoError(t, st.votes.table.Put(Values{keyOwed: owedBytes(tail.End{})}))
	})
}

// Entries count once they are on the disk, and a log that ends below the newest snapshot does not.
func TestTheTailIsWhatIsOnTheDisk(t *testing.T) {
	onPending(t, func(t *testing.T, st *pendingTest) {
		st.hold()
		require.NoError(t, st.Logs().StoreLogs(entries(1, 6, 7)))
		assert.Equal(t, tail.End{Term: 1, Index: 5}, st.Tail().Log)
		st.resume()
		require.NoError(t, st.WaitWritten(t.Context(), 7))
		assert.Equal(t, tail.End{Term: 1, Index: 7}, st.Tail().Log)
		snapshot(t, st.Store, 1, 7, "state")
		require.NoError(t, st.Logs().DeleteRange(1, 7))
		assert.Equal(t, tail.End{Term: 1, Index: 7}, st.Tail().Log)
	})
	assert.Zero(t, open(t, Config{Memory: new(Memory)}).Tail())
}

func TestCutOfAMemory(t *testing.T) {
	memory := new(Memory)
	st := open(t, Config{Memory: memory})
	fill(t, st, 1, 1, 20)
	image, err := memory.Copy()
	require.NoError(t, err)
	require.NoError(t, image.Cut(3))
	st = open(t, Config{Memory: image})
	assert.Equal(t, tail.State{Log: tail.End{Term: 1, Index: 17},
		Owed: tail.End{Term: 1, Index: 20}}, st.Tail())
	require.NoError(t, st.Close())
	require.NoError(t, image.Cut(30))
	assert.Equal(t, tail.State{Log: tail.End{Term: 1, Index: 1},
		Owed: tail.End{Term: 1, Index: 20}}, open(t, Config{Memory: image}).Tail())
	require.NoError(t, new(Memory).Cut(1))
}
