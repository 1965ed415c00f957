package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hangDuration is how long a write must not end to count as hanging.
const hangDuration = 100 * time.Millisecond

// pageSize is what lossyfs takes a disk to write whole or not at all.
const pageSize = 4096

// pool has the disks of all tests.
var (
	pool    *Pool
	poolDir string
	errPool error // of Open
)

func TestMain(m *testing.M) {
	if err := Isolate(); err != nil {
		fmt.Println(err) // and Open fails
	}
	var err error
	if poolDir, err = os.MkdirTemp("", "disks"); err != nil {
		panic(err)
	}
	pool, errPool = Open(context.Background(), poolDir)
	code := m.Run()
	if err := os.RemoveAll(poolDir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// testDisk is a lossy disk in a test, and dice.
type testDisk struct {
	*Disk
	*require.Assertions
	*rand.Rand
}

// newTestDisk mounts the disk of a test, which runs beside others from here on.
func newTestDisk(t *testing.T) *testDisk {
	t.Helper()
	t.Parallel()
	if errors.Is(errPool, ErrUnsupported) {
		fmt.Printf("SKIPPED %s: %v\n", t.Name(), errPool)
		t.Skip("needs root, /dev/fuse and the go command")
	}
	require.NoError(t, errPool)
	d, err := pool.Add(fmt.Sprint(t.Name(), rand.Uint64()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return &testDisk{d, require.New(t), rand.New(rand.NewPCG(seed, 0))}
}

func (l *testDisk) set(f Faults) { l.NoError(l.SetFaults(f)) }

// reboot is a crash, which takes everything or, with a seed, some of it; then the machine is up
// again.
func (l *testDisk) reboot(seed uint64) CrashLoss {
	lost, err := l.Crash(seed)
	l.NoError(errors.Join(err, l.Mount()))
	return lost
}

func (l *testDisk) path(name string) string { return filepath.Join(l.Dir, name) }

// open opens a file until it is collected.
func (l *testDisk) open(name string) *os.File {
	f, err := os.OpenFile(l.path(name), os.O_RDWR|os.O_CREATE, 0o600)
	l.NoError(err)
	return f
}

func (l *testDisk) syncDir(name string) {
	f, err := os.Open(l.path(name))
	l.NoError(errors.Join(err, f.Sync(), f.Close()))
}

func (l *testDisk) write(f *os.File, text string, off int64) {
	_, err := f.WriteAt([]byte(text), off)
	l.NoError(err)
}

// flushed makes a file with a content, of which nothing is lost in a crash.
func (l *testDisk) flushed(name, content string) *os.File {
	f := l.open(name)
	l.write(f, content, 0)
	l.NoError(f.Sync())
	l.syncDir(path.Dir(name))
	return f
}

func (l *testDisk) requireContent(name, text string) {
	got, err := os.ReadFile(l.path(name))
	l.NoError(err)
	l.Equal(text, string(got))
}

// L3: a flush that failed is never made good by a later one.
func TestFailedFlushDropsItsPages(t *testing.T) {
	l := newTestDisk(t)
	f := l.flushed("f", strings.Repeat("a", 2*pageSize))
	l.write(f, strings.Repeat("b", 2*pageSize), 0)
	l.set(Faults{FailFsync: true})
	l.ErrorIs(f.Sync(), syscall.EIO)
	l.NoError(f.Sync())
	l.write(f, "c", 0)
	l.NoError(f.Sync())

	l.reboot(0)
	l.requireContent("f", "c"+strings.Repeat("b", pageSize-1)+strings.Repeat("a", pageSize))
}

// One operation fails, or every flush takes longer.
func TestFailures(t *testing.T) {
	l := newTestDisk(t)
	f := l.open("f")
	l.write(f, "a", 0)
	l.set(Faults{FailWrite: true})
	_, err := f.WriteAt([]byte("b"), 0)
	l.ErrorIs(err, syscall.EIO)
	l.requireContent("f", "a")
	l.write(f, "c", 0)
	l.set(Faults{FailWrite: true})
	_, err = os.Create(l.path("g"))
	l.ErrorIs(err, syscall.EIO)
	l.set(Faults{FailFsync: true})
	l.set(Faults{})
	l.NoError(f.Sync())
	l.requireContent("f", "c")
	l.NoFileExists(l.path("g"))

	const slow = 100 * time.Millisecond
	l.set(Faults{FsyncDelay: slow})
	began := time.Now()
	l.NoError(f.Sync())
	l.GreaterOrEqual(time.Since(began), slow)
}

// What hangs lands when the disk continues; reads do not hang. A crash ends what hangs without
// effect.
func TestStall(t *testing.T) {
	l := newTestDisk(t)
	f := l.flushed("f", "a")
	hanging := func() chan error {
		l.set(Faults{Stall: true})
		done := make(chan error, 1)
		go func() {
			_, err := f.WriteAt([]byte("b"), 0)
			done <- err
		}()
		l.Never(func() bool { return len(done) > 0 }, hangDuration, time.Millisecond)
		_, err := os.ReadDir(l.Dir)
		l.NoError(err)
		return done
	}
	done := hanging()
	l.set(Faults{})
	l.NoError(<-done)
	l.requireContent("f", "b")

	done = hanging()
	_, err := l.Crash(0)
	l.NoError(err)
	l.ErrorIs(<-done, syscall.EIO)
	_, err = os.Stat(l.path("f"))
	l.ErrorIs(err, syscall.EIO)
	l.ErrorContains(l.SetFaults(Faults{}), "has crashed; nothing was changed")
	l.NoError(l.Mount())
	l.requireContent("f", "a")
	_, err = f.WriteAt([]byte("of the former life"), 0)
	l.ErrorIs(err, syscall.EIO)
	l.requireContent("f", "a")
}

// bbolt writes with pwrite and reads through a map, which must show the same.
func TestMmapSeesWrites(t *testing.T) {
	l := newTestDisk(t)
	f := l.open("f")
	l.NoError(f.Truncate(64 * pageSize))
	l.NoError(f.Sync())
	l.syncDir(".")
	mapped := func(f *os.File) []byte {
		view, err := unix.Mmap(int(f.Fd()), 0, 128*pageSize, unix.PROT_READ, unix.MAP_SHARED)
		l.NoError(err)
		t.Cleanup(func() { l.NoError(unix.Munmap(view)) })
		return view
	}
	view := mapped(f)
	for n := range 64 {
		l.Zero(view[n*pageSize])
		l.write(f, fmt.Sprintf("%02d", n), int64(n*pageSize))
		l.Equal(fmt.Sprintf("%02d", n), string(view[n*pageSize:][:2]))
	}
	l.NoError(f.Truncate(128 * pageSize)) // the map is longer than the file was
	l.write(f, "far", 100*pageSize)
	l.Equal("far", string(view[100*pageSize:][:3]))

	l.reboot(0)
	l.requireContent("f", string(make([]byte, 64*pageSize)))
	l.Equal(make([]byte, 64*pageSize), mapped(l.open("f"))[:64*pageSize])
}

// L1: with some, pages fall back each for itself, in no order, and the same seed does the same.
func TestCrashKeepsSome(t *testing.T) {
	l := newTestDisk(t)
	const pages = 64
	var shown [2]string // a letter for each page
	for i := range shown {
		name := fmt.Sprint(i)
		f := l.flushed(name, strings.Repeat("a", pages*pageSize))
		l.write(f, strings.Repeat("b", pages*pageSize), 0)
		lost := l.reboot(7)
		got, err := os.ReadFile(l.path(name))
		l.NoError(err)
		for page := range slices.Chunk(got, pageSize) {
			l.Equal(strings.Repeat(string(page[:1]), pageSize), string(page))
			shown[i] += string(page[:1])
		}
		kept := strings.Count(shown[i], "b")
		l.Equal(CrashLoss{Pages: pages - kept, KeptPages: kept, Files: 1}, lost)
		l.NotZero(kept)
		l.NotContains(shown[i], strings.Repeat("b", kept))
	}
	l.Equal(shown[0], shown[1])
}

// L2 with some: a beginning of the changes is kept.
func TestCrashKeepsFirstNames(t *testing.T) {
	l := newTestDisk(t)
	for seed := range uint64(8) {
		for n := range 10 {
			l.open(fmt.Sprintf("%d-%d", seed, n))
		}
		lost := l.reboot(1 + seed)
		l.Equal(10, lost.Names+lost.KeptNames)
		for n := range 10 {
			_, err := os.Stat(l.path(fmt.Sprintf("%d-%d", seed, n)))
			require.Equal(t, n < lost.KeptNames, err == nil, "seed %d, file %d: %v", seed, n, err)
		}
		l.syncDir(".")
	}
}

// model is what POSIX promises of a tree of folders one deep, in the plainest words: what is where,
// by folder, and what was there when the folder was flushed last.
type model struct {
	names, synced map[string]map[string]*content
}

// content is that of a file, whatever its name is.
type content struct{ now, flushed string }

// TestRandomCrashes makes changes at random, and crashes. After it all is as the model has it.
func TestRandomCrashes(t *testing.T) {
	l := newTestDisk(t)
	m := &model{map[string]map[string]*content{"a": {}, "b": {}},
		map[string]map[string]*content{"a": {}, "b": {}}}
	l.NoError(errors.Join(os.Mkdir(l.path("a"), 0o700), os.Mkdir(l.path("b"), 0o700)))
	l.syncDir(".")
	for crash := range 40 {
		did := ""
		for range 1 + l.IntN(60) {
			did += m.step(l) + "\n"
		}
		lost := l.reboot(0)
		want := map[string]string{}
		for dir := range m.names {
			m.names[dir] = maps.Clone(m.synced[dir])
			for name, f := range m.names[dir] {
				f.now = f.flushed
				want[path.Join(dir, name)] = shorten(f.now)
			}
		}
		l.Equal(want, readTree(l), "crash %d lost %+v after\n%s", crash, lost, did)
	}
}

// step makes one change, and describes it.
func (m *model) step(l *testDisk) string {
	dir, name := []string{"a", "b"}[l.IntN(2)], fmt.Sprint(l.IntN(4))
	at, to := path.Join(dir, name), fmt.Sprint(l.IntN(4))
	f := m.names[dir][name]
	switch what := l.IntN(10); {
	case what == 0:
		l.syncDir(dir)
		m.synced[dir] = maps.Clone(m.names[dir])
		return "flush " + dir
	case f == nil:
		l.open(at).Close()
		m.names[dir][name] = &content{}
		return "make " + at
	case what == 1:
		l.NoError(os.Remove(l.path(at)))
		delete(m.names[dir], name)
		return "remove " + at
	case what == 2:
		l.NoError(os.Rename(l.path(at), l.path(path.Join(dir, to))))
		delete(m.names[dir], name)
		m.names[dir][to] = f
		return "move " + at + " to " + to
	}
	return f.step(l, at)
}

func (c *content) step(l *testDisk, at string) string {
	f := l.open(at)
	defer f.Close()
	switch l.IntN(5) {
	case 0:
		l.NoError(f.Sync())
		c.flushed = c.now
		return "flush " + at
	case 1:
		size := l.IntN(5 * pageSize)
		l.NoError(f.Truncate(int64(size)))
		c.now = (c.now + strings.Repeat("\x00", 5*pageSize))[:size]
		return fmt.Sprintf("cut %s at %d", at, size)
	case 2:
		l.NoError(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 5*pageSize))
		return "take room for " + at
	}
	off, text := l.IntN(4*pageSize),
		strings.Repeat(string(rune('a'+l.IntN(26))), 1+l.IntN(2*pageSize))
	l.write(f, text, int64(off))
	whole := []byte(c.now + strings.Repeat("\x00", max(0, off+len(text)-len(c.now))))
	copy(whole[off:], text)
	c.now = string(whole)
	return fmt.Sprintf("write %d bytes at %d of %s", len(text), off, at)
}

// readTree reads the files of all folders, in short.
func readTree(l *testDisk) map[string]string {
	all := map[string]string{}
	names, err := fs.Glob(os.DirFS(l.Dir), "*/*")
	l.NoError(err)
	for _, name := range names {
		text, err := os.ReadFile(l.path(name))
		l.NoError(err)
		all[name] = shorten(string(text))
	}
	return all
}

// shorten says how long a text is and where its bytes change.
func shorten(text string) string {
	runs := fmt.Sprintf("%d bytes", len(text))
	for i := range len(text) {
		if i == 0 || text[i] != text[i-1] {
			runs += fmt.Sprintf(" %d:%q", i, text[i])
		}
	}
	return runs
}

// A folder that was removed comes back with what was in it, and if it is gone for good, all of it
// is.
func TestRemovedFolders(t *testing.T) {
	l := newTestDisk(t)
	made := func() {
		l.NoError(os.Mkdir(l.path("d"), 0o700))
		l.flushed("d/f", "a")
		l.syncDir(".")
	}
	made()
	l.NoError(os.RemoveAll(l.path("d")))
	l.Equal(2, l.reboot(0).Names)
	l.requireContent("d/f", "a")

	l.NoError(os.RemoveAll(l.path("d")))
	l.syncDir(".")
	l.Zero(l.reboot(0))
	l.NoDirExists(l.path("d"))

	made() // under another name when it is written to, and when the crash comes
	l.NoError(os.Rename(l.path("d"), l.path("e")))
	l.open("e/g")
	l.syncDir(".")
	l.Equal(CrashLoss{Names: 1}, l.reboot(0))
	l.requireContent("e/f", "a")
	l.NoFileExists(l.path("e/g"))
}

func TestFullDisk(t *testing.T) {
	l := newTestDisk(t)
	f := l.open("f")
	l.write(f, "a", 0)
	for range 2 {
		l.set(Faults{Full: true})
		l.write(f, "b", 1) // this page has its room
		_, err := f.WriteAt([]byte("a"), pageSize)
		l.ErrorIs(err, syscall.ENOSPC)
		l.ErrorIs(unix.Fallocate(int(f.Fd()), 0, pageSize, 1), syscall.ENOSPC)
		var st unix.Statfs_t
		l.NoError(unix.Statfs(l.Dir, &st))
		l.Zero(st.Bavail)
		l.set(Faults{})
	}
	l.write(f, strings.Repeat("c", 1<<20), 0)
	l.set(Faults{Full: true})
	l.NoError(f.Truncate(0))
	l.write(f, "what was given back is free", 100*pageSize)
}

// D1: nothing that is mounted is seen outside, so nothing outlives a run that is killed.
func TestMountsAreNotSeenOutside(t *testing.T) {
	l := newTestDisk(t)
	inside, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	outside, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", os.Getppid()))
	require.NoError(t, err)
	require.Contains(t, string(inside), l.Dir+" ")
	require.NotContains(t, string(outside), l.Dir+" ")
}
