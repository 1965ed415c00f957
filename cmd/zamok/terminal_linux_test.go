package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zamok/api/visible"
	"zamok/client"
)

// terminalSession is a terminal, and the person at it.
type terminalSession struct {
	*process
	master *os.File
}

// startAtTerminal starts a command at a terminal of its own.
func startAtTerminal(t *testing.T, c *devCluster, name string, args ...string) *terminalSession {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { keys.Close() })
	number, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0))
	require.NoError(t, unix.IoctlSetWinsize(int(keys.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: 24, Col: 100}))
	screen, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer screen.Close()

	p := &terminalSession{process: &process{Cmd: exec.Command(name, args...),
		done: make(chan struct{})}, master: keys}
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	p.Env = append(os.Environ(), "ZAMOK_ENDPOINTS="+c.endpoint(), "ZAMOK="+binary, "PS1=prompt> ",
		"TERM=dumb")
	p.Stdin, p.Stdout, p.Stderr = screen, screen, screen
	p.start(t)
	go func() { // ends when the terminal is closed on both sides
		buffer := make([]byte, 4096)
		for {
			n, err := keys.Read(buffer)
			if err != nil {
				return
			}
			_, _ = p.stdout.Write(buffer[:n])
		}
	}()
	return p
}

// A person who waits for a reservation sees who has the lock, and until when.
func TestReservationWaitAtTerminal(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	file := filepath.Join(t.TempDir(), "f")
	acquireReserved(t, c, file, "reserve/seen", "--for", "30m", "--meta", "load\x1b[2Jtest")
	mine := filepath.Join(t.TempDir(), "mine")
	p := startAtTerminal(t, c, binary, "acquire", "reserve/seen", "--for", "1h", "--file", mine)
	p.awaitOutput(t, "waiting for reserve/seen")
	c.awaitWaiters(t, "reserve/seen", 1)
	require.Regexp(t,
		`waiting for reserve/seen(; held by load\\x1b\[2Jtest until .*\d\d:\d\d.*, \d waiting)?`,
		p.stdout.String())
	p.typeKeys(t, "\x03")
	require.Equal(t, exitSignalBase+int(syscall.SIGINT), p.wait(t).code)
	requireNoFile(t, mine)
	require.Equal(t, 0, runUntilAvailable(t, c, "release", "--mine", file).code)
}

func (p *terminalSession) typeKeys(t *testing.T, keys string) {
	t.Helper()
	_, err := p.master.WriteString(keys)
	require.NoError(t, err)
}

// awaitOutputTimes waits until a text has been printed n times.
func (p *terminalSession) awaitOutputTimes(t *testing.T, text string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(p.stdout.String(), text) >= n },
		testTimeout, 5*time.Millisecond,
		"it did not say %q %d times", text, n)
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// The command owns the terminal: it reads what is typed, and Ctrl-C is for it.
func TestCommandOwnsTerminal(t *testing.T) {
	t.Parallel()
	p := startAtTerminal(t, sharedCluster(t), binary, "lock", "tty/own", "--", "sh", "-c",
		`trap 'echo interrupted; exit 9' INT; read -r line; echo "read $line"; while :; do sleep 0.02; done`)
	p.typeKeys(t, "hello\n")
	p.awaitOutput(t, "read hello")
	p.typeKeys(t, ctrlC)
	require.Equal(t, 9, p.wait(t).code)
	p.awaitOutput(t, "interrupted")
	require.Equal(t, 1, strings.Count(p.stdout.String(), "interrupted"),
		"Ctrl-C came more than once")
}

// Only a shell could continue the process: Ctrl-Z must not stop everything forever.
func TestCtrlZWithoutAShell(t *testing.T) {
	t.Parallel()
	p := startAtTerminal(t, sharedCluster(t), binary, "lock", "tty/alone", "--", "sh", "-c",
		`echo ready; read -r line; echo "read $line"`)
	p.awaitOutput(t, "ready")
	p.typeKeys(t, ctrlZ)
	p.typeKeys(t, "hello\n")
	p.awaitOutput(t, "read hello")
	require.Equal(t, 0, p.wait(t).code)
}

