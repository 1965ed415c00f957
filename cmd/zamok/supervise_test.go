//go:build unix

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testTimeout bounds what a test waits for on a busy machine.
const testTimeout = 20 * time.Second

func withoutTerminal() *terminal {
	t := &terminal{resumeTimer: time.NewTimer(time.Hour)}
	t.resumeTimer.Stop()
	return t
}

// fakeLease is a lock that a test lets go of.
type fakeLease struct {
	mu    sync.Mutex
	until time.Time
	lost  chan struct{}
}

func newFakeLease(d time.Duration) *fakeLease {
	return &fakeLease{until: time.Now().Add(d), lost: make(chan struct{})}
}

func (h *fakeLease) timeLeft() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Until(h.until)
}

func (h *fakeLease) setTimeLeft(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = time.Now().Add(d)
}

// renewedUntilFile is what is left of a lease that is renewed, the ladder always just ahead, until
// there is a file; from then on so much is left.
func renewedUntilFile(file string, killAfter, left time.Duration) func() time.Duration {
	var h *fakeLease
	return func() time.Duration {
		if _, err := os.Stat(file); h == nil && err == nil {
			h = newFakeLease(left)
		}
		if h == nil {
			return killAfter + killMargin + 50*time.Millisecond
		}
		return h.timeLeft()
	}
}

// supervisedScript runs a shell script under a lock, and notes when it printed ready.
type supervisedScript struct {
	*child
	out        string // what it wrote
	signals    chan os.Signal
	terminated chan bool // capacity 1
}

func superviseScript(t *testing.T, l supervisor, script string) supervisedScript {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	c, err := startChild([]string{"sh", "-c", script}, append(os.Environ(), "OUT="+out), true)
	require.NoError(t, err)
	p := supervisedScript{child: c, out: out, signals: make(chan os.Signal, 8),
		terminated: make(chan bool, 1)}
	go func() { p.terminated <- l.supervise(c, withoutTerminal(), p.signals).terminated }()
	t.Cleanup(func() {
		c.signal(syscall.SIGKILL)
		<-c.done
	})
	return p
}

// awaitWord waits until the script has written a word.
func (p supervisedScript) awaitWord(t *testing.T, word string) {
	t.Helper()
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(p.out)
		return strings.Contains(string(text), word)
	}, testTimeout, 5*time.Millisecond, "the script never wrote %q", word)
}

func (p supervisedScript) wait(t *testing.T) (terminated bool) {
	t.Helper()
	select {
	case terminated = <-p.terminated:
	case <-time.After(testTimeout):
		t.Fatal("the command still runs")
	}
	select {
	case <-p.done:
	default:
		t.Fatal("watch returned before the command had ended")
	}
	return terminated
}

// requireGone waits until a process has ended, or is a zombie.
func requireGone(t *testing.T, pid string) {
	t.Helper()
	number, err := strconv.Atoi(pid)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stat, _ := os.ReadFile("/proc/" + pid + "/stat")
		return syscall.Kill(number, 0) != nil || bytes.Contains(stat, []byte(") Z "))
	}, testTimeout, 5*time.Millisecond, "process %s still runs", pid)
}

func TestCommandExitsByItself(t *testing.T) {
	for script, code := range map[string]int{
		"exit 0":        0,
		"exit 42":       42,
		"kill -TERM $$": exitSignalBase + 15,
		"kill -KILL $$": exitSignalBase + 9,
	} {
		h := newFakeLease(time.Hour)
		p := superviseScript(t, supervisor{lost: h.lost, timeLeft: h.timeLeft,
			killAfter: time.Second}, script)
		require.False(t, p.wait(t), script)
		require.Equal(t, code, p.exitCode(), script)
	}
}

