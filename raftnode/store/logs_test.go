package store

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLogKeepsWhatRaftWrites(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		log := reopen().Logs()
		first, last := span(t, log)
		require.Zero(t, first+last)
		require.ErrorIs(t, log.GetLog(1, new(raft.Log)), raft.ErrLogNotFound)

		fill(t, reopen(), 1, 1, 700) // more than the cache holds
		st := reopen()
		require.NoError(t, st.Logs().StoreLog(entries(1, 701, 701)[0]))
		fill(t, st, 2, 702, 703)
		first, last = span(t, reopen().Logs())
		assert.Equal(t, []uint64{1, 703}, []uint64{first, last})
	})
}

// What conflicts with the leader's entries goes when those take its place.
func TestDeleteRange(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, last uint64 // of the range
		left        [2]uint64
		next        uint64 // of the entry that is appended then
		end         [2]uint64
	}{
		{"front", 1, 600, [2]uint64{601, 1000}, 1001, [2]uint64{601, 1001}},
		{"back", 601, 1000, [2]uint64{1, 1000}, 601, [2]uint64{1, 601}},
		{"all", 1, 1000, [2]uint64{1, 1000}, 1, [2]uint64{1, 1}},
		{"wider than the log", 0, 5000, [2]uint64{0, 0}, 5001, [2]uint64{5001, 5001}},
		{"past the end", 1001, 2000, [2]uint64{1, 1000}, 1001, [2]uint64{1, 1001}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, reopen func() *Store) {
				st := reopen()
				fill(t, st, 1, 1, 1000)
				require.NoError(t, st.Logs().DeleteRange(c.first, c.last))
				first, last := span(t, st.Logs())
				assert.Equal(t, c.left, [2]uint64{first, last})
				fill(t, st, 2, c.next, c.next)
				for _, log := range []raft.LogStore{st.Logs(), st.engine} {
					first, last = span(t, log)
					assert.Equal(t, c.end, [2]uint64{first, last})
				}
				var entry raft.Log
				require.NoError(t, st.Logs().GetLog(c.next, &entry))
				assert.EqualValues(t, 2, entry.Term)
			})
		})
	}
}

func TestAGapIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 1, 1, 10)
		require.ErrorContains(t, st.Logs().DeleteRange(5, 7), "gap")
		first, last := span(t, st.Logs())
		assert.Equal(t, []uint64{1, 10}, []uint64{first, last})
	})
}

// The leader has sent a snapshot, and raft has the whole log go: up to the snapshot it goes, so
// that the next entry follows it without a gap. What reaches beyond the snapshot may have been
// acknowledged, and stays.
func TestASnapshotTakesThePlaceOfTheLog(t *testing.T) {
	for name, c := range map[string]struct {
		snapshot uint64
		left     [2]uint64
	}{
		"the log ends before it": {1000, [2]uint64{0, 0}},
		"the log ends with it":   {300, [2]uint64{0, 0}},
		"the log goes beyond it": {200, [2]uint64{1, 300}},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, reopen func() *Store) {
				st := reopen()
				fill(t, st, 1, 1, 300)
				snapshot(t, st, 1, c.snapshot, "state")
				require.NoError(t, st.Logs().DeleteRange(1, 300))
				first, last := span(t, st.Logs())
				require.Equal(t, c.left, [2]uint64{first, last})
				next := max(c.snapshot, last) + 1
				fill(t, st, 1, next, next+5)
				_, last = span(t, reopen().Logs())
				require.Equal(t, next+5, last)
			})
		})
	}
}

// The process ends when the leader's snapshot is complete and the log is still there: the next
// start has it go.
func TestALogThatEndsBeforeTheSnapshotGoesAtTheStart(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 1, 1, 300)
		snapshot(t, st, 1, 1000, "state")
		st = reopen()
		first, last := span(t, st.Logs())
		require.Equal(t, [2]uint64{}, [2]uint64{first, last})
		fill(t, st, 1, 1001, 1001)
		require.Equal(t, "unmarked", stateOf(reopen()))
	})
}
