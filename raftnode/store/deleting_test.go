package store

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Raft's replication reads entries while others are deleted, from the front after a snapshot, from
// the back when they conflict with the leader's: what is read is there, whole, or it is not there;
// it is never called damaged.
func TestAnEntryThatIsBeingDeletedIsNotDamage(t *testing.T) {
	t.Parallel()
	rounds := sized(200, 60, 40)
	onEach(t, func(t *testing.T, reopen func() *Store) {
		const piece = 20
		st := reopen()
		first, last, term := uint64(1), uint64(10*piece), uint64(1)
		fill(t, st, term, first, last)
		end := make(chan struct{})
		var readers sync.WaitGroup
		var missed [4]int
		for i := range missed {
			readers.Go(func() {
				for {
					select {
					case <-end:
						return
					default:
					}
					first, last, err := bounds(st.Logs())
					if !assert.NoError(t, err) {
						return
					}
					index := max(first, piece) - piece +
						rand.Uint64N(max(last, first)-first+2*piece)
					var entry raft.Log
					switch err := st.Logs().GetLog(index, &entry); {
					case err == nil:
						assert.Equal(t, index, entry.Index)
					case errors.Is(err, raft.ErrLogNotFound):
						missed[i]++
					default:
						assert.NoError(t, err)
						return
					}
				}
			})
		}
		for range rounds {
			if t.Failed() {
				break
			}
			require.NoError(t, st.Logs().DeleteRange(last-piece+1, last))
			term++
			fill(t, st, term, last-piece+1, last+piece)
			last += piece
			require.NoError(t, st.Logs().DeleteRange(first, first+piece-1))
			first += piece
		}
		close(end)
		readers.Wait()
		begin, to := span(t, st.Logs())
		assert.Equal(t, []uint64{first, last}, []uint64{begin, to})
		t.Log(missed)
	})
}

// A snapshot that was listed, and is deleted since because newer ones are complete, is not damaged;
// one that is being read is read to its end.
func TestASnapshotThatIsDeletedIsNotDamage(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 1, 1, 30)
		snapshot(t, st, 1, 10, "oldest")
		listed, err := st.Snapshots().List()
		require.NoError(t, err)
		_, state, err := st.Snapshots().Open(listed[0].ID)
		require.NoError(t, err)
		snapshot(t, st, 1, 20, "older")
		snapshot(t, st, 1, 30, "newest")
		_, _, err = st.Snapshots().Open(listed[0].ID)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.NotErrorIs(t, err, ErrDamaged)
		text, err := io.ReadAll(state)
		require.NoError(t, errors.Join(err, state.Close()))
		assert.Equal(t, "oldest", string(text))
	})
}

// slowReads is a log whose reads wait between the question and the answer.
type slowReads struct {
	raft.LogStore
	asked, answer chan struct{}
}

func (l slowReads) GetLog(index uint64, entry *raft.Log) error {
	l.asked <- struct{}{}
	<-l.answer
	return l.LogStore.GetLog(index, entry)
}

// A leader reads an entry for a follower, and deletes it before it has been read.
func TestAnEntryThatWasDeletedMeanwhileIsNotDamage(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	st := open(t, Config{Dir: t.TempDir(),
		Wrap: Wrap{Logs: func(inner raft.LogStore) raft.LogStore {
			return slowReads{inner, asked, answer}
		}}})
	fill(t, st, 1, 1, LogCacheEntries+10) // the first ones are not in memory
	read := make(chan error, 1)
	go func() { read <- st.Logs().GetLog(1, new(raft.Log)) }()
	<-asked
	require.NoError(t, st.Logs().DeleteRange(1, 9))
	close(answer)
	require.ErrorIs(t, <-read, raft.ErrLogNotFound)
}
