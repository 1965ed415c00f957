package store

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
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

func TestDeleteRange(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, last uint64 // of the range
		left        [2]uint64
	}{
		{"front", 1, 600, [2]uint64{601, 1000}},
		{"back", 601, 1000, [2]uint64{1, 600}},
		{"all", 1, 1000, [2]uint64{0, 0}},
		{"wider than the log", 0, 5000, [2]uint64{0, 0}},
		{"one chunk", 1, DeleteChunk, [2]uint64{DeleteChunk + 1, 1000}},
		{"one more than a chunk", 1, DeleteChunk + 1, [2]uint64{DeleteChunk + 2, 1000}},
		{"past the end", 1001, 2000, [2]uint64{1, 1000}},
		{"empty", 5, 4, [2]uint64{1, 1000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, reopen func() *Store) {
				log := reopen().Logs()
				require.NoError(t, log.StoreLogs(entries(1, 1, 1000)))
				require.NoError(t, log.DeleteRange(c.first, c.last))
				first, last := span(t, log)
				assert.Equal(t, c.left, [2]uint64{first, last})
			})
		})
	}
}

// The leader has sent a snapshot, and raft has the whole log go: up to the snapshot it goes, so that the
// next entry follows it without a gap. What reaches beyond the snapshot may have been acknowledged, and
// stays.
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

// The process ends when the leader's snapshot is complete and the log is still there: the next start has
// it go.
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

// An append that comes while a long deletion runs waits for one chunk, not for
// the whole (S6). In a bubble "comes while" is exact: the first transaction of
// the deletion is held until the append is known to wait behind it.
func TestAppendWaitsForOneChunkOfADeletion(t *testing.T) {
	const length = 10 * DeleteChunk
	deletedBefore := func(t *testing.T, remove func(*Store) error) (deleted uint64) {
		synctest.Test(t, func(t *testing.T) {
			var st *Store
			var setUp, held bool
			begun, goOn := make(chan struct{}), make(chan struct{})
			st = open(t, Config{Dir: t.TempDir(), Log: Bolt, Wrap: withFault(func(op Op, _, _ uint64) error {
				switch {
				case setUp && op == OpAppend:
					first, err := st.Logs().FirstIndex()
					deleted = first - 1
					return err
				case op == OpDelete && !held:
					held = true
					close(begun)
					<-goOn
				}
				return nil
			})})
			require.NoError(t, st.Logs().StoreLogs(entries(1, 1, length+10)))
			setUp = true

			var both sync.WaitGroup
			both.Go(func() { assert.NoError(t, remove(st)) })
			<-begun
			both.Go(func() { assert.NoError(t, st.Logs().StoreLogs(entries(1, length+11, length+11))) })
			synctest.Wait()
			close(goOn)
			both.Wait()
			first, last := span(t, st.Logs())
			assert.Equal(t, []uint64{length + 1, length + 11}, []uint64{first, last})
		})
		return deleted
	}

	t.Run("with the rule", func(t *testing.T) {
		deleted := deletedBefore(t, func(st *Store) error { return st.Logs().DeleteRange(1, length) })
		assert.EqualValues(t, DeleteChunk, deleted)
	})
	t.Run("without the rule", func(t *testing.T) {
		deleted := deletedBefore(t, func(st *Store) error {
			st.logs.chunk = length
			return st.Logs().DeleteRange(1, length)
		})
		assert.EqualValues(t, length, deleted)
	})
}

// The same on a real disk with real time, for the eye: go test -v shows by how
// much an append is late. Nothing is asserted, a busy machine is late anyhow.
func TestShowAppendsBesideADeletion(t *testing.T) {
	if sized(1, 0, 0) == 0 {
		t.Skip("for the eye only")
	}
	const length = 20_000
	longest := func(log raft.LogStore) (longest, whole time.Duration) {
		for first := uint64(1); first < length; first += 1000 {
			require.NoError(t, log.StoreLogs(entries(1, first, first+999)))
		}
		done := make(chan time.Duration)
		go func() {
			start := time.Now()
			assert.NoError(t, log.DeleteRange(1, length-10))
			done <- time.Since(start)
		}()
		for index := uint64(length + 1); ; index++ {
			select {
			case whole = <-done:
				return longest, whole
			default:
			}
			start := time.Now()
			require.NoError(t, log.StoreLogs(entries(1, index, index)))
			longest = max(longest, time.Since(start))
		}
	}
	plain, err := raftboltdb.NewBoltStore(filepath.Join(t.TempDir(), "raft.db"))
	require.NoError(t, err)
	defer plain.Close()
	for name, log := range map[string]raft.LogStore{"raft-boltdb": plain, "store": open(t, Config{Dir: t.TempDir(), Log: Bolt}).Logs()} {
		append, whole := longest(log)
		t.Logf("%-12s %d entries deleted in %v; the longest append beside it took %v", name, length, whole, append)
	}
}

// Wherever a process ends inside a deletion, the log that is left has no hole,
// and is a part of the old one that lacks only what was to go (S6).
func TestDeletionCutShortLeavesNoHole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var left int // deletions that succeed before the process ends
		memory := new(Memory)
		st, err := Open(Config{NodeID: "n1", Memory: memory, Fatal: func(error) {}, Wrap: withFault(func(op Op, _, _ uint64) error {
			if op == OpDelete {
				if left--; left < 0 {
					return errors.New("the process ended")
				}
			}
			return nil
		})})
		require.NoError(rt, err)
		first := rapid.Uint64Range(1, 5000).Draw(rt, "first")
		last := first + rapid.Uint64Range(0, 8*DeleteChunk).Draw(rt, "length")
		require.NoError(rt, st.Logs().StoreLogs(entries(1, first, last)))

		left = rapid.IntRange(0, 5).Draw(rt, "chunks until the end")
		front := rapid.Bool().Draw(rt, "front")
		cut := rapid.Uint64Range(first, last).Draw(rt, "cut")
		from, to := cut, last
		if front {
			from, to = first, cut
		}
		st.Logs().DeleteRange(from, to)
		require.NoError(rt, st.Close())

		kept := kept(rt, memory.logs, first, last)
		for i := 1; i < len(kept); i++ {
			require.Equal(rt, kept[i-1]+1, kept[i], "a hole")
		}
		for index := first; index <= last; index++ {
			if index < from || index > to {
				require.Contains(rt, kept, index, "gone, though not in [%d, %d]", from, to)
			}
		}
		if front && to < last {
			require.Equal(rt, last, kept[len(kept)-1])
		}
	})
}

// Without the rule: conflicting entries deleted from the front, as one walks
// them, and the process ends after the first chunk. What is left ends with
// entries that the leader never had, beyond a hole.
func TestDeletionFromTheWrongEndLeavesAHole(t *testing.T) {
	log := raft.NewInmemStore()
	require.NoError(t, log.StoreLogs(entries(1, 1, 1000)))
	for from := uint64(501); from < 501+DeleteChunk; from += DeleteChunk {
		require.NoError(t, log.DeleteRange(from, from+DeleteChunk-1))
	}
	kept := kept(t, log, 1, 1000)
	assert.EqualValues(t, 1000, kept[len(kept)-1])
	assert.NotContains(t, kept, uint64(501))
}

// kept lists the indexes in [first, last] that log has.
func kept(t require.TestingT, log raft.LogStore, first, last uint64) (kept []uint64) {
	for index := first; index <= last; index++ {
		err := log.GetLog(index, new(raft.Log))
		if errors.Is(err, raft.ErrLogNotFound) {
			continue
		}
		require.NoError(t, err)
		kept = append(kept, index)
	}
	return slices.Clip(kept)
}
