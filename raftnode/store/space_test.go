package store

import (
	"math"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A full disk, as the seam plays it: entries are refused before anything is
// touched, and only they (S5). The process continues.
func TestFullDiskRefusesEntriesBeforehand(t *testing.T) {
	free := uint64(1000)
	var touched int
	wrap := withFault(func(op Op, _, _ uint64) error {
		if op == OpAppend {
			touched++
		}
		return nil
	})
	wrap.Free = func() uint64 { return free }
	st := open(t, Config{Memory: new(Memory), ReservedSpace: 500, LowSpace: 900, Wrap: wrap})
	fill(t, st, 1, 1, 10)
	require.False(t, st.IsLowSpace())

	free = 899
	require.True(t, st.IsLowSpace(), "below the mark, and above the floor: a warning only")
	require.NoError(t, st.Logs().StoreLogs(entries(1, 11, 11)))

	free = 500 + uint64(len("entry 12")) - 1
	err := st.Logs().StoreLogs(entries(1, 12, 12))
	require.ErrorIs(t, err, ErrDiskFull)
	require.ErrorIs(t, st.Logs().StoreLog(entries(1, 12, 12)[0]), ErrDiskFull)
	require.Equal(t, 2, touched)
	require.ErrorIs(t, st.Logs().GetLog(12, new(raft.Log)), raft.ErrLogNotFound,
		"not in the cache either")

	free = 0
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 2))
	require.NoError(t, st.Votes().SetUint64([]byte(keyVoteTerm), 2))
	require.NoError(t, st.Votes().Set([]byte(keyVoteCandidate), []byte("n2")))
	require.NoError(t, st.RecordCluster(NewID()))
	require.NoError(t, st.Logs().DeleteRange(1, 5))

	free = 1000
	require.NoError(t, st.Logs().StoreLogs(entries(2, 12, 12)))
	first, last := span(t, st.Logs())
	assert.Equal(t, []uint64{6, 12}, []uint64{first, last})
}

// Raft believes in entries that conflict with the leader's until the leader's are in their place.
// So these are not refused, though the disk has filled up; and if they are not what was proposed,
// the process ends.
func TestWhatReplacesConflictingEntriesIsNotRefused(t *testing.T) {
	free, ended := uint64(1<<40), error(nil)
	st := open(t, Config{
		Dir: t.TempDir(), Wrap: Wrap{Free: func() uint64 { return free }},
		Fatal: func(err error) { ended = err },
	})
	fill(t, st, 1, 1, 10)
	free = 0
	require.NoError(t, st.Logs().DeleteRange(1, 2), "what a snapshot holds")
	require.ErrorIs(t, st.Logs().StoreLogs(entries(2, 11, 11)), ErrDiskFull)
	require.NoError(t, st.Logs().DeleteRange(6, 10), "what conflicts")
	require.NoError(t, st.Logs().StoreLogs(entries(2, 6, 7)))
	require.ErrorIs(t, st.Logs().StoreLogs(entries(2, 8, 8)), ErrDiskFull,
		"now the two agree again")

	require.NoError(t, st.Logs().DeleteRange(7, 7))
	changed := entries(3, 7, 7)
	changed[0].Data[0] ^= 1
	require.NoError(t, ended)
	require.Error(t, st.Logs().StoreLogs(changed))
	require.ErrorContains(t, ended, "start the node again")
}

// Of what a snapshot takes the place of nothing is believed, so what comes next is refused like
// anything else.
func TestASnapshotMakesNoExceptionForWhatFollows(t *testing.T) {
	for name, c := range map[string]struct{ last, next uint64 }{"of the whole log": {10, 21},
		"of a part of it": {30, 31}} {
		t.Run(name, func(t *testing.T) {
			free := uint64(1 << 40)
			st := open(t, Config{
				Memory: new(Memory), Wrap: Wrap{Free: func() uint64 { return free }},
				Fatal: func(err error) { assert.NoError(t, err) },
			})
			fill(t, st, 3, 1, c.last)
			snapshot(t, st, 3, 20, "state")
			require.NoError(t, st.Logs().DeleteRange(1, c.last))
			free = 0
			require.ErrorIs(t, st.Logs().StoreLogs(entries(3, c.next, c.next)), ErrDiskFull)
			free = 1 << 40
			require.NoError(t, st.Logs().StoreLogs(entries(3, c.next, c.next)))
		})
	}
}

// A node whose free space can't be measured is accepted.
func TestUnknownSpaceRefusesNothing(t *testing.T) {
	st := open(t, Config{Memory: new(Memory),
		Wrap: Wrap{Free: func() uint64 {
			return freeBytes(filepath.Join(t.TempDir(), "missing"))
		}}})
	fill(t, st, 1, 1, 10)
	assert.Equal(t, uint64(math.MaxUint64), st.FreeBytes(),
		"what it announces must not look like a full disk")
	assert.False(t, st.IsLowSpace())
}

// A caller of raft learns from its future that the disk was full, and that its
// entry is nowhere; with room again the same node continues.
func TestRaftReportsAFullDisk(t *testing.T) {
	const room = 1 << 40
	var free atomic.Uint64
	free.Store(room)
	st := open(t, Config{Memory: new(Memory),
		Wrap: Wrap{Free: func() uint64 { return free.Load() }}})
	bootstrap(t, st)
	node, _ := startRaft(t, st)
	require.NoError(t, apply(node, "x").Error())

	free.Store(0)
	require.ErrorIs(t, apply(node, "refused").Error(), ErrDiskFull)
	free.Store(room)
	require.Eventually(t, func() bool { return apply(node, "x").Error() == nil }, 30*time.Second,
		time.Millisecond)
	require.NoError(t, node.Shutdown().Error())

	first, last := span(t, st.Logs())
	for index := first; index <= last; index++ {
		var entry raft.Log
		require.NoError(t, st.Logs().GetLog(index, &entry))
		assert.NotEqual(t, "refused", string(entry.Data))
	}
}

// Raft has a leader's configuration in force also if its append fails: one that is refused would be
// followed by a node whose log does not have it.
func TestAConfigurationIsNotRefusedForWantOfSpace(t *testing.T) {
	free := uint64(1 << 40)
	st := open(t, Config{Memory: new(Memory), Wrap: Wrap{Free: func() uint64 { return free }}})
	fill(t, st, 1, 1, 5)
	free = 0
	configuration := func(index uint64) *raft.Log {
		return &raft.Log{Index: index, Term: 1, Type: raft.LogConfiguration,
			Data: raft.EncodeConfiguration(raft.Configuration{})}
	}
	require.ErrorIs(t, st.Logs().StoreLogs(entries(1, 6, 6)), ErrDiskFull)
	require.NoError(t, st.Logs().StoreLogs([]*raft.Log{configuration(6)}))
	require.ErrorIs(t, st.Logs().StoreLogs(append(entries(1, 7, 7), configuration(8))), ErrDiskFull,
		"a follower's append")
}
