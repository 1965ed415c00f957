//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is the one that a person sits at, shared between this program and the command that it
// runs, as a shell shares it with its jobs. Without one, all of it does nothing.
type terminal struct {
	file   *os.File // nil: there is none
	ours   int      // our process group
	shared bool     // the command is to own it while it runs
	modes  *unix.Termios

	lent      bool           // the command's group owns it now
	continued chan os.Signal // SIGCONT: somebody woke us, perhaps with `fg`
	wake      *time.Timer    // in case that nobody had stopped us
}

// stopWait is how long a process may take to notice that it was stopped.
const stopWait = 500 * time.Millisecond

// openTerminal finds the terminal. A command gets it as its own if both of its ends lead there; in a
// pipeline the others need it too.
func openTerminal() *terminal {
	t := &terminal{ours: syscall.Getpgrp(), wake: time.NewTimer(time.Hour)}
	t.wake.Stop()
	if file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		t.file = file
		t.shared = isTerminal(os.Stdin) && isTerminal(os.Stdout)
	}
	return t
}

// ownGroup tells whether the command is to lead a process group: unless it is in the foreground as
// one of a pipeline, which is one group.
func (t *terminal) ownGroup() bool { return t.shared || t.foreground() != t.ours }

// begin lends the terminal to a command that was just started.
func (t *terminal) begin(c *child) {
	if !t.shared {
		return
	}
	t.modes, _ = modesOf(t.file) // nil: nothing to restore
	t.continued = make(chan os.Signal, 1)
	signal.Notify(t.continued, syscall.SIGCONT)
	// Otherwise nobody may take the terminal back from the background. Not before the command was
	// started, which would inherit it.
	signal.Ignore(syscall.SIGTTOU)
	t.lend(c)
}

// lend gives the terminal to the command, if it is ours to give.
func (t *terminal) lend(c *child) {
	owner := t.foreground()
	if owner == t.ours {
		t.give(c.pid)
	}
	t.lent = owner == t.ours || owner == c.pid
}

// takeBack undoes lend.
func (t *terminal) takeBack() {
	if t.lent {
		t.give(t.ours)
	}
	t.lent = false
}

// end takes the terminal back from a command that has ended.
func (t *terminal) end(c *child) {
	if t.shared {
		if t.lent && c.status.Signaled() && t.modes != nil {
			_ = setModes(t.file, t.modes) // an editor that was killed could not do it
		}
		t.takeBack()
		signal.Stop(t.continued)
		signal.Reset(syscall.SIGTTOU)
	}
	t.close()
}

func (t *terminal) close() {
	t.wake.Stop()
	if t.file != nil {
		t.file.Close()
	}
}

// pass hands a signal on, unless the command shares our group and the terminal has sent it there.
func (t *terminal) pass(c *child, s syscall.Signal) {
	if !c.ownGroup && (s == syscall.SIGINT || s == syscall.SIGQUIT) {
		return
	}
	c.signal(s)
}

// stopped follows a command that was stopped, with Ctrl-Z for instance, so that the shell which
// waits for us gets its terminal back.
func (t *terminal) stopped(c *child, by syscall.Signal) {
	if !t.shared {
		return
	}
	if owner := t.foreground(); (by == syscall.SIGTTIN || by == syscall.SIGTTOU) && (owner == t.ours || owner == c.pid) {
		t.resume(c) // it reached for the terminal before it had it; perhaps it has it by now
		return
	}
	t.takeBack()
	t.wake.Reset(stopWait)
	_ = syscall.Kill(0, syscall.SIGTSTP) // ignored where no shell could wake us: that is what wake is for
}

// resume lets a stopped command go on, in the foreground if that is where we are.
func (t *terminal) resume(c *child) {
	t.lend(c)
	c.signal(syscall.SIGCONT)
}

// foreground is the process group that owns the terminal, or -1.
func (t *terminal) foreground() int {
	if t.file == nil {
		return -1
	}
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return group
}

func (t *terminal) give(group int) {
	_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group) // fails if the terminal hung up
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := modesOf(file)
	return err == nil
}

func modesOf(file *os.File) (*unix.Termios, error) {
	return unix.IoctlGetTermios(int(file.Fd()), getModes)
}

func setModes(file *os.File, modes *unix.Termios) error {
	return unix.IoctlSetTermios(int(file.Fd()), putModes, modes)
}
