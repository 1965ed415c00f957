package store

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// writtenUpTo makes the test binary the process whose files can't grow beyond so many bytes.
const writtenUpTo = "ZAMOK_STORE_TEST_LIMIT"

// A process ends in the middle of making the files of a directory: none of them can grow beyond a
// limit, and the write that meets it is torn there. The next start makes the directory anew, and it
// does not count as damaged, neither then nor later.
func TestAFileThatIsTornWhileItIsMadeIsMadeAnew(t *testing.T) {
	t.Parallel()
	if limit := os.Getenv(writtenUpTo); limit != "" {
		makeUpTo(t, os.Getenv(victimDir), must(strconv.ParseUint(limit, 10, 64)))
		return
	}
	page := os.Getpagesize()
	torn := 0
	for _, limit := range []int{0, 512, page, 2*page - 1, 3 * page, 4*page - 1, 4 * page, 5 * page,
		6 * page, 7 * page, 8 * page, 9 * page, SegmentBytes - 1} {
		cfg := Config{Dir: filepath.Join(t.TempDir(), "data")}
		maker := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		maker.Env = append(os.Environ(), victimDir+"="+cfg.Dir,
			fmt.Sprintf("%s=%d", writtenUpTo, limit))
		if maker.Run() != nil {
			torn++
		}
		for last := range uint64(3) { // it lives on, too
			st, err := Open(Config{NodeID: "n1", Dir: cfg.Dir, Fatal: func(error) {}})
			require.NoError(t, err, "files of %d bytes, start %d", limit, last)
			_, found := span(t, st.Logs())
			require.Equal(t, last, found)
			fill(t, st, 1, last+1, last+1)
			require.NoError(t, st.Close())
		}
		assert.Empty(t, leftOver(t, cfg.Dir), "files of %d bytes", limit)
	}
	assert.Greater(t, torn, 5)
}

// makeUpTo makes a directory whose files can't grow beyond a limit.
func makeUpTo(t *testing.T, dir string, limit uint64) {
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}))
	st, err := Open(Config{NodeID: "n1", Dir: dir, Fatal: func(error) {}})
	require.NoError(t, err)
	require.NoError(t, st.Close())
}

// leftOver lists the files of a directory that were never finished.
func leftOver(t *testing.T, dir string) (names []string) {
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if strings.HasSuffix(path, newFileSuffix) {
			names = append(names, path)
		}
		return err
	}))
	return names
}

// Of many processes that make one directory at the same time one has it, and the others are
// refused.
func TestADirectoryIsMadeOnce(t *testing.T) {
	t.Parallel()
	for range 2 {
		dir := t.TempDir()
		var all sync.WaitGroup
		opened := make(chan *Store, 8)
		for range cap(opened) {
			all.Go(func() {
				st, err := Open(Config{NodeID: "n1", Dir: dir, Fatal: func(error) {}})
				if err != nil {
					assert.ErrorIs(t, err, ErrLocked)
					return
				}
				opened <- st
			})
		}
		all.Wait()
		close(opened)
		require.Len(t, opened, 1)
		st := <-opened
		fill(t, st, 1, 1, 5)
		require.NoError(t, st.Close())
		_, last := span(t, open(t, Config{Dir: dir}).Logs())
		require.EqualValues(t, 5, last)
		assert.Empty(t, leftOver(t, dir))
	}
}
