package store

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/tail"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// bigEntries are entries of which a segment holds about a hundred.
func bigEntries(term, first, last uint64) []*raft.Log {
	logs := entries(term, first, last)
	for _, entry := range logs {
		entry.Data = append(make([]byte, SegmentBytes/100), entry.Data...)
		entry.Extensions = Checksum(entry.Data)
	}
	return logs
}

// segmentsIn are the names of the files of a log.
func segmentsIn(t *testing.T, cfg Config) (names []string) {
	for _, e := range must(os.ReadDir(filepath.Join(cfg.Dir, logName))) {
		names = append(names, e.Name())
	}
	return names
}

// awaitNext waits until the next segment is made, if it is begun.
func awaitNext(st *Store) {
	if log := st.engine.(*segmentLog); log.making != nil {
		next := <-log.making
		log.making <- next
	}
}

// A log that is written, cut, deleted from the front, emptied, and opened again by the next
// process, also after a crash, in any order and over many segments, has what was written and not
// deleted; and it has no more segments than it needs.
func TestSegmentsHoldTheLog(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	between := func(least, most uint64) uint64 { return least + random.Uint64N(most-least+1) }
	for range sized(20, 3, 1) {
		cfg := Config{NodeID: "n1", Dir: t.TempDir(), Fatal: func(err error) { t.Error(err) }}
		st := must(Open(cfg))
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 1<<20))
		var model []*raft.Log
		first, term, covered := uint64(1), uint64(1), uint64(0) // covered: by a snapshot
		for range sized(60, 40, 30) {
			last := first + uint64(len(model)) - 1
			switch op := random.IntN(8); {
			case op < 4 || len(model) == 0:
				batch := bigEntries(term, last+1, last+between(1, 80))
				require.NoError(t, st.Logs().StoreLogs(batch))
				model = append(model, batch...)
			case op == 4:
				from := between(max(first, covered)+1, last+1)
				if from <= last {
					require.NoError(t, st.Logs().DeleteRange(from, last))
					term++
					batch := bigEntries(term, from, from+between(0, 20))
					require.NoError(t, st.Logs().StoreLogs(batch))
					model = append(model[:from-first], batch...)
				}
			case op == 5:
				to := between(max(first, covered), last)
				covered = to
				snapshot(t, st, model[to-first].Term, to, "state")
				if to < last {
					require.NoError(t, st.Logs().DeleteRange(first, to))
					model, first = model[to+1-first:], to+1
					log := st.engine.(*segmentLog)
					require.Same(t, log.places[0].segment, log.segments[0],
						"what is older was deleted")
				}
			default:
				if op == 6 { // as after a kill: nothing is done in order any more
					awaitNext(st)
					copied := t.TempDir()
					require.NoError(t, os.CopyFS(copied, os.DirFS(cfg.Dir)))
					require.NoError(t, st.Close())
					cfg.Dir = copied
				} else {
					require.NoError(t, st.Close())
				}
				st = must(Open(cfg))
				require.Zero(t, st.engine.lost())
			}
			begin, end, err := bounds(st.Logs())
			require.NoError(t, err)
			if len(model) == 0 {
				require.Equal(t, []uint64{0, 0}, []uint64{begin, end})
				continue
			}
			require.Equal(t, []uint64{first, first + uint64(len(model)) - 1}, []uint64{begin, end})
			for _, i := range []int{0, len(model) / 2, len(model) - 1} {
				var entry raft.Log
				require.NoError(t, readEntry(st.engine, model[i].Index, &entry))
				require.Equal(t, model[i].Data, entry.Data)
				require.Equal(t, model[i].Term, entry.Term)
			}
		}
		require.NoError(t, st.Close())
	}
}

// A process may end at each step of making the next segment and of using an old one again; the next
// start continues.
func TestASegmentThatWasNotBegunIsMadeAnew(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	st := open(t, cfg)
	fill(t, st, 1, 1, 5)
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 6, 65)))
	require.NotNil(t, st.engine.(*segmentLog).making, "half of the segment is full")
	awaitNext(st)
	require.NoError(t, st.Close())
	require.Len(t, segmentsIn(t, cfg), 2, "the next one is ready")
	left := filepath.Join(cfg.Dir, logName, "0000000000000001.log"+newFileSuffix)
	require.NoError(t, os.WriteFile(left,
		[]byte("of a process that ended while it made it"), 0o600))

	st = open(t, cfg)
	awaitNext(st)
	require.Equal(t, []string{"0000000000000001.log", "0000000000000002.log"}, segmentsIn(t, cfg))
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 66, 110)))
	require.NoError(t, st.Close())
	st = open(t, cfg)
	_, last := span(t, st.Logs())
	require.EqualValues(t, 110, last)
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 111, 210)))

	// The first is made to be the next, and is not begun: what it held is gone.
	snapshot(t, st, 1, 200, "state")
	require.NoError(t, st.Logs().DeleteRange(1, 200))
	awaitNext(st)
	require.NoError(t, st.Close())
	st = open(t, cfg)
	first, last := span(t, st.Logs())
	require.Equal(t, []uint64{201, 210}, []uint64{first, last})
	require.NoError(t, st.Close())
}

