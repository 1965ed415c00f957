package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

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
	ended, err := Isolate()
	if ended != nil {
		os.Exit(ended.ExitCode())
	}
	if err != nil {
		fmt.Println(err) // openPool skips the tests
	}
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

// D1: nothing that is mounted is seen outside, so nothing outlives a run that is killed.
func TestMountsAreNotSeenOutside(t *testing.T) {
	t.Parallel()
	d, err := openPool(t).AddSmall(t.Name(), 1<<20)
	require.NoError(t, err)
	lossy, err := openPool(t).AddLossy(t.Name()+"-lossy", nil)
	require.NoError(t, err)
	inside, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	outside, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", os.Getppid()))
	require.NoError(t, err)
	for _, dir := range []string{d.Dir(), lossy.Dir()} {
		require.Contains(t, string(inside), dir+" ")
		require.NotContains(t, string(outside), dir+" ")
	}
}
