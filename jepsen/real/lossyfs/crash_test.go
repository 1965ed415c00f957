package main

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// L1: with some, pages fall back each for itself, and the same seed does the same.
func TestCrashKeepsSome(t *testing.T) {
	t.Parallel()
	const pages = 64
	var first string
	for range 2 {
		l := mountForTest(t)
		f := l.open("f")
		l.write(f, strings.Repeat("a", pages*pageSize), 0)
		require.NoError(t, f.Sync())
		l.syncDir(".")
		l.write(f, strings.Repeat("b", pages*pageSize), 0)
		lost := l.reboot("some", 7)
		require.Equal(t, pages, lost.Pages+lost.KeptPages)
		require.NotZero(t, lost.KeptPages)
		require.Equal(t, 1, lost.Files)

		got, err := os.ReadFile(l.path("f"))
		require.NoError(t, err)
		shown := ""
		for n := range pages {
			whole := string(got[n*pageSize : (n+1)*pageSize])
			require.Equal(t, strings.Repeat(whole[:1], pageSize), whole)
			shown += whole[:1]
		}
		require.Equal(t, lost.Pages, strings.Count(shown, "a"))
		require.NotContains(t, shown, strings.Repeat("b", lost.KeptPages)) // no order
		if first == "" {
			first = shown
		}
		require.Equal(t, first, shown)
	}
}

// With all, a crash is a kill of the processes only.
func TestCrashKeepsAll(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	l.write(l.open("f"), "a", 3*pageSize)
	lost := l.reboot("all", 1)
	require.Equal(t, CrashLoss{KeptPages: 1, KeptNames: 1}, lost)
	l.requireContent("f", strings.Repeat("\x00", 3*pageSize)+"a")
}

// L2 with some: a beginning of the changes is kept.
func TestCrashKeepsFirstNames(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	for seed := range 8 {
		for n := range 10 {
			l.open(fmt.Sprintf("%d-%d", seed, n))
		}
		lost := l.reboot("some", seed)
		require.Equal(t, 10, lost.Names+lost.KeptNames)
		for n := range 10 {
			_, err := os.Stat(l.path(fmt.Sprintf("%d-%d", seed, n)))
			require.Equal(t, n < lost.KeptNames, err == nil, "seed %d, file %d: %v", seed, n, err)
		}
		l.syncDir(".")
	}
}

// model is what POSIX promises of a tree of folders one deep, in the plainest words: what was there when
// it was flushed last. Files are numbered, because names are not what they are.
type model struct {
	names   map[string]map[string]int // by folder: what is where
	synced  map[string]map[string]int // the same at the folder's last flush
	made    int                       // files ever
	now     map[int]string
	flushed map[int]string
}

// TestRandomCrashes makes changes at random, and crashes. After it all is as the model has it.
func TestRandomCrashes(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	m := &model{
		names:  map[string]map[string]int{"a": {}, "b": {}},
		synced: map[string]map[string]int{"a": {}, "b": {}},
		now:    map[int]string{}, flushed: map[int]string{},
	}
	require.NoError(t, os.Mkdir(l.path("a"), 0o700))
	require.NoError(t, os.Mkdir(l.path("b"), 0o700))
	l.syncDir(".")
	for crash := range 40 {
		did := ""
		for range 1 + dice.IntN(60) {
			did += m.step(t, l, dice) + "\n"
		}
		lost := l.reboot("nothing", 1)
		for dir := range m.names {
			m.names[dir] = maps.Clone(m.synced[dir])
		}
		m.now = maps.Clone(m.flushed)
		require.Equal(t, m.shown(), readTree(t, l.dir), "crash %d lost %+v after\n%s", crash, lost, did)
	}
}

