package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// testTimeout is how long something may take on a busy machine.
const testTimeout = time.Minute

// pool is opened once: to build lossyfs takes longer than most tests.
var pool = sync.OnceValues(func() (*Pool, error) {
	dir, err := os.MkdirTemp("", "disks")
	if err != nil {
		return nil, err
	}
	s, err := Open(context.Background(), dir)
	closePool = func() error {
		if s == nil {
			return os.RemoveAll(dir)
		}
		return errors.Join(s.Close(), os.RemoveAll(dir))
	}
	return s, err
})

var closePool = func() error { return nil }

func TestMain(m *testing.M) {
	code := m.Run()
	if err := closePool(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func openPool(t *testing.T) *Pool {
	t.Helper()
	s, err := pool()
	if errors.Is(err, ErrUnsupported) {
		fmt.Printf("SKIPPED %s: %v\n", t.Name(), err)
		t.Skip("needs root, /dev/fuse and the go command")
	}
	require.NoError(t, err)
	return s
}

func TestSmallDisk(t *testing.T) {
	t.Parallel()
	d, err := openPool(t).AddSmall(t.Name()+".backing", 4<<20)
	require.NoError(t, err)
	lossy, err := openPool(t).AddLossy(t.Name(), d)
	require.NoError(t, err)
	f, err := os.Create(filepath.Join(lossy.Dir(), "f"))
	require.NoError(t, err)
	defer f.Close()
	_, err = f.Write(make([]byte, 4<<10))
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, d.Fill())
		_, err = f.Write([]byte("a"))
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.NoError(t, d.Empty())
	}
	_, err = f.Write(make([]byte, 1<<20))
	require.NoError(t, err)
}

// abandonedDirVariable tells the test binary to be a run that will be killed.
const abandonedDirVariable = "ZAMOK_DISK_TEST_ABANDONED"

// D1, D2: a run that is killed leaves nothing mounted once the next has begun, even if its lossyfs is killed
// too.
func TestKilledRunIsCleanedUp(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(abandonedDirVariable); dir != "" {
		abandon(t, dir)
		return
	}
	dir := t.TempDir()
	require.NoError(t, os.Symlink(openPool(t).program, filepath.Join(dir, "lossyfs")))
	run := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledRunIsCleanedUp$")
	run.Env = append(os.Environ(), abandonedDirVariable+"="+dir)
	run.Stderr = os.Stderr
	said, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	var killed int
	_, err = fmt.Fscanf(said, "mounted %d\n", &killed)
	require.NoError(t, err)
	mounted := func() (names []string) {
		text, err := os.ReadFile("/proc/self/mountinfo")
		require.NoError(t, err)
		for _, name := range []string{"ends", "killed", "small"} {
			if strings.Contains(string(text), filepath.Join(dir, name)+" ") {
				names = append(names, name)
			}
		}
		return names
	}
	require.Equal(t, []string{"ends", "killed", "small"}, mounted())

	require.NoError(t, syscall.Kill(killed, syscall.SIGKILL))
	require.NoError(t, run.Process.Kill())
	require.Error(t, run.Wait())
	ended := func() bool { return len(mounted()) <= 2 }
	require.Eventually(t, ended, testTimeout, 10*time.Millisecond, "a lossyfs goes with its run")

	require.NoError(t, unmountDeadRuns())
	require.Empty(t, mounted())
}

func abandon(t *testing.T, dir string) {
	s := &Pool{dir: dir, program: filepath.Join(dir, "lossyfs")}
	var err error
	s.run, err = ownRun()
	require.NoError(t, err)
	_, err = s.AddLossy("ends", nil)
	require.NoError(t, err)
	d, err := s.AddLossy("killed", nil)
	require.NoError(t, err)
	_, err = s.AddSmall("small", 1<<20)
	require.NoError(t, err)
	fmt.Println("mounted", d.program.Process.Pid)
	for { // until it is killed: pause returns with every signal that is handled, as that of a child's end
		unix.Pause()
	}
}

func TestUnescapeMountPath(t *testing.T) {
	t.Parallel()
	require.Equal(t, "/with space/and \\", unescapeMountPath(`/with\040space/and\040\134`))
}

func TestNamesOfRuns(t *testing.T) {
	t.Parallel()
	own, err := ownRun()
	require.NoError(t, err)
	require.False(t, runIsDead(own))
	require.True(t, runIsDead(own+"0"), "another process with this pid")
	require.True(t, runIsDead(runPrefix+"4194305-1"), "a pid that no process can have")
	require.False(t, runIsDead("tmpfs"))
}
