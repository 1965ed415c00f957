package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// testTimeout is how long something may take on a busy machine.
const testTimeout = time.Minute

// serveVariable tells the test binary to be lossyfs.
const serveVariable = "LOSSYFS_TEST_BACKING"

func TestMain(m *testing.M) {
	if backing := os.Getenv(serveVariable); backing != "" {
		if err := run(backing, os.Args[1], "lossyfs-test", os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// mountedDisk is a mounted disk in a process of its own: a program must not serve the files that it opens.
type mountedDisk struct {
	t       *testing.T
	dir     string
	orders  *os.File
	answers *bufio.Scanner
}

func mountForTest(t *testing.T) *mountedDisk {
	t.Helper()
	l := &mountedDisk{t: t, dir: t.TempDir()}
	if err := canMount(l.dir); err != nil {
		fmt.Printf("SKIPPED %s: a FUSE file system needs root (uid %d), /dev/fuse, and to mount: %v\n", t.Name(), os.Getuid(), err)
		t.Skip("needs root and /dev/fuse")
	}
	program := exec.Command(os.Args[0], l.dir)
	program.Env = append(os.Environ(), serveVariable+"="+t.TempDir())
	program.Stderr = os.Stderr
	in, orders, err := os.Pipe()
	require.NoError(t, err)
	program.Stdin, l.orders = in, orders
	answers, err := program.StdoutPipe()
	require.NoError(t, err)
	l.answers = bufio.NewScanner(answers)
	require.NoError(t, program.Start())
	require.NoError(t, in.Close())
	t.Cleanup(func() {
		require.NoError(t, orders.Close())
		require.NoError(t, program.Wait())
	})
	require.Equal(t, "", l.reply())
	return l
}

// canMount tries what lossyfs needs; in a container root often may not.
func canMount(dir string) error {
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := unix.Mount("probe", dir, "tmpfs", 0, "size=1m"); err != nil {
		return errors.Join(err, fuse.Close())
	}
	return errors.Join(unix.Unmount(dir, unix.MNT_DETACH), fuse.Close())
}

func (l *mountedDisk) command(format string, args ...any) string {
	l.t.Helper()
	_, err := fmt.Fprintf(l.orders, format+"\n", args...)
	require.NoError(l.t, err)
	return l.reply()
}

func (l *mountedDisk) reply() string {
	l.t.Helper()
	require.True(l.t, l.answers.Scan(), "lossyfs has ended")
	said, ok := strings.CutPrefix(l.answers.Text(), "ok")
	require.True(l.t, ok, l.answers.Text())
	return strings.TrimSpace(said)
}

// reboot is a crash, and the machine up again.
func (l *mountedDisk) reboot(keep string, seed int) (lost CrashLoss) {
	l.t.Helper()
	require.NoError(l.t, json.Unmarshal([]byte(l.command("crash %s %d", keep, seed)), &lost))
	l.command("up")
	return lost
}

func (l *mountedDisk) stats() (s Stats) {
	l.t.Helper()
	require.NoError(l.t, json.Unmarshal([]byte(l.command("stats")), &s))
	return s
}

func (l *mountedDisk) path(name string) string { return filepath.Join(l.dir, name) }

func (l *mountedDisk) open(name string) *os.File {
	l.t.Helper()
	f, err := os.OpenFile(l.path(name), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { f.Close() })
	return f
}

func (l *mountedDisk) syncDir(name string) {
	l.t.Helper()
	f, err := os.Open(l.path(name))
	require.NoError(l.t, errors.Join(err, f.Sync(), f.Close()))
}

func (l *mountedDisk) write(f *os.File, text string, off int64) {
	l.t.Helper()
	_, err := f.WriteAt([]byte(text), off)
	require.NoError(l.t, err)
}

func (l *mountedDisk) requireContent(name, text string) {
	l.t.Helper()
	got, err := os.ReadFile(l.path(name))
	require.NoError(l.t, err)
	require.Equal(l.t, text, string(got))
}

// L3: a flush that failed is never made good by a later one.
func TestFailedFlushDropsItsPages(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	f := l.open("f")
	l.write(f, strings.Repeat("a", 2*pageSize), 0)
	require.NoError(t, f.Sync())
	l.syncDir(".")

	l.write(f, strings.Repeat("b", 2*pageSize), 0)
	l.command("fail fsyncs 1")
	require.ErrorIs(t, f.Sync(), syscall.EIO)
	require.NoError(t, f.Sync())
	l.write(f, "c", 0)
	require.NoError(t, f.Sync())

	l.reboot("nothing", 1)
	l.requireContent("f", "c"+strings.Repeat("b", pageSize-1)+strings.Repeat("a", pageSize))
}

func TestFailures(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	f := l.open("f")
	l.write(f, "a", 0)
	l.command("fail writes 1")
	_, err := f.WriteAt([]byte("b"), 0)
	require.ErrorIs(t, err, syscall.EIO)
	l.requireContent("f", "a")
	l.write(f, "c", 0)
	l.command("fail writes 0")
	for range 3 {
		_, err = f.WriteAt([]byte("d"), 0)
		require.ErrorIs(t, err, syscall.EIO)
	}
	_, err = os.Create(l.path("g"))
	require.ErrorIs(t, err, syscall.EIO)
	l.command("heal")
	require.NoError(t, f.Sync())

	l.command("fail reads 0")
	_, err = os.ReadFile(l.path("f")) // a fresh open reads the disk
	require.ErrorIs(t, err, syscall.EIO)
	l.command("heal")
	l.requireContent("f", "c")
	require.NoFileExists(t, l.path("g"))
}

// A full disk refuses what needs a block, and nothing else.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	f, room, hole := l.open("f"), l.open("room"), l.open("hole")
	l.write(f, "a", 0)
	require.NoError(t, unix.Fallocate(int(room.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 4*pageSize))
	require.NoError(t, hole.Truncate(4*pageSize))

	l.command("full")
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(l.dir, &st))
	require.Zero(t, st.Bavail)
	l.write(f, strings.Repeat("b", pageSize), 0)
	l.write(room, strings.Repeat("c", 4*pageSize), 0)
	for _, refused := range []*os.File{f, room, hole} {
		_, err := refused.WriteAt([]byte("d"), 4*pageSize-1)
		if refused == room {
			require.NoError(t, err)
			_, err = refused.WriteAt([]byte("d"), 4*pageSize)
		}
		require.ErrorIs(t, err, syscall.ENOSPC, refused.Name())
	}
	require.ErrorIs(t, os.Mkdir(l.path("new"), 0o700), syscall.ENOSPC)
	require.NoError(t, os.Rename(l.path("f"), l.path("g")))
	require.NoError(t, os.Remove(l.path("g")))

	l.command("roomy")
	l.write(hole, "d", 4*pageSize-1)
	require.NoError(t, unix.Statfs(l.dir, &st))
	require.NotZero(t, st.Bavail)
}

// What hangs lands when the disk continues; reads do not hang. A crash ends what hangs without effect.
func TestStall(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	f := l.open("f")
	l.write(f, "a", 0)
	require.NoError(t, f.Sync())
	l.syncDir(".")

	hanging := func() chan error {
		l.command("stall")
		done := make(chan error, 1)
		go func() {
			_, err := f.WriteAt([]byte("b"), 0)
			done <- err
		}()
		require.Eventually(t, func() bool { return l.stats().Hanging == 1 }, testTimeout, time.Millisecond)
		require.Empty(t, done)
		_, err := os.ReadDir(l.dir)
		require.NoError(t, err)
		return done
	}
	done := hanging()
	l.command("resume")
	require.NoError(t, <-done)
	l.requireContent("f", "b")

	done = hanging()
	l.command("crash nothing 1")
	require.ErrorIs(t, <-done, syscall.EIO)
	_, err := os.Stat(l.path("f"))
	require.ErrorIs(t, err, syscall.EIO)
	l.command("up")
	l.requireContent("f", "a")
	_, err = f.WriteAt([]byte("of the former life"), 0)
	require.ErrorIs(t, err, syscall.EIO)
	l.requireContent("f", "a")
}

func TestDelay(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	f := l.open("f")
	const slow = 100 * time.Millisecond
	l.command("delay 0s %v", slow)
	began := time.Now()
	l.write(f, "a", 0)
	require.NoError(t, f.Sync())
	require.GreaterOrEqual(t, time.Since(began), slow)
	l.command("heal")
	require.Zero(t, l.stats().Hanging)
}

// bbolt writes with pwrite and reads through a map, which must show the same.
func TestMmapSeesWrites(t *testing.T) {
	t.Parallel()
	l := mountForTest(t)
	f := l.open("f")
	require.NoError(t, f.Truncate(64*pageSize))
	require.NoError(t, f.Sync())
	l.syncDir(".")
	seen := func(f *os.File) []byte {
		view, err := unix.Mmap(int(f.Fd()), 0, 128*pageSize, unix.PROT_READ, unix.MAP_SHARED)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Munmap(view)) })
		return view
	}
	view := seen(f)
	for n := range 64 {
		require.Zero(t, view[n*pageSize])
		l.write(f, fmt.Sprintf("%02d", n), int64(n*pageSize))
		require.Equal(t, fmt.Sprintf("%02d", n), string(view[n*pageSize:][:2]))
	}
	require.NoError(t, f.Truncate(128*pageSize)) // the map is longer than the file was
	l.write(f, "far", 100*pageSize)
	require.Equal(t, "far", string(view[100*pageSize:][:3]))

	l.reboot("nothing", 1)
	info, err := os.Stat(l.path("f"))
	require.NoError(t, err)
	require.EqualValues(t, 64*pageSize, info.Size())
	require.Equal(t, make([]byte, 64*pageSize), seen(l.open("f"))[:64*pageSize])
}
