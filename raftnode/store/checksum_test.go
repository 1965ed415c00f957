package store

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An entry that is not what was proposed is refused, on the leader and on a follower alike, with all that
// came with it, and nothing ends for it (S13).
func TestAnEntryThatDoesNotFitItsChecksumIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 1, 1, 3)
		for name, change := range map[string]func(*raft.Log){
			"data":                  func(l *raft.Log) { l.Data = []byte("entry 6") },
			"checksum":              func(l *raft.Log) { l.Extensions = Checksum([]byte("entry 6")) },
			"no checksum":           func(l *raft.Log) { l.Extensions = nil },
			"one of raft's own":     func(l *raft.Log) { l.Type = raft.LogNoop },
			"a piece of a checksum": func(l *raft.Log) { l.Extensions = l.Extensions[:3] },
		} {
			batch := entries(1, 4, 6)
			change(batch[1])
			require.ErrorIs(t, st.Logs().StoreLogs(batch), ErrChecksum, name)
			_, last := span(t, st.Logs())
			require.EqualValues(t, 3, last, name)
		}
		require.NoError(t, st.Logs().StoreLog(&raft.Log{Index: 4, Term: 1, Type: raft.LogNoop}))
		_, last := span(t, reopen().Logs())
		require.EqualValues(t, 4, last)
	})
}

// changedLog is a disk that returns something else than it was given.
type changedLog struct {
	raft.LogStore
	change func(*raft.Log) error
}

func (l changedLog) GetLog(index uint64, entry *raft.Log) error {
	return errors.Join(l.LogStore.GetLog(index, entry), l.change(entry))
}

// What is read while the node runs is verified too. An entry that is not as it was written ends the
// process, and nothing is written after it (S12).
func TestDamageIsFoundWhenItIsRead(t *testing.T) {
	for name, change := range map[string]func(*raft.Log) error{
		"index":      func(l *raft.Log) error { l.Index++; return nil },
		"term":       func(l *raft.Log) error { l.Term++; return nil },
		"type":       func(l *raft.Log) error { l.Type = raft.LogNoop; return nil },
		"data":       func(l *raft.Log) error { l.Data[0] ^= 1; return nil },
		"extensions": func(l *raft.Log) error { l.Extensions[0] ^= 1; return nil },
		"checksum":   func(l *raft.Log) error { l.Extensions[7] ^= 1; return nil },
		"nothing":    func(l *raft.Log) error { *l = raft.Log{}; return nil },
		"a panic":    func(l *raft.Log) error { panic("assertion failed: page 7 already freed") },
		"a fault":    func(l *raft.Log) error { return errors.New("input/output error") },
	} {
		t.Run(name, func(t *testing.T) {
			var fatal []error
			rots := false
			st := open(t, Config{
				Dir: t.TempDir(), Log: Bolt, Fatal: func(err error) { fatal = append(fatal, err) },
				Wrap: Wrap{Logs: func(inner raft.LogStore) raft.LogStore {
					return changedLog{inner, func(l *raft.Log) error {
						if !rots {
							return nil
						}
						return change(l)
					}}
				}},
			})
			fill(t, st, 1, 1, LogCacheEntries+10) // the first ones are not in memory
			require.NoError(t, st.Logs().GetLog(1, new(raft.Log)))
			rots = true
			err := st.Logs().GetLog(1, new(raft.Log))
			require.ErrorIs(t, err, ErrDamaged)
			assert.ErrorContains(t, err, filepath.Join(st.medium.path(""), "log.db"))
			assert.ErrorContains(t, err, "never do so while this directory holds the only copy")
			require.Equal(t, []error{err}, fatal)
			require.ErrorIs(t, st.Logs().StoreLogs(entries(1, LogCacheEntries+11, LogCacheEntries+11)), ErrDamaged)
			require.ErrorIs(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 9), ErrDamaged)
		})
	}
}

// A panicking log panics when it is asked for its entries.
type panicking struct{ raft.LogStore }

func (panicking) FirstIndex() (uint64, error) { panic("index out of range") }

// A panic at the start is damage, wherever it comes from, and the operator reads what to do (S12).
func TestAPanicAtTheStartIsDamage(t *testing.T) {
	_, err := Open(Config{NodeID: "n1", Memory: new(Memory), Fatal: func(error) {}, Wrap: Wrap{
		Logs: func(inner raft.LogStore) raft.LogStore { return panicking{inner} },
	}})
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "index out of range")
	require.ErrorContains(t, err, "never do so while this directory holds the only copy")
}

// bbolt continues with the older of its two meta pages when the newer one is damaged, and the last vote is lost. So
// either one that is damaged is damage.
func TestEitherMetaPageIsNeeded(t *testing.T) {
	cfg := Config{NodeID: "n1", Dir: t.TempDir(), Log: Bolt, Fatal: func(error) {}}
	st := open(t, cfg)
	fill(t, st, 1, 1, 3)
	require.NoError(t, st.Close())
	for _, name := range []string{votesName, logFiles[Bolt]} {
		path := filepath.Join(cfg.Dir, name)
		whole := must(os.ReadFile(path))
		for page := range boltMetaPages {
			damaged := append([]byte(nil), whole...)
			damaged[page*os.Getpagesize()+boltPageBytes+boltMetaBytes-1] ^= 1
			require.NoError(t, os.WriteFile(path, damaged, 0o600))
			_, err := Open(cfg)
			require.ErrorIs(t, err, ErrDamaged, "%s, page %d", name, page)
		}
		require.NoError(t, os.WriteFile(path, whole, 0o600))
	}
}

