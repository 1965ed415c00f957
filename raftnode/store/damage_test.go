package store

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// contents is all that raft acts on.
type contents struct {
	identity  Identity
	votes     [3]string
	entries   []string // from first on
	first     uint64
	snapshots []string // the newest first
}

func contentsOf(st *Store) (c contents, err error) {
	c.identity = st.Identity()
	for i, key := range []string{keyCurrentTerm, keyVoteTerm, keyVoteCandidate} {
		value, err := st.Votes().Get([]byte(key))
		if err != nil {
			return c, err
		}
		c.votes[i] = string(value)
	}
	first, last, err := bounds(st.Logs())
	if err != nil {
		return c, err
	}
	c.first = first
	for index := first; index <= last && last > 0; index++ {
		var l raft.Log
		if err := st.Logs().GetLog(index, &l); err != nil {
			return c, err
		}
		c.entries = append(c.entries,
			fmt.Sprintf("%d %d %v %x %x", l.Index, l.Term, l.Type, sha256.Sum256(l.Data),
				l.Extensions))
	}
	metas, err := st.Snapshots().List()
	if err != nil || len(metas) == 0 {
		return c, err
	}
	newest := metas[0] // raft reads another one only where this one is not listed
	_, state, err := st.Snapshots().Open(newest.ID)
	if err != nil {
		return c, err
	}
	text, err := io.ReadAll(state)
	c.snapshots = append(c.snapshots, fmt.Sprintf("%+v %x", *newest, sha256.Sum256(text)))
	return c, errors.Join(err, state.Close())
}

// sinceStart is how many entries the last process of lived has written.
const sinceStart = 12

// lived makes the directory of a node that has lived: elections, conflicts, snapshots, compactions,
// a restart. Its log reaches back to the older snapshot, or not. Its last process runs when it
// returns.
func lived(t *testing.T, dir string, reachesBack bool, random *rand.Rand) *Store {
	st := open(t, Config{Dir: dir})
	vote := func(term uint64) {
		require.NoError(t, st.Votes().SetUint64([]byte(keyCurrentTerm), term))
		require.NoError(t, st.Votes().SetUint64([]byte(keyVoteTerm), term))
		require.NoError(t, st.Votes().Set([]byte(keyVoteCandidate), []byte("n2")))
	}
	next := uint64(1)
	write := func(term uint64, count int) {
		require.NoError(t, st.Logs().StoreLogs(noise(random, term, next, count, 400)))
		next += uint64(count)
	}
	vote(1)
	require.NoError(t, st.Logs().StoreLog(&raft.Log{Index: next, Term: 1, Type: raft.LogNoop}))
	next++
	for range 30 {
		write(1, 1+random.IntN(9))
	}
	snapshot(t, st, 1, next-20, "older")
	require.NoError(t, st.Logs().DeleteRange(1, next-60))
	vote(3)
	require.NoError(t, st.Logs().DeleteRange(next-5, next-1))
	next -= 5
	for range 15 {
		write(3, 1+random.IntN(9))
	}
	snapshot(t, st, 3, next-9, strings.Repeat("newest", 1000))
	if !reachesBack {
		require.NoError(t, st.Logs().DeleteRange(1, next-40))
	}
	require.NoError(t, st.RecordCluster(NewID()))
	require.NoError(t, st.Close())
	st = open(t, Config{Dir: dir})
	vote(4)
	for range sinceStart / 3 {
		write(4, 3)
	}
	return st
}

// A file as it was, without the zeros at its end.
type pristine struct {
	text []byte
	size int64
	seen time.Time // when it was written last
}

func pristineIn(t *testing.T, dir string) map[string]pristine {
	files := map[string]pristine{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == lockName { // which is empty
			return err
		}
		name, err := filepath.Rel(dir, path)
		text, readErr := os.ReadFile(path)
		end := len(text)
		for end > 0 && text[end-1] == 0 {
			end--
		}
		files[name] = pristine{text: text[:end], size: int64(len(text))}
		return errors.Join(err, readErr)
	}))
	return files
}

func (p pristine) write(path string) (time.Time, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return time.Time{}, err
	}
	if err := errors.Join(os.WriteFile(path, p.text, 0o600),
		os.Truncate(path, p.size)); err != nil {
		return time.Time{}, err
	}
	info, err := os.Stat(path)
	return info.ModTime(), err
}

// place draws a place in a file: anywhere, at the head of a page, or near a record that is small
// beside the free pages around it, or where the file ends.
func (p pristine) place(random *rand.Rand) int {
	at := random.IntN(len(p.text))
	switch random.IntN(3) {
	case 0:
		return min(at/4096*4096+random.IntN(64), len(p.text)-1)
	case 1:
		var records []int
		for _, name := range []string{stampKey, keyVoteTerm, keyVoteCandidate, "Servers"} {
			for i := 0; ; i++ {
				next := bytes.Index(p.text[i:], []byte(name))
				if next < 0 {
					break
				}
				i += next
				records = append(records, i)
			}
		}
		if len(records) > 0 {
			return max(0, min(records[random.IntN(len(records))]+random.IntN(80)-20, len(p.text)-1))
		}
		return len(p.text) - 1 - random.IntN(min(len(p.text), 1000))
	}
	return at
}