// A segment that could not be made is made again only if it was for want of room: the disk is ill,
// and the process ends when the segment is needed.
func TestASegmentThatCanNotBeMadeEndsTheProcess(t *testing.T) {
	var fatal []error
	cfg := Config{Dir: t.TempDir(), Fatal: func(err error) { fatal = append(fatal, err) }}
	st := open(t, cfg)
	require.NoError(t,
		os.Mkdir(filepath.Join(cfg.Dir, logName, "0000000000000002.log"+newFileSuffix), 0o700))
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 1))
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 1, 60)))
	awaitNext(st)
	require.NoError(t,
		os.Remove(filepath.Join(cfg.Dir, logName, "0000000000000002.log"+newFileSuffix)))
	require.Empty(t, fatal)
	require.ErrorIs(t, st.Logs().StoreLogs(bigEntries(1, 61, 120)), ErrBroken)
	require.Len(t, fatal, 1)
}

// An append to a segment that others follow is not torn.
func TestOnlyTheLastAppendMayBeTorn(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	st := open(t, cfg)
	fill(t, st, 1, 1, 5)
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 6, 65)))
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 66, 110)))
	require.NoError(t, st.Close())
	require.NoError(t, open(t, cfg).Close())
	// The first append to a segment is torn, and its record is there.
	path := writtenFile(t, cfg)
	require.Equal(t, "0000000000000002.log", filepath.Base(path))
	killed := must(os.ReadFile(path))
	killed[framesBegin] ^= 1
	require.NoError(t, os.WriteFile(path, killed, 0o600))
	_, err := Open(Config{NodeID: "n1", Dir: cfg.Dir, Fatal: func(error) {}})
	require.ErrorIs(t, err, ErrDamaged, "more than one was written to it")
}

// A segment in the middle that is missing, or two that are exchanged, are damage.
func TestMissingSegments(t *testing.T) {
	cfg := Config{NodeID: "n1", Dir: t.TempDir(), Fatal: func(error) {}}
	st := open(t, cfg)
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 1))
	for first := uint64(1); first < 400; first += 50 {
		require.NoError(t, st.Logs().StoreLogs(bigEntries(1, first, first+49)))
	}
	require.NoError(t, st.Close())
	names := segmentsIn(t, cfg)
	require.Greater(t, len(names), 3)
	path := func(i int) string { return filepath.Join(cfg.Dir, logName, names[i]) }
	for i := range len(names) - 1 {
		aside := filepath.Join(cfg.Dir, "aside")
		require.NoError(t, os.Rename(path(i), aside))
		_, err := Open(cfg)
		require.ErrorIs(t, err, ErrDamaged, names[i])
		require.NoError(t, os.Rename(path(i+1), path(i)))
		require.NoError(t, os.Rename(aside, path(i+1)))
		_, err = Open(cfg)
		require.ErrorIs(t, err, ErrDamaged, names[i])
		require.NoError(t, errors.Join(os.Rename(path(i), aside), os.Rename(path(i+1), path(i)),
			os.Rename(aside, path(i+1))))
	}
	require.NoError(t, os.Rename(filepath.Join(cfg.Dir, logName), filepath.Join(cfg.Dir, "aside")))
	require.NoError(t, os.Mkdir(filepath.Join(cfg.Dir, logName), 0o700))
	_, err := Open(cfg)
	require.ErrorIs(t, err, ErrDamaged, "an empty folder")
}

// An append that is longer than a segment gets a longer one, which is used again in its usual
// length.
func TestAnAppendMayBeLongerThanASegment(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	st := open(t, cfg)
	fill(t, st, 1, 1, 5)
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 6, 250)))
	require.NoError(t, st.Logs().StoreLogs(bigEntries(1, 251, 255)))
	require.NoError(t, st.Close())
	st = open(t, cfg)
	_, last := span(t, st.Logs())
	require.EqualValues(t, 255, last)
	snapshot(t, st, 1, 255, "state")
	for first := uint64(256); first < 500; first += 10 {
		require.NoError(t, st.Logs().StoreLogs(bigEntries(1, first, first+9)))
	}
	require.NoError(t, st.Logs().DeleteRange(1, 300))
	awaitNext(st) // its file gets its name on a goroutine of its own
	before := map[string]fs.FileInfo{}
	for _, name := range segmentsIn(t, cfg) {
		before[name] = must(os.Stat(filepath.Join(cfg.Dir, logName, name)))
	}
	for first := uint64(506); first < 900; first += 10 {
		require.NoError(t, st.Logs().StoreLogs(bigEntries(1, first, first+9)))
		snapshot(t, st, 1, first, "state")
		require.NoError(t, st.Logs().DeleteRange(must(st.Logs().FirstIndex()), first-100))
	}
	awaitNext(st)
	reused := false
	require.NoError(t, filepath.WalkDir(filepath.Join(cfg.Dir, logName),
		func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				assert.EqualValues(t, SegmentBytes, must(e.Info()).Size(), path)
				for name, info := range before {
					reused = reused || name != e.Name() && os.SameFile(info, must(e.Info()))
				}
			}
			return err
		}))
	require.True(t, reused)
	require.LessOrEqual(t, len(segmentsIn(t, cfg)), 5)
}

