package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bigEntries are entries of which a segment holds about a hundred.
func bigEntries(first, last uint64) []*raft.Log {
	logs := entries(1, first, last)
	for _, entry := range logs {
		entry.Data = append(make([]byte, SegmentBytes/100), entry.Data...)
		entry.Extensions = Checksum(entry.Data)
	}
	return logs
}

// cutTable is raft-wal's table in a process that ends before the table records
// a full segment.
type cutTable struct {
	*segmentLog
	cut bool
}

func (c *cutTable) CommitState(s types.PersistentState) error {
	if c.cut {
		return errors.New("the process has ended")
	}
	return c.segmentLog.CommitState(s)
}

// endBetween fills a segment of a node's log as a process does that ends between
// the write which fills it and the note that it is full. It returns the last
// entry that was acknowledged.
func endBetween(t *testing.T, dir string, first uint64) (last uint64) {
	folder := filepath.Join(dir, logFiles[WAL])
	table := &cutTable{segmentLog: must(openSegmentTable(folder, false))}
	log, err := wal.Open(folder, wal.WithSegmentSize(SegmentBytes),
		wal.WithMetaStore(table), wal.WithLogger(hclog.NewNullLogger()))
	require.NoError(t, err)
	table.cut = true
	for last = first; ; last++ {
		if err := log.StoreLogs([]*raft.Log{Seal(bigEntries(last, last)[0])}); err != nil {
			require.ErrorIs(t, err, wal.ErrSealed)
			require.NoError(t, log.Close())
			return last - 1
		}
	}
}

// A process that ends while a segment is being changed leaves a log that continues
// (completeRotation), whole, and with what was deleted before still deleted.
func TestAFullSegmentThatWasNotNotedIsWrittenOn(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Log: WAL}
	st := open(t, cfg)
	fill(t, st, 1, 1, 10)
	snapshot(t, st, 1, 4, "state")
	require.NoError(t, st.Logs().DeleteRange(1, 4))
	require.NoError(t, st.Close())
	next := uint64(11)
	for range 3 {
		last := endBetween(t, cfg.Dir, next)
		st = open(t, cfg)
		first, found := span(t, st.Logs())
		require.Equal(t, []uint64{5, last}, []uint64{first, found})
		fill(t, st, 1, last+1, last+5)
		require.NoError(t, st.Close())
		next = last + 6
	}
	// The table has the next segment, and the process ends before there is a file.
	last := endBetween(t, cfg.Dir, next)
	folder := filepath.Join(cfg.Dir, logFiles[WAL])
	table := must(openSegmentTable(folder, false))
	require.NoError(t, errors.Join(completeRotation(folder, must(table.Load(folder)), table), table.Close()))
	first, found := span(t, open(t, cfg).Logs())
	assert.Equal(t, []uint64{5, last}, []uint64{first, found})
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Without completeRotation: the log is refused forever.
func TestRaftWALAloneNeverWritesAgain(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, open(t, Config{Dir: dir, Log: WAL}).Close())
	last := endBetween(t, dir, 1)
	for range 2 {
		folder := filepath.Join(dir, logFiles[WAL])
		table := must(openSegmentTable(folder, false))
		log, err := wal.Open(folder, wal.WithMetaStore(table), wal.WithLogger(hclog.NewNullLogger()))
		require.NoError(t, err)
		require.ErrorIs(t, log.StoreLogs(entries(1, last+1, last+1)), wal.ErrSealed,
			"raft-wal no longer needs completeRotation: it can go")
		require.NoError(t, log.Close())
	}
}

// What was begun to be written and not flushed when the power went is not there,
// and the log continues before it; also when the piece that is torn filled a
// segment.
func TestATornTailIsCutOff(t *testing.T) {
	for _, full := range []bool{false, true} {
		cfg := Config{Dir: t.TempDir(), Log: WAL}
		st := open(t, cfg)
		fill(t, st, 1, 1, 10)
		require.NoError(t, st.Close())
		path := writtenFile(t, cfg)
		last := uint64(11)
		if full {
			last = endBetween(t, cfg.Dir, 11)
		} else {
			st = open(t, cfg)
			require.NoError(t, st.Logs().StoreLogs(bigEntries(last, last)))
			table := filepath.Join(cfg.Dir, logFiles[WAL], segmentTableName)
			running := must(os.ReadFile(table))
			require.NoError(t, st.Close())
			require.NoError(t, os.WriteFile(table, running, 0o600), "the power fails before it is closed")
		}
		written := must(os.ReadFile(path))
		end := len(written)
		for written[end-1] == 0 {
			end--
		}
		written[end-SegmentBytes/200] ^= 0x55 // in the middle of the last entry
		require.NoError(t, os.WriteFile(path, written, 0o600))
		st = open(t, cfg)
		_, found := span(t, st.Logs())
		require.Equal(t, last-1, found, "full: %v", full)
		fill(t, st, 1, last, last+3)
		require.NoError(t, st.Close())
		_, found = span(t, open(t, cfg).Logs())
		require.Equal(t, last+3, found)
	}
}