func TestCommandThatCannotStart(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("no program"), 0o600))
	for name, code := range map[string]int{
		"no-such-command-anywhere": exitCommandNotFound,
		"/no/such/path":            exitCommandNotFound,
		plain:                      exitCommandNotExecutable,
		os.TempDir():               exitCommandNotExecutable,
	} {
		_, err := startChild([]string{name}, nil, true)
		var exit *exitError
		require.ErrorAs(t, err, &exit, name)
		require.Equal(t, code, exit.code, "%s: %v", name, err)
	}
}

// A lease that is not renewed: TERM at kill-after before its end, for a command that heeds it.
func TestTERMBeforeDeadline(t *testing.T) {
	const killAfter = 10 * time.Second // a shell on a busy machine needs some of it
	ready := filepath.Join(t.TempDir(), "ready")
	left := renewedUntilFile(ready, killAfter, killAfter+time.Second)
	p := superviseScript(t, supervisor{lost: make(chan struct{}), timeLeft: left,
		killAfter: killAfter},
		`trap 'echo terminated >$OUT; exit 3' TERM; >'`+ready+`'; while :; do sleep 0.02; done`)
	require.True(t, p.wait(t))
	require.Positive(t, left(), "the command outlived its lock")
	require.LessOrEqual(t, left(), killAfter+killMargin, "terminated too early")
	require.Equal(t, 3, p.exitCode())
	p.awaitWord(t, "terminated")
}

// A command that ignores TERM gets KILL, before the deadline, however long kill-after is; its group
// too. That it is killMargin before, and not later, only a quiet machine shows.
func TestKILLBeforeDeadline(t *testing.T) {
	const killAfter = 10 * testTimeout
	ready := filepath.Join(t.TempDir(), "ready")
	left := renewedUntilFile(ready, killAfter, 2*time.Second)
	p := superviseScript(t, supervisor{lost: make(chan struct{}), timeLeft: left,
		killAfter: killAfter},
		`trap '' TERM; sleep 1000 & echo $! >$OUT; >'`+ready+`'; while :; do sleep 0.02; done`)
	require.True(t, p.wait(t))
	t.Logf("%v were left of the lock", left())
	require.Equal(t, exitSignalBase+9, p.exitCode())
	text, err := os.ReadFile(p.out)
	require.NoError(t, err)
	requireGone(t, strings.TrimSpace(string(text)))
}

// A renewed lease moves the ladder away: each look finds the same short time left, and the command
// is asked to end by itself once it has outlived three of them.
func TestRenewedLeaseKeepsCommandRunning(t *testing.T) {
	const killAfter = time.Second
	goOn := filepath.Join(t.TempDir(), "go")
	asked := 0
	left := func() time.Duration {
		if asked++; asked == 5 {
			assert.NoError(t, os.WriteFile(goOn, nil, 0o600))
		}
		return killAfter + killMargin + 50*time.Millisecond
	}
	p := superviseScript(t, supervisor{lost: make(chan struct{}), timeLeft: left,
		killAfter: killAfter},
		`trap 'exit 3' TERM; until [ -e '`+goOn+`' ]; do sleep 0.02; done; exit 5`)
	require.False(t, p.wait(t))
	require.Equal(t, 5, p.exitCode())
}

// A lock taken away by an operator leaves kill-after for an orderly end, and what the command
// started has it too.
func TestLostLockTerminatesCommand(t *testing.T) {
	h := newFakeLease(time.Hour)
	p := superviseScript(t, supervisor{lost: h.lost, timeLeft: h.timeLeft,
		killAfter: 10 * time.Second}, `
		sh -c 'trap "sleep 0.3; echo clean >>$OUT; exit 0" TERM; echo ready >$OUT; while :; do sleep 0.02; done' &
		wait`)
	p.awaitWord(t, "ready")
	close(h.lost)
	require.True(t, p.wait(t))
	p.awaitWord(t, "clean")
}