// A file that bbolt has written is never called damaged, however its pages came about.
func TestWhatBoltWritesIsWhole(t *testing.T) {
	t.Parallel()
	steps := sized(400, 200, 80)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	cfg := Config{Dir: t.TempDir(), Log: Bolt}
	st := open(t, cfg)
	path := filepath.Join(cfg.Dir, "log.db")
	require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), 1))
	snapshot(t, st, 1, 1<<20, "the log may begin anywhere")
	next := uint64(1 << 20)
	for range steps {
		switch first, last, err := bounds(st.Logs()); {
		case random.IntN(4) > 0 || last < first+10:
			var batch []*raft.Log
			size := []int{10, 300, 5000, 40_000}[random.IntN(4)]
			for range 1 + random.IntN(64) {
				batch = append(batch, command(next, 1, make([]byte, random.IntN(size))))
				next++
			}
			require.NoError(t, st.Logs().StoreLogs(batch))
		case random.IntN(2) == 0:
			require.NoError(t, errors.Join(err, st.Logs().DeleteRange(first, first+random.Uint64N(last-first))))
		default:
			from := last - random.Uint64N(min(last-first, 50))
			require.NoError(t, errors.Join(err, st.Logs().DeleteRange(from, last)))
			next = from
		}
		require.NoError(t, checkBolt(path))
	}
}

// A bit that flips in a segment and matters is damage, with few exceptions in the last write: a frame whose
// length has changed may seem to continue where nothing was written.
func TestAFlippedBitInASegmentIsDamage(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	cfg := Config{Dir: t.TempDir(), Log: WAL}
	st := open(t, cfg)
	begins := 0
	for range 10 {
		whole, err := tailOf(must(os.ReadFile(writtenFile(t, cfg))))
		require.NoError(t, err)
		begins = whole
		_, last := span(t, st.Logs())
		var batch []*raft.Log
		for index := last + 1; index <= last+3; index++ {
			data := make([]byte, 200+random.IntN(400))
			for i := range data {
				data[i] = byte(1 + random.IntN(255))
			}
			batch = append(batch, command(index, 1, data))
		}
		require.NoError(t, st.Logs().StoreLogs(batch))
	}
	text := must(os.ReadFile(writtenFile(t, cfg)))
	end, err := tailOf(text)
	require.NoError(t, err)
	text = text[:end+4096]
	missed := 0
	for at := range end {
		bit := byte(1) << random.IntN(8)
		text[at] ^= bit
		whole, err := tailOf(text)
		text[at] ^= bit
		if err == nil && whole != end { // three bytes of a commit frame are not used
			missed++
			require.GreaterOrEqual(t, at, begins)
			require.Equal(t, begins, whole)
		}
	}
	t.Logf("%d of the %d bytes of the last write", missed, end-begins)
	require.Less(t, missed*20, end-begins)
}

// A write that was torn is not called damaged, whichever of its sectors are missing: the log continues
// before it.
func TestATornWriteIsNotDamage(t *testing.T) {
	t.Parallel()
	times := sized(3000, 900, 300)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	cfg := Config{Dir: t.TempDir(), Log: WAL}
	st := open(t, cfg)
	next := uint64(1)
	write := func() {
		var batch []*raft.Log
		for range 1 + random.IntN(10) {
			data := make([]byte, random.IntN(2000))
			for i := range data {
				if random.IntN(3) > 0 {
					data[i] = byte(random.Uint32())
				}
			}
			batch = append(batch, command(next, 1, data))
			next++
		}
		require.NoError(t, st.Logs().StoreLogs(batch))
	}
	path := writtenFile(t, cfg)
	for range 5 {
		write()
	}
	for range times / 30 {
		before := must(os.ReadFile(path))
		whole, err := tailOf(before)
		require.NoError(t, err)
		write()
		if writtenFile(t, cfg) != path {
			path = writtenFile(t, cfg)
			continue
		}
		after := must(os.ReadFile(path))
		end, err := tailOf(after)
		require.NoError(t, err)
		require.Greater(t, end, whole)
		room := min(len(after), end+2*4096) // all behind it is empty
		before, after = before[:room], after[:room]
		for range 30 {
			torn, pages := append([]byte(nil), after...), []int{sectorBytes, 4096}[random.IntN(2)]
			missing := false
			for at := whole / pages * pages; at < end; at += pages {
				if random.IntN(3) == 0 {
					copy(torn[at:at+pages], before[at:])
				}
				missing = missing || string(torn[at:at+pages]) != string(after[at:at+pages])
			}
			found, err := tailOf(torn)
			require.NoError(t, err)
			if missing {
				require.Equal(t, whole, found)
			}
		}
	}
}