// Under a shell Ctrl-Z brings back the prompt, and fg the command, with the terminal.
func TestJobControl(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash, for its job control")
	}
	t.Parallel()
	c := sharedCluster(t)
	p := startAtTerminal(t, c, shell, "--norc", "--noprofile", "-i")
	p.awaitOutputTimes(t, "prompt> ", 1)
	p.typeKeys(t, `"$ZAMOK" lock tty/jobs -- sh -c 'echo rea""dy; for n in 1 2 3; do `+
		`read -r line; echo "re""ad $line"; done; exit 5'`+"\n")
	p.awaitOutput(t, "ready") // what is typed before is for the shell
	p.typeKeys(t, "first\n")
	p.awaitOutput(t, "read first")
	p.typeKeys(t, ctrlZ)
	p.awaitOutput(t, "Stopped")
	p.typeKeys(t, "echo shell \"is\" here\n")
	p.awaitOutput(t, "shell is here")
	before := strings.Count(p.stdout.String(), "exit 5'")
	p.typeKeys(t, "fg\n")
	p.awaitOutputTimes(t, "exit 5'", before+1) // fg prints the command that it wakes
	p.typeKeys(t, "second\nthird\n")
	p.awaitOutput(t, "read second")
	p.awaitOutput(t, "read third")
	c.awaitFree(t, "tty/jobs")
	p.typeKeys(t, "echo code $?\n")
	p.awaitOutput(t, "code 5")
	// In the background it leaves the terminal to the shell.
	flag := filepath.Join(t.TempDir(), "flag")
	p.typeKeys(t, `{ "$ZAMOK" lock tty/jobs -- echo back""ground; touch `+flag+`1; } &`+"\n")
	p.typeKeys(t, `until [ -e `+flag+
		`1 ]; do sleep 0.02; done; echo as""king; read -r key; echo "sh""ell got $key"`+"\n")
	p.awaitOutput(t, "background")
	p.awaitOutput(t, "asking")
	p.typeKeys(t, "a key\n")
	p.awaitOutput(t, "shell got a key")
	// One of a pipeline shares the terminal with the others.
	p.typeKeys(t,
		`"$ZAMOK" lock tty/jobs -- sh -c 'echo one two; until [ -e `+flag+
			`2 ]; do sleep 0.02; done' | `+
			`(read -r a b; echo the p""ipe asks; read -r key </dev/tty; touch `+flag+
			`2; echo "got $b $key")`+"\n")
	p.awaitOutput(t, "the pipe asks")
	p.typeKeys(t, "another\n")
	p.awaitOutput(t, "got two another")
	p.typeKeys(t, "exit\n")
	p.wait(t)
}

// A person who waits at a terminal sees what the lock waits for.
func TestWaitStatusLine(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	label := "the night job " + strings.Repeat("東", 60)
	cl, err := client.New(client.Config{Endpoints: []string{c.endpoint()}, Label: label})
	require.NoError(t, err)
	defer cl.Close()
	lock, err := cl.Lock(context.Background(), "tty/wait")
	require.NoError(t, err)
	p := startAtTerminal(t, c, binary, "lock", "tty/wait", "--", "echo", "mine")
	p.awaitOutput(t, "waiting for tty/wait: 0 ahead")
	p.awaitOutput(t, "the night job 東東")
	for line := range strings.SplitSeq(p.stdout.String(), eraseLine) {
		require.Less(t, visible.Columns(strings.TrimSpace(line)), 100,
			"a line that goes on below can't be erased")
	}
	refused := runZamok(t, c, "lock", "tty/wait", "--try", "--", "true")
	require.Equal(t, exitNotAcquired, refused.code)
	require.Contains(t, refused.stderr, "the night job")
	require.NoError(t, lock.Unlock(context.Background()))
	require.Equal(t, 0, p.wait(t).code)
	p.awaitOutput(t, "mine")
	require.Contains(t, p.stdout.String(), eraseLine+"mine")
}

// A person who does not want to wait any longer types Ctrl-C.
func TestCtrlCCancelsWait(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	startZamok(t, c, "lock", "tty/bored", "--", "sh", "-c",
		"echo holding; exec sleep 1000").awaitOutput(t, "holding")
	p := startAtTerminal(t, c, binary, "lock", "tty/bored", "--", "true")
	p.awaitOutput(t, "waiting for")
	p.typeKeys(t, ctrlC)
	require.Equal(t, 128+2, p.wait(t).code)
	c.awaitWaiters(t, "tty/bored", 0)
}

// A command that was killed leaves the terminal as it was.
func TestTerminalModesRestored(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	p := startAtTerminal(t, c, binary, "lock", "tty/modes", "--", "sh", "-c",
		"stty -echo -icanon; echo raw; kill -KILL $$")
	require.Equal(t, 128+9, p.wait(t).code)
	modes, err := getTermios(p.master)
	require.NoError(t, err)
	require.NotZero(t, modes.Lflag&unix.ECHO, "the terminal does not echo any more")
}
