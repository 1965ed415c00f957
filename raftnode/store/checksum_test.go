package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An entry that is not what was proposed is refused, on the leader and on a follower alike, with
// all that came with it, and nothing ends for it (S13).
func TestAnEntryThatDoesNotFitItsChecksumIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, reopen func() *Store) {
		st := reopen()
		fill(t, st, 1, 1, 3)
		for name, change := range map[string]func(*raft.Log){
			"data": func(l *raft.Log) { l.Data = []byte("entry 6") },
			"checksum": func(l *raft.Log) {
				l.Extensions = Checksum([]byte("entry 6"))
			},
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
				Dir: t.TempDir(), Fatal: func(err error) { fatal = append(fatal, err) },
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
			assert.ErrorContains(t, err, filepath.Join(st.medium.path(""), "log"))
			assert.ErrorContains(t, err, "never do so while this directory holds the only copy")
			require.Equal(t, []error{err}, fatal)
			require.ErrorIs(t,
				st.Logs().StoreLogs(entries(1, LogCacheEntries+11, LogCacheEntries+11)), ErrDamaged)
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

// bbolt continues with the older of its two meta pages when the newer one is damaged, and the last
// vote is lost. So either one that is damaged is damage.
func TestEitherMetaPageIsNeeded(t *testing.T) {
	cfg := Config{NodeID: "n1", Dir: t.TempDir(), Fatal: func(error) {}}
	st := open(t, cfg)
	fill(t, st, 1, 1, 3)
	require.NoError(t, st.Close())
	path := filepath.Join(cfg.Dir, votesName)
	whole := must(os.ReadFile(path))
	for page := range 2 {
		damaged := append([]byte(nil), whole...)
		damaged[page*os.Getpagesize()+boltPageBytes+boltMetaBytes-1] ^= 1
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		_, err := Open(cfg)
		require.ErrorIs(t, err, ErrDamaged, "page %d", page)
	}
	require.NoError(t, os.WriteFile(path, whole, 0o600))
}

// A file that bbolt has written is never called damaged, however its pages came about.
func TestWhatBoltWritesIsWhole(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), votesName)
	table, err := openBoltTable(path, true)
	require.NoError(t, err)
	defer table.db.Close()
	for range sized(400, 100, 50) {
		size := []int{10, 300, 800, 5000, 40_000}[random.IntN(5)]
		require.NoError(t,
			table.Put(Values{fmt.Sprint(random.IntN(5)): make([]byte, random.IntN(size))}))
		require.NoError(t, checkBolt(path))
	}
}

// A bit that flips in the votes' file is damage if its page is in use.
func TestAFlippedBitInTheVotesIsDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), votesName)
	written := Values{keyCurrentTerm: numberBytes(7), keyVoteTerm: numberBytes(7),
		keyVoteCandidate: []byte("n2")}
	table, err := openBoltTable(path, true)
	require.NoError(t, err)
	require.NoError(t, errors.Join(table.Put(written), table.db.Close()))
	whole, damaged := must(os.ReadFile(path)), 0
	for at := range whole {
		if whole[at] == 0 && at%97 != 0 {
			continue
		}
		text := append([]byte(nil), whole...)
		text[at] ^= 1 << (at % 8)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		found, err := openBoltTable(path, false)
		if err == nil {
			values, readErr := found.Values()
			require.NoError(t, errors.Join(readErr, found.db.Close()))
			require.Equal(t, written, values, "byte %d", at)
			continue
		}
		damaged++
		require.ErrorIs(t, asDamage(path, err), ErrDamaged, "byte %d", at)
	}
	t.Log(damaged)
	require.Greater(t, damaged, 100)
}