// The reserved space must hold the segments that are made when entries were admitted.
func TestTheReservedSpaceHoldsSegments(t *testing.T) {
	_, err := Open(Config{NodeID: "n1", Dir: t.TempDir(), Fatal: func(error) {},
		ReservedSpace: ReservedSegments*SegmentBytes - 1})
	require.ErrorContains(t, err, "raise ReservedSpace")
}

// A log of which all was deleted is empty at the next start, and goes on where raft has it begin.
func TestALogOfWhichAllWasDeleted(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	st := open(t, cfg)
	fill(t, st, 1, 1, 20)
	snapshot(t, st, 1, 20, "state")
	require.NoError(t, st.Logs().DeleteRange(1, 20))
	require.NoError(t, st.DropStale())
	require.NoError(t, st.Close())
	st = open(t, cfg)
	first, last := span(t, st.Logs())
	assert.Equal(t, []uint64{0, 0}, []uint64{first, last})
	fill(t, st, 1, 21, 22)
	require.NoError(t, st.Close())
	first, last = span(t, open(t, cfg).Logs())
	assert.Equal(t, []uint64{21, 22}, []uint64{first, last})
}

// The log keeps as many of the latest bytes as it may, and wants a snapshot before those that none
// has are more.
func TestALogIsKeptByBytes(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	st := open(t, cfg)
	const perSegment = 98
	fill(t, st, 1, 1, 5)
	for first := uint64(6); !st.WantsSnapshot(); first += 10 {
		require.False(t, st.IsLong())
		require.NoError(t, st.Logs().StoreLogs(bigEntries(1, first, first+9)))
		require.Less(t, first, uint64(3*perSegment))
	}
	last := must(st.Logs().LastIndex())
	require.Greater(t, last, uint64(LogBytes/2/SegmentBytes*perSegment-20))
	snapshot(t, st, 1, last-5, "state")
	require.False(t, st.WantsSnapshot())
	for range 5 * perSegment / 10 {
		last := must(st.Logs().LastIndex())
		require.NoError(t, st.Logs().StoreLogs(bigEntries(1, last+1, last+10)))
	}
	require.True(t, st.WantsSnapshot())
	require.True(t, st.IsLong())
	require.NoError(t, st.Shrink())
	require.False(t, st.IsLong())
	first := must(st.Logs().FirstIndex())
	require.LessOrEqual(t, first, last-4, "what the snapshot has not is kept")
	snapshot(t, st, 1, must(st.Logs().LastIndex()), "state")
	require.NoError(t, st.Shrink())
	first, last = span(t, st.Logs())
	bytes := uint64(len(bigEntries(1, 1, 1)[0].Data)) * (last - first + 1)
	require.LessOrEqual(t, bytes, uint64(LogBytes))
	require.Greater(t, bytes, uint64(LogBytes*9/10))
	require.NoError(t, st.Close())
	again, end := span(t, open(t, cfg).Logs())
	require.Equal(t, []uint64{first, last}, []uint64{again, end})
}

// The log has another entry where the leader's snapshot ends, and more than LogBytes behind it.
// What the snapshot ends with stays when the log is shrunk, so the next start finds that all of it
// goes (S14).
func TestALongLogThatContradictsASnapshotGoes(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	st := open(t, cfg)
	fill(t, st, 1, 1, 1)
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 2))
	for first := uint64(2); !st.WantsSnapshot() || first < 600; first += 50 {
		require.NoError(t, st.Logs().StoreLogs(bigEntries(2, first, first+49)))
	}
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 3))
	snapshot(t, st, 3, 3, "3\n") // entry 3 of the log is of term 2
	require.NoError(t, st.Shrink())
	require.NoError(t, st.Close())
	require.Equal(t, tail.End{Term: 3, Index: 3}, open(t, cfg).Tail().Log)
}

// A frame of an unknown kind is not skipped.
func TestAFrameOfAnUnknownKind(t *testing.T) {
	st := open(t, Config{Dir: t.TempDir()})
	require.ErrorIs(t, st.engine.(*segmentLog).write(frame{kind: 3}, nil), errRecord)
}