// What a command started gets KILL too, also when the command itself heeded TERM.
func TestRemainingGroupIsKilled(t *testing.T) {
	h := newFakeLease(time.Hour)
	p := superviseScript(t, supervisor{lost: h.lost, timeLeft: h.timeLeft,
		killAfter: 300 * time.Millisecond}, `
		sh -c 'trap "" TERM; echo $$ >$OUT; while :; do sleep 0.02; done' & wait`)
	p.awaitWord(t, "\n")
	text, err := os.ReadFile(p.out)
	require.NoError(t, err)
	close(h.lost)
	require.True(t, p.wait(t))
	requireGone(t, strings.TrimSpace(string(text)))
}

// A deadline that has passed already leaves no time for anything.
func TestExpiredDeadlineKillsAtOnce(t *testing.T) {
	h := newFakeLease(3 * time.Hour)
	p := superviseScript(t, supervisor{lost: h.lost, timeLeft: h.timeLeft, killAfter: time.Hour},
		`trap '' TERM; echo ready >$OUT; while :; do sleep 0.02; done`)
	p.awaitWord(t, "ready")
	h.setTimeLeft(0)
	close(h.lost)
	require.True(t, p.wait(t))
	require.Equal(t, exitSignalBase+9, p.exitCode())
}

func TestStoppedCommandIsTerminated(t *testing.T) {
	h := newFakeLease(time.Hour)
	p := superviseScript(t, supervisor{lost: h.lost, timeLeft: h.timeLeft,
		killAfter: 10 * time.Second},
		`trap 'exit 7' TERM; echo ready >$OUT; kill -STOP $$; while :; do sleep 0.02; done`)
	p.awaitWord(t, "ready")
	// where processes can be listed; it logs that before it does so
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/stat")
		return err != nil || bytes.Contains(stat, []byte(") T "))
	}, testTimeout, 5*time.Millisecond, "it was never stopped")
	close(h.lost)
	require.True(t, p.wait(t))
	require.Equal(t, 7, p.exitCode())
}

func TestSignalsAreForwardedOnce(t *testing.T) {
	h := newFakeLease(time.Hour)
	p := superviseScript(t, supervisor{lost: h.lost, timeLeft: h.timeLeft, killAfter: time.Second},
		`
		trap 'echo hup >>$OUT' HUP; trap 'echo usr1 >>$OUT' USR1; trap 'echo int >>$OUT; exit 9' INT
		echo ready >>$OUT; while :; do sleep 0.02; done`)
	p.awaitWord(t, "ready")
	for _, s := range []struct {
		signal syscall.Signal
		word   string
	}{{syscall.SIGHUP, "hup"}, {syscall.SIGUSR1, "usr1"}, {syscall.SIGINT, "int"}} {
		p.signals <- s.signal
		p.awaitWord(t, s.word)
	}
	require.False(t, p.wait(t))
	require.Equal(t, 9, p.exitCode())
	text, err := os.ReadFile(p.out)
	require.NoError(t, err)
	require.Equal(t, "ready\nhup\nusr1\nint\n", string(text))
}

func TestNoSignalAfterExit(t *testing.T) {
	c, err := startChild([]string{"sh", "-c", "exit 0"}, os.Environ(), false)
	require.NoError(t, err)
	<-c.done
	c.signal(syscall.SIGKILL) // would end this test's process, were it sent to a group of its own
	require.Equal(t, 0, c.exitCode())
	require.False(t, c.groupAlive())
}

// A grandchild in a group of its own is not found, as the documentation warns: the fencing token
// guards against it.
func TestGrandchildInOtherGroupSurvives(t *testing.T) {
	h := newFakeLease(time.Hour)
	out := filepath.Join(t.TempDir(), "pid")
	p := superviseScript(t, supervisor{lost: h.lost, timeLeft: h.timeLeft,
		killAfter: 10 * time.Second},
		`setsid sh -c 'echo $$ >`+out+`; exec sleep 1000' & echo ready >$OUT; wait`)
	var pid int
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(out)
		pid, _ = strconv.Atoi(string(bytes.TrimSpace(text)))
		return pid > 0
	}, testTimeout, 5*time.Millisecond)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	close(h.lost)
	require.True(t, p.wait(t))
	require.NoError(t, syscall.Kill(pid, 0))
}
