package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pool is opened once: to build lossyfs takes longer than most tests.
var pool = sync.OnceValues(func() (*Pool, error) { return Open(context.Background(), poolDir) })

var poolDir string

func TestMain(m *testing.M) {
	if err := Isolate(); err != nil {
		fmt.Println(err) // openPool skips the tests
	}
	var err error
	if poolDir, err = os.MkdirTemp("", "disks"); err != nil {
		panic(err)
	}
	code := m.Run()
	p, err := pool()
	if err == nil {
		err = p.Close()
	} else if errors.Is(err, ErrUnsupported) {
		err = nil
	}
	if err := errors.Join(err, os.RemoveAll(poolDir)); err != nil {
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

func TestFullDisk(t *testing.T) {
	t.Parallel()
	l := newTestDisk(t)
	f := l.open("f")
	l.write(f, "a", 0)
	for range 2 {
		l.set(Faults{Full: true})
		l.write(f, "b", 1) // this page has its room
		_, err := f.WriteAt([]byte("a"), pageSize)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorIs(t, unix.Fallocate(int(f.Fd()), 0, pageSize, 1), syscall.ENOSPC)
		var st unix.Statfs_t
		require.NoError(t, unix.Statfs(l.Dir, &st))
		require.Zero(t, st.Bavail)
		l.set(Faults{})
	}
	l.write(f, strings.Repeat("c", 1<<20), 0)
	l.set(Faults{Full: true})
	require.NoError(t, f.Truncate(0))
	l.write(f, "what was given back is free", 100*pageSize)
}

// D1: nothing that is mounted is seen outside, so nothing outlives a run that is killed.
func TestMountsAreNotSeenOutside(t *testing.T) {
	t.Parallel()
	l := newTestDisk(t)
	inside, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	outside, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", os.Getppid()))
	require.NoError(t, err)
	require.Contains(t, string(inside), l.Dir+" ")
	require.NotContains(t, string(outside), l.Dir+" ")
}
