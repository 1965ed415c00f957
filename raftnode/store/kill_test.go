package store

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// victimDir makes the test binary the process to be killed.
const victimDir = "ZAMOK_STORE_TEST_DIR"

// What a killed process had reported as written is there (S2), and until it was
// killed no other process could open its directory (S7). A kill keeps what the kernel
// holds; that fsync is really asked for, TestFailedFlushEndsAllWriting shows.
func TestKilledProcessLosesNothing(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(victimDir); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	dir := t.TempDir()
	rounds := sized(3, 2, 1)
	var acknowledged uint64
	for range rounds {
		victim := exec.CommandContext(t.Context(), os.Args[0],
			"-test.run=^TestKilledProcessLosesNothing$", "-test.timeout=10m")
		victim.Env = append(os.Environ(), victimDir+"="+dir)
		victim.Stderr = os.Stderr
		written, err := victim.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, victim.Start())

		lines := bufio.NewScanner(written)
		for seen := 0; seen < 100 && lines.Scan(); seen++ {
			_, err := fmt.Sscanf(lines.Text(), "written %d", &acknowledged)
			require.NoError(t, err, lines.Text())
		}
		drained := make(chan struct{})
		go func() { // or the victim would stop at a full pipe
			defer close(drained)
			for lines.Scan() {
				fmt.Sscanf(lines.Text(), "written %d", &acknowledged)
			}
		}()
		_, err = Open(Config{NodeID: "n1", Dir: dir, Fatal: func(error) {}})
		assert.ErrorIs(t, err, ErrLocked)
		require.NoError(t, victim.Process.Kill())
		<-drained
		var killed *exec.ExitError
		require.ErrorAs(t, victim.Wait(), &killed)

		st := open(t, Config{Dir: dir})
		_, last := span(t, st.Logs())
		require.GreaterOrEqual(t, last, acknowledged)
		require.NoError(t, st.Close())
	}
	t.Logf("%d entries were acknowledged", acknowledged)
}

func writeUntilKilled(t *testing.T, dir string) {
	st, err := Open(Config{NodeID: "n1", Dir: dir,
		Fatal: func(err error) { fmt.Println(err); os.Exit(1) }})
	require.NoError(t, err)
	last, err := st.Logs().LastIndex()
	require.NoError(t, err)
	// Long, for a disk that is busy: who loses its test dies of the next word.
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		err := errors.Join(
			st.Votes().SetUint64([]byte(keyCurrentTerm), last+1),
			// segments get full
			st.Logs().StoreLogs([]*raft.Log{command(last+1, last+1, make([]byte, 64<<10))}))
		require.NoError(t, err)
		last++
		fmt.Println("written", last)
	}
}