// step makes one change, and says which.
func (m *model) step(t *testing.T, l *mountedDisk, dice *rand.Rand) string {
	dir, name := []string{"a", "b"}[dice.IntN(2)], fmt.Sprint(dice.IntN(4))
	at := path.Join(dir, name)
	id, there := m.names[dir][name]
	switch what := dice.IntN(10); {
	case what == 0:
		l.syncDir(dir)
		m.synced[dir] = maps.Clone(m.names[dir])
		return "flush " + dir
	case !there:
		m.made++
		id = m.made
		l.open(at).Close()
		m.names[dir][name], m.now[id], m.flushed[id] = id, "", ""
		return "make " + at
	case what == 1:
		require.NoError(t, os.Remove(l.path(at)))
		delete(m.names[dir], name)
		return "remove " + at
	case what == 2:
		to := fmt.Sprint(dice.IntN(4))
		require.NoError(t, os.Rename(l.path(at), l.path(path.Join(dir, to))))
		delete(m.names[dir], name)
		m.names[dir][to] = id
		return "move " + at + " to " + to
	}
	return m.writeStep(t, l, at, id, dice)
}

func (m *model) writeStep(t *testing.T, l *mountedDisk, at string, id int, dice *rand.Rand) string {
	f := l.open(at)
	defer f.Close()
	switch dice.IntN(4) {
	case 0:
		require.NoError(t, f.Sync())
		m.flushed[id] = m.now[id]
		return "flush " + at
	case 1:
		size := dice.IntN(5 * pageSize)
		require.NoError(t, f.Truncate(int64(size)))
		text := m.now[id] + strings.Repeat("\x00", 5*pageSize)
		m.now[id] = text[:size]
		return fmt.Sprintf("cut %s at %d", at, size)
	}
	off, text := dice.IntN(4*pageSize), strings.Repeat(string(rune('a'+dice.IntN(26))), 1+dice.IntN(2*pageSize))
	l.write(f, text, int64(off))
	old := m.now[id]
	whole := []byte(old + strings.Repeat("\x00", max(0, off+len(text)-len(old))))
	copy(whole[off:], text)
	m.now[id] = string(whole)
	return fmt.Sprintf("write %d bytes at %d of %s", len(text), off, at)
}

// shown is a tree in short: for each file its length and where its bytes change.
func (m *model) shown() []string {
	var all []string
	for dir, names := range m.names {
		for name, id := range names {
			all = append(all, line(path.Join(dir, name), m.now[id]))
		}
	}
	slices.Sort(all)
	return all
}

func readTree(t *testing.T, root string) (all []string) {
	require.NoError(t, filepath.WalkDir(root, func(p string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		name, _ := filepath.Rel(root, p)
		all = append(all, line(name, string(text)))
		return err
	}))
	slices.Sort(all)
	return all
}

func line(name, text string) string {
	runs := ""
	for i := range len(text) {
		if i == 0 || text[i] != text[i-1] {
			runs += fmt.Sprintf(" %d:%q", i, text[i])
		}
	}
	return fmt.Sprintf("%s %d bytes%s", name, len(text), runs)
}

// A folder that was removed comes back with what was in it, and if it is gone for good, all of it is.
func TestRemovedFolders(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	made := func() {
		require.NoError(t, os.Mkdir(l.path("d"), 0o700))
		f := l.open("d/f")
		l.write(f, "a", 0)
		require.NoError(t, f.Sync())
		l.syncDir("d")
		l.syncDir(".")
	}
	made()
	require.NoError(t, os.RemoveAll(l.path("d")))
	require.Equal(t, 2, l.stats().Names)
	require.Equal(t, 2, l.reboot("nothing", 1).Names)
	l.requireContent("d/f", "a")

	require.NoError(t, os.RemoveAll(l.path("d")))
	l.syncDir(".")
	require.Zero(t, l.stats().Names)
	require.Zero(t, l.reboot("nothing", 1))
	require.NoDirExists(t, l.path("d"))

	made() // under another name when it is written to, and when the crash comes
	require.NoError(t, os.Rename(l.path("d"), l.path("e")))
	l.open("e/g")
	l.syncDir(".")
	require.Equal(t, CrashLoss{Names: 1}, l.reboot("nothing", 1))
	l.requireContent("e/f", "a")
	require.NoFileExists(t, l.path("e/g"))
}
