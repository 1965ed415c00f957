//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// child is a command that runs under a lock. One goroutine starts it and waits for it, locked to
// its thread until the end: on Linux a child dies with the thread that started it (Z2).
type child struct {
	pid         int
	groupLeader bool // it leads a process group of its own, which gets all signals

	mu     sync.Mutex
	reaped bool // it was waited for: its pid may be that of another process now

	stopped chan syscall.Signal // capacity 1: it was stopped, by this
	done    chan struct{}       // closed when it ended
	status  syscall.WaitStatus  // how; to be read after done
}

// startChild runs a command with these variables and our own stdin, stdout and stderr.
func startChild(argv, env []string, groupLeader bool) (*child, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, commandStartError(argv[0], err)
	}
	c := &child{groupLeader: groupLeader, stopped: make(chan syscall.Signal, 1),
		done: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(c.done)
		// Not unlocked: the thread ends with this goroutine.
		runtime.LockOSThread()
		pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
			Env:   env,
			Files: []uintptr{os.Stdin.Fd(), os.Stdout.Fd(), os.Stderr.Fd()},
			Sys:   childSysProcAttr(groupLeader),
		})
		c.pid = pid
		started <- err
		if err == nil {
			c.wait()
		}
	}()
	if err := <-started; err != nil {
		<-c.done
		return nil, commandStartError(argv[0], err)
	}
	return c, nil
}

// commandStartError adds the exit code that a shell would use for a command that can't be run.
func commandStartError(name string, err error) error {
	if e := (*exec.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	code := exitCommandNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitCommandNotFound
	}
	return &exitError{code, fmt.Errorf("%s: %w; the lock was released", name, err)}
}

func (c *child) wait() {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(c.pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err == nil && status.Stopped():
			select {
			case c.stopped <- status.StopSignal():
			default: // the signal before was not received yet
			}
		default:
			c.mu.Lock()
			c.reaped = true
			c.mu.Unlock()
			c.status = status
			return
		}
	}
}

// signal sends a signal to the command, and to its whole group if it leads one.
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.groupLeader:
		// Also after the command itself has ended: while other processes of the group live, no
		// other group gets its id.
		_ = syscall.Kill(-c.pid, s) // the only error is that no process is left
	case !c.reaped:
		_ = syscall.Kill(c.pid, s)
	}
}

// groupAlive reports whether other processes of the command's group are still running. It is called
// after done.
func (c *child) groupAlive() bool {
	if !c.groupLeader {
		return false
	}
	// If this program is the first process of a container, they are its children now, and it has to
	// wait for them.
	for pid := 1; pid > 0; {
		pid, _ = syscall.Wait4(-c.pid, nil, syscall.WNOHANG, nil)
	}
	return syscall.Kill(-c.pid, 0) == nil
}

// exitCode is the command's exit code, or 128 + the signal that ended it. It is called after done.
func (c *child) exitCode() int {
	if c.status.Signaled() {
		return exitSignalBase + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}

// forwardedSignals are the signals that are passed on to the command.
func forwardedSignals() []os.Signal {
	return []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2}
}

// isTermination reports whether a signal also ends this process, after the command.
func isTermination(s os.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGQUIT
}
