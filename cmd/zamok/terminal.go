//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal, which this program shares with the command that it runs as
// a shell shares it with its jobs. Without a terminal its methods do nothing.
type terminal struct {
	tty         *os.File // nil: there is none
	ownPgrp     int      // our process group
	interactive bool     // the command is in the foreground while it runs
	savedModes  *unix.Termios

	childInForeground bool           // the command's group is in the foreground now
	continued         chan os.Signal // SIGCONT: this process was continued, perhaps by `fg`
	resumeTimer       *time.Timer    // in case this process was not stopped
}

// stopDelay is how long a process may take to notice that it was stopped.
const stopDelay = 500 * time.Millisecond

// openTerminal opens the terminal. The command is put in the foreground if its standard input and
// output are terminals; in a pipeline the other processes need the terminal, too.
func openTerminal() *terminal {
	t := &terminal{ownPgrp: syscall.Getpgrp(), resumeTimer: time.NewTimer(time.Hour)}
	t.resumeTimer.Stop()
	if file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		t.tty = file
		t.interactive = isTerminal(os.Stdin) && isTerminal(os.Stdout)
	}
	return t
}

// childLeadsGroup reports whether the command leads a process group of its own. It does not if it
// is part of a pipeline in the foreground, which is one group.
func (t *terminal) childLeadsGroup() bool {
	return t.interactive || t.foregroundGroup() != t.ownPgrp
}

// attach puts a command that was just started in the foreground.
func (t *terminal) attach(c *child) {
	if !t.interactive {
		return
	}
	t.savedModes, _ = getTermios(t.tty) // nil: nothing to restore
	t.continued = make(chan os.Signal, 1)
	signal.Notify(t.continued, syscall.SIGCONT)
	// This lets the terminal be reclaimed from the background. It comes after the start of the
	// command, which would inherit it.
	signal.Ignore(syscall.SIGTTOU)
	t.giveToChild(c)
}

// giveToChild puts the command in the foreground, if this program is there.
func (t *terminal) giveToChild(c *child) {
	owner := t.foregroundGroup()
	if owner == t.ownPgrp {
		t.setForeground(c.pid)
	}
	t.childInForeground = owner == t.ownPgrp || owner == c.pid
}

// reclaim undoes giveToChild.
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
			_ = setTermios(t.tty, t.savedModes) // an editor that was killed could not restore them
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

// forward passes a signal on, unless the command shares our group and the terminal has sent it
// there.
func (t *terminal) forward(c *child, s syscall.Signal) {
	if !c.groupLeader && (s == syscall.SIGINT || s == syscall.SIGQUIT) {
		return
	}
	c.signal(s)
}

// childStopped stops this program after its command was stopped, for example with Ctrl-Z, so that
// the shell which waits for this program gets its terminal back.
func (t *terminal) childStopped(c *child, by syscall.Signal) {
	if !t.interactive {
		return
	}
	if owner := t.foregroundGroup(); (by == syscall.SIGTTIN || by == syscall.SIGTTOU) &&
		(owner == t.ownPgrp || owner == c.pid) {
		t.resumeChild(c) // it used the terminal before it was in the foreground
		return
	}
	t.reclaim()
	t.resumeTimer.Reset(stopDelay)
	// ignored where no shell could continue us: resumeTimer is for that
	_ = syscall.Kill(0, syscall.SIGTSTP)
}

// resumeChild lets a stopped command continue, in the foreground if this program is there.
func (t *terminal) resumeChild(c *child) {
	t.giveToChild(c)
	c.signal(syscall.SIGCONT)
}

// foregroundGroup is the process group in the foreground, or -1.
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
	// fails if the terminal hung up
	_ = unix.IoctlSetPointerInt(int(t.tty.Fd()), unix.TIOCSPGRP, group)
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
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil &&
			size.Col > 1 {
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