// What is left of a torn write, behind what is written in its place, is not taken for damage at the start after
// that.
func TestWhatIsLeftOfATornWriteIsNotDamage(t *testing.T) {
	for _, written := range []uint64{0, 10} { // entries before the one that is torn
		cfg := Config{Dir: t.TempDir(), Log: WAL}
		st := open(t, cfg)
		if written > 0 {
			fill(t, st, 1, 1, written)
		}
		path, table := writtenFile(t, cfg), filepath.Join(cfg.Dir, logFiles[WAL], segmentTableName)
		known := must(os.ReadFile(table))
		end := must(tailOf(must(os.ReadFile(path))))
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 1))
		require.NoError(t, st.Logs().StoreLog(command(written+1, 1, bytes.Repeat([]byte("full"), 1000))))
		torn := must(os.ReadFile(path))
		clear(torn[(end/sectorBytes+2)*sectorBytes:][:sectorBytes])
		require.NoError(t, st.Close())
		require.NoError(t, errors.Join(os.WriteFile(table, known, 0o600), os.WriteFile(path, torn, 0o600)), "the power fails in the write")

		for last := written; last < written+4; last++ {
			st = open(t, cfg)
			_, found := span(t, st.Logs())
			require.Equal(t, last, found)
			fill(t, st, 1, last+1, last+1)
			require.NoError(t, st.Close())
		}
	}
}

func TestTheFloorHoldsSegments(t *testing.T) {
	const small = ReservedSegments*SegmentBytes - 1
	_, err := Open(Config{NodeID: "n1", Dir: t.TempDir(), Log: WAL, ReservedSpace: small, Fatal: func(error) {}})
	require.ErrorContains(t, err, "raise ReservedSpace")
	_, err = Open(Config{NodeID: "n1", Dir: t.TempDir(), Log: "paper", Fatal: func(error) {}})
	require.ErrorContains(t, err, "name bolt or wal")
	open(t, Config{Dir: t.TempDir(), Log: Bolt, ReservedSpace: small})
}

// However long the range, one write deletes it (S6).
func TestSegmentsAreDeletedInOneWrite(t *testing.T) {
	var deletions int
	st := open(t, Config{Dir: t.TempDir(), Log: WAL, Wrap: withFault(func(op Op, _, _ uint64) error {
		if op == OpDelete {
			deletions++
		}
		return nil
	})})
	for first := uint64(1); first < 1000; first += 50 {
		require.NoError(t, st.Logs().StoreLogs(bigEntries(first, first+49)))
	}
	require.NoError(t, st.Logs().DeleteRange(1, 900))
	assert.Equal(t, 1, deletions)
	first, last := span(t, st.Logs())
	assert.Equal(t, []uint64{901, 1000}, []uint64{first, last})
	require.Equal(t, raft.ErrLogNotFound, st.Logs().GetLog(900, new(raft.Log)), "raft-wal finds what was deleted")
	monotonic, ok := st.Logs().(raft.MonotonicLogStore)
	require.True(t, ok && monotonic.IsMonotonic(), "raft does not learn it, and leaves a gap after a snapshot")
}

// A leader's snapshot takes the place of the whole log, and the process ends before anything is appended
// behind it. That there is no entry left is not damage.
func TestALogOfWhichAllWasDeletedIsNotDamage(t *testing.T) {
	for name, noted := range map[string]uint64{"it had reached what is deleted first": 5, "it had reached what is deleted last": 15} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Dir: t.TempDir(), Log: WAL}
			st := open(t, cfg)
			fill(t, st, 1, 1, noted) // the first write to a segment, which the table notes
			fill(t, st, 1, noted+1, 20)
			snapshot(t, st, 1, 10, "state")
			require.NoError(t, st.Logs().DeleteRange(1, 10))
			snapshot(t, st, 1, 20, "state")
			require.NoError(t, st.Logs().DeleteRange(11, 20))

			killed := Config{Dir: t.TempDir(), Log: WAL}
			require.NoError(t, os.CopyFS(killed.Dir, os.DirFS(cfg.Dir)))
			require.NoError(t, st.Close())
			for _, cfg := range []Config{killed, cfg} {
				st := open(t, cfg)
				first, last := span(t, st.Logs())
				assert.Equal(t, []uint64{0, 0}, []uint64{first, last})
				fill(t, st, 1, 21, 22)
				require.NoError(t, st.Close())
				first, last = span(t, open(t, cfg).Logs())
				assert.Equal(t, []uint64{21, 22}, []uint64{first, last})
			}
		})
	}
}
