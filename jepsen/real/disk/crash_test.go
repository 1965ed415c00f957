package disk

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// writer is a program that keeps a log, a vote and snapshots as a node does, on a disk that
// crashes.
type writer struct {
	*testing.T
	disk    *testDisk
	program string
}

func newWriter(t *testing.T, build func() (string, error)) *writer {
	disk := newTestDisk(t)
	program, err := build()
	require.NoError(t, err)
	return &writer{t, disk, program}
}

// plainWriter is built once.
var plainWriter = sync.OnceValues(func() (string, error) { return buildWriter("writer") })

func buildWriter(name string, flags ...string) (program string, err error) {
	program = filepath.Join(poolDir, name)
	build := exec.Command("go",
		append(append([]string{"build", "-o", program}, flags...), "./testdata/writer")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return program, nil
}

// overlay plants a bug in a copy of a file, and returns the map for go build.
func overlay(t *testing.T, path, from, to string) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), from),
		"%q in %s: name the place where the bug is to be planted", from, path)
	planted := filepath.Join(t.TempDir(), "planted.go")
	require.NoError(t, os.WriteFile(planted,
		[]byte(strings.Replace(string(text), from, to, 1)), 0o600))
	original, err := filepath.Abs(path)
	require.NoError(t, err)
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: planted}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(file, replace, 0o600))
	return file
}

// command is the program on its data.
func (w *writer) command(verb string) *exec.Cmd {
	return exec.CommandContext(w.Context(), w.program, verb, filepath.Join(w.disk.Dir, "data"))
}

// endsAgain is after how many entries more the end of a writer comes again. A disk that fails once
// may fail the rest of a write whose beginning it took; the system answers that by a short count,
// the program writes the rest again, and nothing has failed.
const endsAgain = 1000

// live lets the program write some acknowledged entries and a moment longer. Then it dies as end
// has it, and live returns the last entry that it acknowledged.
func (w *writer) live(entries int, end func(*os.Process)) (acknowledged uint64) {
	victim := w.command("write")
	said, err := victim.StdoutPipe()
	require.NoError(w, err)
	require.NoError(w, victim.Start())
	seen, last := 0, ""
	for lines := bufio.NewScanner(said); lines.Scan(); {
		last = lines.Text()
		if _, err := fmt.Sscanf(last, "written %d", &acknowledged); err != nil {
			continue
		}
		if seen++; seen >= entries && (seen-entries)%endsAgain == 0 {
			if seen > entries {
				w.Logf("the writer has survived its end, and acknowledged %d entries more",
					seen-entries)
			}
			// anywhere between two flushes
			<-time.NewTimer(time.Duration(w.disk.IntN(int(40 * time.Millisecond)))).C
			end(victim.Process)
		}
	}
	require.Error(w, victim.Wait())
	require.GreaterOrEqual(w, seen, entries, "the writer has ended: "+last)
	return acknowledged
}

func (w *writer) kill(victim *os.Process) { require.NoError(w, victim.Kill()) }

// checkStore asks what is left after a crash.
func (w *writer) checkStore() (last uint64, complaint string) {
	said, err := w.command("check").CombinedOutput()
	if _, scan := fmt.Sscanf(string(said), "holds %d", &last); err != nil || scan != nil {
		return 0, fmt.Sprintf("%v: %s", err, said)
	}
	return last, ""
}

// requireHolds requires that all entries up to one are there.
func (w *writer) requireHolds(least uint64) (last uint64) {
	last, complaint := w.checkStore()
	require.Empty(w, complaint)
	require.GreaterOrEqual(w, last, least)
	return last
}

// What a node has acknowledged is there after a power failure, whenever it comes and whatever of
// the rest reached the disk (store's S1, S2, S6, S8, S10). The process may have been killed before,
// or meets a disk that is gone.
func TestPowerFailureKeepsAcknowledgedEntries(t *testing.T) {
	w := newWriter(t, plainWriter)
	var all CrashLoss
	const most = 60 // whether a crash takes anything is chance
	for life := 0; life < rounds(12) || all.Pages == 0 && life < most; life++ {
		w.disk.set(Faults{FsyncDelay: 5 * time.Millisecond})
		var lost CrashLoss
		acknowledged := w.live(10+w.disk.IntN(60), func(victim *os.Process) {
			if life%4 < 2 {
				w.kill(victim)
			}
			seed := w.disk.Uint64() * uint64(life%2) // 0: everything is lost
			lost = w.disk.reboot(seed)
		})
		all.Pages, all.Names = all.Pages+lost.Pages, all.Names+lost.Names
		last := w.requireHolds(acknowledged)
		w.Logf("life %d: %d acknowledged, %d there; the crash took %+v", life, acknowledged,
			last, lost)
	}
	require.NotZero(w, all.Pages, "no crash took anything, so this has shown nothing")
}

// What a node finds when it starts again, it will report to the leader as stored. So that must
// survive a power failure too, though the process before did not flush it, or failed to.
func TestEntriesFoundAfterRestartAreDurable(t *testing.T) {
	w := newWriter(t, plainWriter)
	for life := range rounds(9) {
		w.disk.set(Faults{FsyncDelay: 5 * time.Millisecond})
		ends := []func(*os.Process){
			w.kill,
			func(*os.Process) { w.disk.set(Faults{FailFsync: true}) },
			func(*os.Process) { w.disk.set(Faults{FailWrite: true}) },
		}
		acknowledged := w.live(10+w.disk.IntN(60), ends[life%len(ends)])
		w.disk.set(Faults{})
		found := w.requireHolds(acknowledged)
		lost := w.disk.reboot(0)
		last := w.requireHolds(found)
		w.Logf("life %d: %d acknowledged, %d found, %d there; the crash took %+v", life,
			acknowledged, found, last, lost)
	}
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
	w := newWriter(t, func() (string, error) {
		return buildWriter("careless", "-overlay",
			overlay(t, "../../../raftnode/store/disk_linux.go", "unix.Fdatasync(int(f.Fd()))",
				"error(nil)"))
	})
	for life := range 5 {
		var lost CrashLoss
		acknowledged := w.live(30,
			func(victim *os.Process) { w.kill(victim); lost = w.disk.reboot(0) })
		if last, complaint := w.checkStore(); complaint != "" || last < acknowledged {
			t.Logf("life %d: %d acknowledged, %d there; the crash took %+v; %s", life, acknowledged,
				last, lost, complaint)
			return
		}
	}
	require.Fail(t, "5 power failures without fsync have lost nothing")
}
