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
	tty         *os.File // nil: there is none
	ownPgrp     int      // our process group
	interactive bool     // the command is to own it while it runs
	savedModes  *unix.Termios

	childInForeground bool           // the command's group owns it now
	continued         chan os.Signal // SIGCONT: this process was continued, perhaps by `fg`
	resumeTimer       *time.Timer    // in case this process was not stopped
}

// stopDelay is how long a process may take to notice that it was stopped.
const stopDelay = 500 * time.Millisecond

// openTerminal finds the terminal. A command gets it as its own if both of its ends lead there; in a
// pipeline the others need it too.
func openTerminal() *terminal {
	t := &terminal{ownPgrp: syscall.Getpgrp(), resumeTimer: time.NewTimer(time.Hour)}
	t.resumeTimer.Stop()
	if file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		t.tty = file
		t.interactive = isTerminal(os.Stdin) && isTerminal(os.Stdout)
	}
	return t
}

// childLeadsGroup reports whether the command is to lead a process group: unless it is in the foreground as
// one of a pipeline, which is one group.
func (t *terminal) childLeadsGroup() bool { return t.interactive || t.foregroundGroup() != t.ownPgrp }

// attach lends the terminal to a command that was just started.
func (t *terminal) attach(c *child) {
	if !t.interactive {
		return
	}
	t.savedModes, _ = getTermios(t.tty) // nil: nothing to restore
	t.continued = make(chan os.Signal, 1)
	signal.Notify(t.continued, syscall.SIGCONT)
	// Otherwise the terminal may not be taken back from the background. Not before the command was
	// started, which would inherit it.
	signal.Ignore(syscall.SIGTTOU)
	t.giveToChild(c)
}

// giveToChild gives the terminal to the command, if it is ours to give.
func (t *terminal) giveToChild(c *child) {
	owner := t.foregroundGroup()
	if owner == t.ownPgrp {
		t.setForeground(c.pid)
	}
	t.childInForeground = owner == t.ownPgrp || owner == c.pid
}

// reclaim undoes lend.
func (t *terminal) reclaim() {
	if t.childInForeground {
		t.setForeground(t.ownPgrp)
	}
	t.childInForeground = false
}

// detach takes the terminal back from a command that has ended.
func (t *terminal) detach(c *child) {
	if t.interactive {
		if t.childInForeground && c.status.Signaled() && t.savedModes != nil {
			_ = setTermios(t.tty, t.savedModes) // an editor that was killed could not do it
		}
		t.reclaim()
		signal.Stop(t.continued)
		signal.Reset(syscall.SIGTTOU)
	}
	t.close()
}

func (t *terminal) close() {
	t.resumeTimer.Stop()
	if t.tty != nil {
		t.tty.Close()
	}
}

// forward hands a signal on, unless the command shares our group and the terminal has sent it there.
func (t *terminal) forward(c *child, s syscall.Signal) {
	if !c.groupLeader && (s == syscall.SIGINT || s == syscall.SIGQUIT) {
		return
	}
	c.signal(s)
}

// childStopped follows a command that was stopped, with Ctrl-Z for instance, so that the shell which
// waits for us gets its terminal back.
func (t *terminal) childStopped(c *child, by syscall.Signal) {
	if !t.interactive {
		return
	}
	if owner := t.foregroundGroup(); (by == syscall.SIGTTIN || by == syscall.SIGTTOU) && (owner == t.ownPgrp || owner == c.pid) {
		t.resumeChild(c) // it reached for the terminal before it had it; perhaps it has it by now
		return
	}
	t.reclaim()
	t.resumeTimer.Reset(stopDelay)
	_ = syscall.Kill(0, syscall.SIGTSTP) // ignored where no shell could wake us: that is what wake is for
}

// resumeChild lets a stopped command continue, in the foreground if that is where we are.
func (t *terminal) resumeChild(c *child) {
	t.giveToChild(c)
	c.signal(syscall.SIGCONT)
}

// foregroundGroup is the process group that owns the terminal, or -1.
func (t *terminal) foregroundGroup() int {
	if t.tty == nil {
		return -1
	}
	group, err := unix.IoctlGetInt(int(t.tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return group
}

func (t *terminal) setForeground(group int) {
	_ = unix.IoctlSetPointerInt(int(t.tty.Fd()), unix.TIOCSPGRP, group) // fails if the terminal hung up
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := getTermios(file)
	return err == nil
}

// terminalColumns is the width of the terminal behind a stream, or helpWidth without one.
func terminalColumns(stream any) int {
	if file, ok := stream.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 1 {
			return int(size.Col)
		}
	}
	return helpWidth
}

func getTermios(file *os.File) (*unix.Termios, error) {
	return unix.IoctlGetTermios(int(file.Fd()), ioctlGetTermios)
}

func setTermios(file *os.File, modes *unix.Termios) error {
	return unix.IoctlSetTermios(int(file.Fd()), ioctlSetTermios, modes)
}
