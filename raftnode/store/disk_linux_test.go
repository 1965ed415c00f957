package store

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// bbolt writes on after an fsync that failed, and is answered that all is well,
// though the kernel has thrown away what it could not write (S3).
func TestFailedFlushEndsAllWriting(t *testing.T) {
	t.Run("with the rule", failFlush)
	t.Run("without the rule", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "raft.db")
		log, err := raftboltdb.NewBoltStore(path)
		require.NoError(t, err)
		defer log.Close()
		require.NoError(t, log.StoreLogs(entries(1, 1, 10)))

		broken := breakFile(t, path, "/dev/null")
		require.Error(t, log.StoreLogs(entries(1, 11, 11)))
		broken.mend()
		require.NoError(t, log.StoreLogs(entries(1, 12, 12)),
			"raft-boltdb no longer needs the rule S3: the test has lost its meaning")
		require.ErrorIs(t, log.GetLog(11, new(raft.Log)), raft.ErrLogNotFound)
	})
}

func failFlush(t *testing.T) {
	var fatal []error
	cfg := Config{Dir: t.TempDir(), Fatal: func(err error) { fatal = append(fatal, err) }}
	st := open(t, cfg)
	fill(t, st, 1, 1, 10)

	broken := breakFile(t, writtenFile(t, cfg), "/dev/null")
	err := st.Logs().StoreLogs(entries(1, 11, 11))
	broken.mend()
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorIs(t, err, syscall.EINVAL, "what fsync of /dev/null answers")
	require.Equal(t, []error{err}, fatal)

	require.ErrorIs(t, st.Logs().StoreLogs(entries(1, 12, 12)), ErrBroken)
	require.ErrorIs(t, st.Logs().DeleteRange(1, 5), ErrBroken)
	require.ErrorIs(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 2), ErrBroken)
	require.Len(t, fatal, 4)

	require.NoError(t, st.Close())
	first, last := span(t, open(t, Config{Dir: cfg.Dir}).Logs())
	assert.Equal(t, []uint64{1, 10}, []uint64{first, last})
}

// writtenFile is the file into which the next entry goes.
func writtenFile(t *testing.T, cfg Config) string {
	segments, err := filepath.Glob(filepath.Join(cfg.Dir, logName, "*"+segmentSuffix))
	require.NoError(t, err)
	return slices.Max(segments)
}

func TestFailedVoteFlushEndsAllWriting(t *testing.T) {
	var fatal []error
	cfg := Config{Dir: t.TempDir(), Fatal: func(err error) { fatal = append(fatal, err) }}
	st := open(t, cfg)
	fill(t, st, 1, 1, 10)
	require.NoError(t, st.Votes().SetUint64([]byte(keyVoteTerm), 1))

	broken := breakFile(t, filepath.Join(cfg.Dir, votesName), "/dev/null")
	err := st.Votes().Set([]byte(keyVoteCandidate), []byte("n2"))
	broken.mend()
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorIs(t, st.Logs().StoreLogs(entries(1, 11, 11)), ErrBroken)
	require.Len(t, fatal, 2)
}

// A disk that fills up between our question and the write is no refusal: it was in the middle of
// it.
func TestDiskFullInsideAWriteEndsAllWriting(t *testing.T) {
	var fatal []error
	cfg := Config{Dir: t.TempDir(), Fatal: func(err error) { fatal = append(fatal, err) }}
	st := open(t, cfg)
	fill(t, st, 1, 1, 10)

	broken := breakFile(t, writtenFile(t, cfg), "/dev/full")
	err := st.Logs().StoreLogs(entries(1, 11, 11))
	broken.mend()
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NotErrorIs(t, err, ErrDiskFull)
	require.Len(t, fatal, 1)
}

