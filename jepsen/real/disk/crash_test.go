package disk

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// writer is a program that keeps a log, a vote and snapshots as a node does, on a disk that crashes.
type writer struct {
	program string
	disk    *Disk
	dice    *rand.Rand
}

// newWriter builds the program; with change, from a store with another text in place of some of its own.
func newWriter(t *testing.T, s *Shelf, from, to string) *writer {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	w := &writer{program: filepath.Join(t.TempDir(), "writer"), dice: rand.New(rand.NewPCG(seed, 0))}
	args := []string{"build", "-o", w.program}
	if from != "" {
		args = append(args, "-overlay", overlay(t, "../../../raftnode/store/dir.go", from, to))
	}
	build := exec.CommandContext(t.Context(), "go", append(args, "./testdata/writer")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	said, err := build.CombinedOutput()
	require.NoError(t, err, string(said))
	w.disk, err = s.Lossy(t.Name(), nil)
	require.NoError(t, err)
	return w
}

// overlay plants a bug in a copy of a file, and returns the map for go build.
func overlay(t *testing.T, path, from, to string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), from), "%q in %s: name the place where the bug is to be planted", from, path)
	planted := filepath.Join(t.TempDir(), "planted.go")
	require.NoError(t, os.WriteFile(planted, []byte(strings.Replace(string(text), from, to, 1)), 0o600))
	original, err := filepath.Abs(path)
	require.NoError(t, err)
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: planted}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(file, replace, 0o600))
	return file
}

func (w *writer) dir() string { return filepath.Join(w.disk.Dir(), "data") }

// life writes until at least so many entries are acknowledged, and the power fails. With kill, the process
// does not live to see it; otherwise it meets a disk that is gone. It returns the last entry that was acknowledged.
func (w *writer) life(t *testing.T, entries int, kill bool, keep Keep) (acknowledged uint64, lost Lost) {
	t.Helper()
	victim := exec.CommandContext(t.Context(), w.program, "write", w.dir())
	said, err := victim.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, victim.Start())
	enough, ended := make(chan struct{}), make(chan struct{})
	var last string
	go func() {
		defer close(ended)
		seen := 0
		for lines := bufio.NewScanner(said); lines.Scan(); {
			last = lines.Text()
			if _, err := fmt.Sscanf(last, "written %d", &acknowledged); err != nil {
				continue
			}
			if seen++; seen == entries {
				close(enough)
			}
		}
	}()
	select {
	case <-enough:
	case <-ended:
		require.Fail(t, "the writer has ended: "+last)
	}
	<-time.NewTimer(time.Duration(w.dice.IntN(int(40 * time.Millisecond)))).C // anywhere between two flushes
	if kill {
		require.NoError(t, victim.Process.Kill())
	}
	lost, err = w.disk.Crash(keep, w.dice.Uint64())
	require.NoError(t, err)
	<-ended
	require.Error(t, victim.Wait())
	require.NoError(t, w.disk.Up())
	return acknowledged, lost
}

// held asks what is left after a crash.
func (w *writer) held(t *testing.T) (last uint64, complaint string) {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), w.program, "check", w.dir()).CombinedOutput()
	if _, scan := fmt.Sscanf(string(said), "holds %d", &last); err != nil || scan != nil {
		return 0, fmt.Sprintf("%v: %s", err, said)
	}
	return last, ""
}

// What a node has acknowledged is there after a power failure, whenever it comes and whatever of the rest
// reached the disk (store's S1, S2, S6, S8, S10).
func TestPowerFailureLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWriter(t, opened(t), "", "")
	lives := 12
	if testing.Short() {
		lives = 4
	}
	var all Lost
	for life := range lives {
		require.NoError(t, w.disk.Delay(0, 5*time.Millisecond))
		keep := []Keep{KeepSome, KeepNothing}[life%2]
		acknowledged, lost := w.life(t, 10+w.dice.IntN(60), life%4 < 2, keep)
		all.Pages, all.KeptPages, all.Names = all.Pages+lost.Pages, all.KeptPages+lost.KeptPages, all.Names+lost.Names
		last, complaint := w.held(t)
		require.Empty(t, complaint, "life %d: %d entries were acknowledged, the crash took %+v", life, acknowledged, lost)
		require.GreaterOrEqual(t, last, acknowledged, "life %d: the crash took %+v", life, lost)
		t.Logf("life %d: %d acknowledged, %d there; the crash took %+v", life, acknowledged, last, lost)
	}
	require.NotZero(t, all.Pages, "no crash took anything, so this has shown nothing")
}

// The same with fsync switched off loses data, so the test above can fail.
func TestPowerFailureWithoutFsync(t *testing.T) {
	t.Parallel()
	w := newWriter(t, opened(t), "NoFreelistSync:", "NoSync: true, NoGrowSync: true, NoFreelistSync:")
	for life := range 5 {
		acknowledged, lost := w.life(t, 30, true, KeepNothing)
		last, complaint := w.held(t)
		if complaint != "" || last < acknowledged {
			t.Logf("life %d: %d acknowledged, %d there; the crash took %+v; %s", life, acknowledged, last, lost, complaint)
			return
		}
	}
	require.Fail(t, "5 power failures without fsync have lost nothing")
}
