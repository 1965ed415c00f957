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

	"zamok/raftnode/store"
)

// writer is a program that keeps a log, a vote and snapshots as a node does, on a disk that crashes.
type writer struct {
	program string
	log     store.LogKind
	disk    *Disk
	dice    *rand.Rand
}

// newWriter builds the program; with change, from a store with another text in place of some of its own.
func newWriter(t *testing.T, log store.LogKind, from, to string) *writer {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := openPool(t)
	w := &writer{program: filepath.Join(t.TempDir(), "writer"), log: log, dice: rand.New(rand.NewPCG(seed, 0))}
	args := []string{"build", "-o", w.program}
	if from != "" {
		args = append(args, "-overlay", overlay(t, "../../../raftnode/store/boltfile.go", from, to))
	}
	build := exec.CommandContext(t.Context(), "go", append(args, "./testdata/writer")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	said, err := build.CombinedOutput()
	require.NoError(t, err, string(said))
	w.disk, err = s.Add(fmt.Sprint("writer-", seed))
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

func (w *writer) dir() string { return filepath.Join(w.disk.Dir, "data") }

// write starts the program, and waits until it has acknowledged this many entries and a moment longer. It ends by
// what is done next. The last acknowledged entry is known when ended is closed.
func (w *writer) write(t *testing.T, entries int) (victim *exec.Cmd, acknowledged *uint64, ended chan struct{}) {
	t.Helper()
	victim = exec.CommandContext(t.Context(), w.program, "write", w.dir(), string(w.log))
	said, err := victim.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, victim.Start())
	acknowledged, ended = new(uint64), make(chan struct{})
	enough := make(chan struct{})
	var last string
	go func() {
		defer close(ended)
		seen := 0
		for lines := bufio.NewScanner(said); lines.Scan(); {
			last = lines.Text()
			if _, err := fmt.Sscanf(last, "written %d", acknowledged); err != nil {
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
	return victim, acknowledged, ended
}

// runUntilKilled writes at least this many acknowledged entries, then the power fails. With kill, the process
// does not live to see it; otherwise it meets a disk that is gone.
func (w *writer) runUntilKilled(t *testing.T, entries int, kill, some bool) (acknowledged uint64, lost CrashLoss) {
	t.Helper()
	victim, last, ended := w.write(t, entries)
	if kill {
		require.NoError(t, victim.Process.Kill())
	}
	lost = w.crash(t, some)
	<-ended
	require.Error(t, victim.Wait())
	return *last, lost
}

// crash is a power failure, and the machine up again.
func (w *writer) crash(t *testing.T, some bool) CrashLoss {
	t.Helper()
	seed := uint64(0)
	if some {
		seed = w.dice.Uint64()
	}
	lost, err := w.disk.Crash(seed)
	require.NoError(t, err)
	require.NoError(t, w.disk.Mount())
	return lost
}

// checkStore asks what is left after a crash.
func (w *writer) checkStore(t *testing.T) (last uint64, complaint string) {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), w.program, "check", w.dir(), string(w.log)).CombinedOutput()
	if _, scan := fmt.Sscanf(string(said), "holds %d", &last); err != nil || scan != nil {
		return 0, fmt.Sprintf("%v: %s", err, said)
	}
	return last, ""
}

// onBothLogs runs a test for each way to keep a log.
func onBothLogs(t *testing.T, test func(t *testing.T, w *writer)) {
	t.Parallel()
	for _, log := range []store.LogKind{store.Bolt, store.WAL} {
		t.Run(string(log), func(t *testing.T) {
			t.Parallel()
			test(t, newWriter(t, log, "", ""))
		})
	}
}

// What a node has acknowledged is there after a power failure, whenever it comes and whatever of the rest
// reached the disk (store's S1, S2, S6, S8, S10).
func TestPowerFailureKeepsAcknowledgedEntries(t *testing.T) {
	onBothLogs(t, func(t *testing.T, w *writer) {
		var all CrashLoss
		const most = 60 // whether a crash takes anything is chance
		for life := 0; life < rounds(12) || all.Pages == 0 && life < most; life++ {
			require.NoError(t, w.disk.SetFaults(Faults{FsyncDelay: 5 * time.Millisecond}))
			acknowledged, lost := w.runUntilKilled(t, 10+w.dice.IntN(60), life%4 < 2, life%2 == 0)
			all.Pages, all.Names = all.Pages+lost.Pages, all.Names+lost.Names
			last, complaint := w.checkStore(t)
			t.Logf("life %d: %d acknowledged, %d there; the crash took %+v", life, acknowledged, last, lost)
			require.Empty(t, complaint)
			require.GreaterOrEqual(t, last, acknowledged)
		}
		require.NotZero(t, all.Pages, "no crash took anything, so this has shown nothing")
	})
}

// What a node finds when it starts again, it will report to the leader as stored. So that must survive a power
// failure too, though the process before did not flush it, or failed to.
func TestEntriesFoundAfterRestartAreDurable(t *testing.T) {
	onBothLogs(t, func(t *testing.T, w *writer) {
		for life := range rounds(9) {
			require.NoError(t, w.disk.SetFaults(Faults{FsyncDelay: 5 * time.Millisecond}))
			victim, acknowledged, ended := w.write(t, 10+w.dice.IntN(60))
			switch life % 3 {
			case 0:
				require.NoError(t, victim.Process.Kill())
			case 1:
				require.NoError(t, w.disk.SetFaults(Faults{FailFsync: true}))
			case 2:
				require.NoError(t, w.disk.SetFaults(Faults{FailWrite: true}))
			}
			<-ended
			require.Error(t, victim.Wait())
			require.NoError(t, w.disk.SetFaults(Faults{}))
			found, complaint := w.checkStore(t)
			require.Empty(t, complaint)
			require.GreaterOrEqual(t, found, *acknowledged)
			lost := w.crash(t, false)
			last, complaint := w.checkStore(t)
			t.Logf("life %d: %d acknowledged, %d found, %d there; the crash took %+v", life, *acknowledged,
				found, last, lost)
			require.Empty(t, complaint)
			require.GreaterOrEqual(t, last, found)
		}
	})
}

// rounds is how often a test dies.
func rounds(most int) int {
	if testing.Short() {
		return most / 3
	}
	return most
}

// The same with fsync switched off loses data, so the test above can fail.
func TestPowerFailureWithoutFsync(t *testing.T) {
	t.Parallel()
	w := newWriter(t, store.Bolt, "NoFreelistSync:", "NoSync: true, NoGrowSync: true, NoFreelistSync:")
	for life := range 5 {
		acknowledged, lost := w.runUntilKilled(t, 30, true, false)
		last, complaint := w.checkStore(t)
		if complaint != "" || last < acknowledged {
			t.Logf("life %d: %d acknowledged, %d there; the crash took %+v; %s", life, acknowledged, last, lost,
				complaint)
			return
		}
	}
	require.Fail(t, "5 power failures without fsync have lost nothing")
}