// A small disk, filled by the log itself: entries are refused while there is
// still a floor, everything else continues, and a deletion makes room for entries
// again though the file does not shrink (S5). Nothing ever ends the process.
func TestSmallDiskIsNeverFilled(t *testing.T) {
	t.Parallel()
	const size, floor = 64 << 20, 3 * SegmentBytes
	rounds := sized(10, 4, 2)
	lowest := uint64(size)
	cfg := Config{Dir: smallDisk(t, size), ReservedSpace: uint64(floor),
		LowSpace: uint64(floor) + 2<<20}
	st := open(t, cfg)
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 1))

	next := uint64(1)
	batch := func() []*raft.Log {
		logs := entries(1, next, next+63)
		for _, entry := range logs {
			entry.Data = make([]byte, 1<<10+next%(2<<10)) // sizes that leave gaps of all kinds
			entry.Extensions = Checksum(entry.Data)
		}
		return logs
	}
	// fillUp appends until the disk refuses, and returns how many batches it took.
	fillUp := func() (taken int) {
		for ; taken < 2*size/(64<<10); taken++ {
			logs := batch()
			if err := st.Logs().StoreLogs(logs); err != nil {
				require.ErrorIs(t, err, ErrDiskFull)
				return taken
			}
			next += uint64(len(logs))
		}
		require.Fail(t, "the disk is never full")
		return 0
	}
	assert.Greater(t, fillUp(), 10)
	assert.True(t, st.IsLowSpace())

	for round := range rounds {
		for term := range uint64(100) {
			require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm),
				uint64(round+1)*1000+term))
		}
		require.NoError(t, st.Logs().DeleteRange(1, next-100))
		assert.Greater(t, fillUp(), 10, "a deletion makes room, round %d", round)
		lowest = min(lowest, st.FreeBytes())
	}
	t.Logf("at the worst %d of %d bytes of the floor were free", lowest, floor)
	assert.Greater(t, lowest, uint64(floor/3))
	span(t, st.Logs())
}

// There was no room for the next segment when it was to be made, and there is when it is needed.
func TestASegmentIsMadeWhenThereIsRoom(t *testing.T) {
	dir := smallDisk(t, 32<<20)
	cfg := Config{Dir: filepath.Join(dir, "data"), ReservedSpace: 2 * SegmentBytes,
		LowSpace: 3 * SegmentBytes}
	cfg.Wrap.Free = func() uint64 { return 1 << 40 }
	st := open(t, cfg)
	fillWithBallast(t, dir)
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 1))
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 1, 60)))
	awaitNext(st)
	ballast, err := filepath.Glob(filepath.Join(dir, "ballast-*"))
	require.NoError(t, err)
	for _, path := range ballast {
		require.NoError(t, os.Remove(path))
	}
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 61, 120)))
	span(t, st.Logs())
}

// The vote's file has its room from the start: on a disk without a single free
// block it is written on and on.
func TestVotesNeedNoFreeSpace(t *testing.T) {
	dir := smallDisk(t, 32<<20)
	cfg := Config{Dir: filepath.Join(dir, "data"), ReservedSpace: 2 * SegmentBytes,
		LowSpace: 3 * SegmentBytes}
	st := open(t, cfg)
	var file unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(cfg.Dir, votesName), &file))
	require.GreaterOrEqual(t, file.Blocks*512, int64(votesPages*os.Getpagesize()))

	fillWithBallast(t, dir)
	for term := range uint64(2000) {
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), term))
		require.NoError(t, st.Votes().SetUint64([]byte(keyVoteTerm), term))
		require.NoError(t, st.Votes().Set([]byte(keyVoteCandidate), []byte("n2.example.org:5751")))
	}
	require.ErrorIs(t, st.Logs().StoreLogs(entries(1, 1, 1)), ErrDiskFull)
}

func TestAPlaceWhereNoDirectoryCanBeMade(t *testing.T) {
	require.Error(t, makeDir("/proc/zamok/n1"))
	_, err := Open(Config{NodeID: "n1", Dir: "/proc/zamok", Fatal: func(error) {}})
	require.ErrorIs(t, err, os.ErrNotExist)
}
