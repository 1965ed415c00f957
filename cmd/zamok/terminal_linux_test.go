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

	"zamok/client"
)

// pty is a terminal, and the person at it.
type pty struct {
	*running
	keys *os.File
}

// sitDown starts a command at a terminal of its own.
func sitDown(t *testing.T, c *cluster, name string, args ...string) *pty {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { keys.Close() })
	number, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0))
	screen, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer screen.Close()

	p := &pty{running: &running{Cmd: exec.Command(name, args...), ended: make(chan struct{})}, keys: keys}
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	p.Env = append(os.Environ(), "ZAMOK_ENDPOINTS="+c.endpoint(), "ZAMOK="+binary, "PS1=prompt> ", "TERM=dumb")
	p.Stdin, p.Stdout, p.Stderr = screen, screen, screen
	p.start(t)
	go func() { // ends when the terminal is closed on both sides
		buffer := make([]byte, 4096)
		for {
			n, err := keys.Read(buffer)
			if err != nil {
				return
			}
			_, _ = p.out.Write(buffer[:n])
		}
	}()
	return p
}

func (p *pty) types(t *testing.T, keys string) {
	t.Helper()
	_, err := p.keys.WriteString(keys)
	require.NoError(t, err)
}

// saysAgain waits until a text has been said n times.
func (p *pty) saysAgain(t *testing.T, text string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(p.out.String(), text) >= n }, patience, 5*time.Millisecond,
		"it did not say %q %d times", text, n)
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// The command owns the terminal: it reads what is typed, and Ctrl-C is for it.
func TestTheCommandOwnsTheTerminal(t *testing.T) {
	t.Parallel()
	p := sitDown(t, here(t), binary, "lock", "tty/own", "--", "sh", "-c",
		`trap 'echo interrupted; exit 9' INT; read -r line; echo "read $line"; while :; do sleep 0.02; done`)
	p.types(t, "hello\n")
	p.says(t, "read hello")
	p.types(t, ctrlC)
	require.Equal(t, 9, p.wait(t).code)
	p.says(t, "interrupted")
	require.Equal(t, 1, strings.Count(p.out.String(), "interrupted"), "Ctrl-C came more than once")
}

// Nobody could wake us where there is no shell: Ctrl-Z must not stop everything for ever.
func TestCtrlZWithoutAShell(t *testing.T) {
	t.Parallel()
	p := sitDown(t, here(t), binary, "lock", "tty/alone", "--", "sh", "-c", `echo ready; read -r line; echo "read $line"`)
	p.says(t, "ready")
	p.types(t, ctrlZ)
	p.types(t, "hello\n")
	p.says(t, "read hello")
	require.Equal(t, 0, p.wait(t).code)
}

// Under a shell Ctrl-Z brings back the prompt, and fg the command, with the terminal.
func TestJobControl(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash, for its job control")
	}
	t.Parallel()
	c := here(t)
	p := sitDown(t, c, shell, "--norc", "--noprofile", "-i")
	p.saysAgain(t, "prompt> ", 1)
	p.types(t, `"$ZAMOK" lock tty/jobs -- sh -c 'echo rea""dy; for n in 1 2 3; do `+
		`read -r line; echo "re""ad $line"; done; exit 5'`+"\n")
	p.says(t, "ready") // what is typed before is for the shell
	p.types(t, "first\n")
	p.says(t, "read first")
	p.types(t, ctrlZ)
	p.says(t, "Stopped")
	p.types(t, "echo shell \"is\" here\n")
	p.says(t, "shell is here")
	before := strings.Count(p.out.String(), "exit 5'")
	p.types(t, "fg\n")
	p.saysAgain(t, "exit 5'", before+1) // fg prints the command that it wakes
	p.types(t, "second\nthird\n")
	p.says(t, "read second")
	p.says(t, "read third")
	c.free(t, "tty/jobs")
	p.types(t, "echo code $?\n")
	p.says(t, "code 5")
	// In the background it leaves the terminal to the shell.
	flag := filepath.Join(t.TempDir(), "flag")
	p.types(t, `{ "$ZAMOK" lock tty/jobs -- echo back""ground; touch `+flag+`1; } &`+"\n")
	p.types(t, `until [ -e `+flag+`1 ]; do sleep 0.02; done; echo as""king; read -r key; echo "sh""ell got $key"`+"\n")
	p.says(t, "background")
	p.says(t, "asking")
	p.types(t, "a key\n")
	p.says(t, "shell got a key")
	// One of a pipeline shares the terminal with the others.
	p.types(t, `"$ZAMOK" lock tty/jobs -- sh -c 'echo one two; until [ -e `+flag+`2 ]; do sleep 0.02; done' | `+
		`(read -r a b; echo the p""ipe asks; read -r key </dev/tty; touch `+flag+`2; echo "got $b $key")`+"\n")
	p.says(t, "the pipe asks")
	p.types(t, "another\n")
	p.says(t, "got two another")
	p.types(t, "exit\n")
	p.wait(t)
}

// Who waits at a terminal is told how it stands.
func TestTheWaitIsShown(t *testing.T) {
	t.Parallel()
	c := here(t)
	cl, err := client.New(client.Config{Endpoints: []string{c.endpoint()}, Label: "the night job"})
	require.NoError(t, err)
	defer cl.Close()
	lock, err := cl.Lock(context.Background(), "tty/wait")
	require.NoError(t, err)
	p := sitDown(t, c, binary, "lock", "tty/wait", "--", "echo", "mine")
	p.says(t, "waiting for tty/wait: 0 ahead")
	p.says(t, "the night job")
	refused := zamok(t, c, "lock", "tty/wait", "--try", "--", "true")
	require.Equal(t, exitNotAcquired, refused.code)
	require.Contains(t, refused.errs, "the night job")
	require.NoError(t, lock.Unlock(context.Background()))
	require.Equal(t, 0, p.wait(t).code)
	p.says(t, "mine")
	require.Contains(t, p.out.String(), eraseLine+"mine")
}

// A person who does not want to wait any longer types Ctrl-C.
func TestCtrlCEndsTheWait(t *testing.T) {
	t.Parallel()
	c := here(t)
	begin(t, c, "lock", "tty/bored", "--", "sh", "-c", "echo holding; exec sleep 1000").says(t, "holding")
	p := sitDown(t, c, binary, "lock", "tty/bored", "--", "true")
	p.says(t, "waiting for")
	p.types(t, ctrlC)
	require.Equal(t, 128+2, p.wait(t).code)
	c.queue(t, "tty/bored", 0)
}

// A command that was killed leaves the terminal as it was.
func TestTheTerminalIsRestored(t *testing.T) {
	t.Parallel()
	c := here(t)
	p := sitDown(t, c, binary, "lock", "tty/modes", "--", "sh", "-c", "stty -echo -icanon; echo raw; kill -KILL $$")
	require.Equal(t, 128+9, p.wait(t).code)
	modes, err := modesOf(p.keys)
	require.NoError(t, err)
	require.NotZero(t, modes.Lflag&unix.ECHO, "the terminal does not echo any more")
}