// damage does something to a file, and says what.
func (p pristine) damage(random *rand.Rand) (pristine, string) {
	text := bytes.Clone(p.text)
	at := p.place(random)
	switch random.IntN(8) {
	default:
		text[at] ^= 1 << random.IntN(8)
		return pristine{text: text, size: p.size}, fmt.Sprintf("a bit flipped at %d", at)
	case 1:
		to := min(at+1+random.IntN(64), len(text))
		for i := range text[at:to] {
			text[at+i] = byte(random.Uint32())
		}
		return pristine{text: text, size: p.size}, fmt.Sprintf("nonsense at %d to %d", at, to)
	case 2:
		at = at / 512 * 512
		to := min(at+512*(1+random.IntN(8)), len(text))
		clear(text[at:to])
		return pristine{text: text, size: p.size}, fmt.Sprintf("nothing at %d to %d", at, to)
	case 3:
		return pristine{text: text[:at], size: int64(at)}, fmt.Sprintf("cut at %d", at)
	case 4:
		return pristine{text: text[:at], size: p.size}, fmt.Sprintf("nothing from %d on", at)
	case 5:
		from := random.IntN(len(text)) / 512 * 512
		at = at / 512 * 512
		to := at + copy(text[at:min(at+4096, len(text))], p.text[from:])
		return pristine{text: text, size: p.size}, fmt.Sprintf("what belongs at %d at %d to %d",
			from, at, to)
	}
}

// fates counts what became of damaged directories.
type fates struct {
	refused, harmless, older, torn int
}

// Whatever is done to one file of a directory: it is refused, and the file named, or nothing of
// what raft reads has changed, or the last append is missing, of a process that was killed, and the
// store says so.
func TestDamageIsFoundAtTheStart(t *testing.T) {
	t.Parallel()
	seed := uint64(1)
	if text := os.Getenv("ZAMOK_SEED"); text != "" {
		seed = must(strconv.ParseUint(text, 10, 64))
	}
	times := sized(600, 150, 60)
	for _, c := range []struct {
		end         string
		reachesBack bool
	}{
		{"killed", false},
		{"killed", true},
		{"closed", true},
	} {
		t.Run(fmt.Sprintf("%s, log reaches back: %v", c.end, c.reachesBack), func(t *testing.T) {
			t.Logf("ZAMOK_SEED=%d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			dir := t.TempDir()
			st := lived(t, dir, c.reachesBack, random)
			whole, err := contentsOf(st)
			require.NoError(t, err)
			files := pristineIn(t, dir)
			require.NoError(t, st.Close())
			if c.end == "closed" {
				files = pristineIn(t, dir)
			}
			restore := func() {
				for name, file := range files {
					info, err := os.Stat(filepath.Join(dir, name))
					if err == nil && info.Size() == file.size && info.ModTime().Equal(file.seen) {
						continue
					}
					file.seen, err = file.write(filepath.Join(dir, name))
					require.NoError(t, err)
					files[name] = file
				}
			}
			restore()
			names := slices.Sorted(func(yield func(string) bool) {
				for name := range files {
					if !yield(name) {
						return
					}
				}
			})
			count := fates{}
			for range times {
				name := names[random.IntN(len(names))]
				if random.IntN(3) == 0 { // the log is the largest
					name = names[slices.IndexFunc(names,
						func(name string) bool { return strings.HasSuffix(name, segmentSuffix) })]
				}
				damaged, what := files[name].damage(random)
				_, err := damaged.write(filepath.Join(dir, name))
				require.NoError(t, err)
				judge(t, &count, dir, name, what, whole)
				if t.Failed() {
					return
				}
				require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
				restore()
			}
			t.Logf("%+v", count)
			assert.Greater(t, count.refused, times/10)
			assert.Positive(t, count.harmless)
			assert.LessOrEqual(t, count.torn, times/4)
			if c.reachesBack {
				assert.Positive(t, count.older)
			} else {
				assert.Zero(t, count.older,
					"another snapshot was taken, and something is missing then")
			}
			assert.Equal(t, c.end == "killed", count.torn > 0)
		})
	}
}

// judge opens a damaged directory.
func judge(t *testing.T, count *fates, dir, name, what string, whole contents) {
	var fatal error
	st, err := Open(Config{NodeID: "n1", Dir: dir,
		Fatal: func(err error) { fatal = errors.Join(fatal, err) }})
	if err != nil {
		count.refused++
		assert.ErrorIs(t, err, ErrDamaged, "%s: %s", name, what)
		named := filepath.Join(dir, name)
		if strings.HasSuffix(name, segmentSuffix) && !strings.Contains(err.Error(), named) {
			named = filepath.Join(dir, logName) + ":" // of more than one segment
		}
		assert.ErrorContains(t, err, named, "%s: %s", name, what)
		return
	}
	missing := st.Tail().Owed
	found, err := contentsOf(st)
	assert.NoError(t, errors.Join(err, fatal, st.Close()), "%s: %s", name, what)
	switch {
	case assert.ObjectsAreEqual(whole, found):
		count.harmless++
	case strings.HasPrefix(name, "snapshots/"):
		// Another one is in its place, and the log reaches back to it.
		assert.Equal(t, whole.entries, found.entries, "%s: %s", name, what)
		assert.Len(t, found.snapshots, 1, "%s: %s", name, what)
		count.older++
	case strings.HasSuffix(name, segmentSuffix):
		// The last append may have been torn, or acknowledged: the store says up to where, or that
		// it does not know.
		length := len(found.entries)
		assert.GreaterOrEqual(t, length, len(whole.entries)-3, "%s: %s", name, what)
		assert.GreaterOrEqual(t, missing.Index, whole.first+uint64(len(whole.entries))-1, "%s: %s",
			name, what)
		found.entries = append(found.entries, whole.entries[min(length, len(whole.entries)):]...)
		assert.Equal(t, whole, found, "%s: %s", name, what)
		count.torn++
	default:
		assert.Equal(t, whole, found, "%s: %s", name, what)
	}
}
