package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zamok/jepsen/workload"
)

// process is one that this run has started. It is ended by the pid that was started, and it dies with us.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser // closed = it is to finish
	done  chan struct{}  // closed when it was waited for
	err   error          // after that: how it ended
}

// start runs a program; its output is appended to a file.
func start(name, log string, env []string, program string, args ...string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p := &process{name: name, cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s was not started: %w", name, err)
	}
	go func() { // ends with the process, which close sees to
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) signal(sig syscall.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		fmt.Fprintf(os.Stderr, "%v to %s: %v\n", sig, p.name, err)
	}
}

// kill ends it at once and waits for its end.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// waitFor waits for its end. False: it still runs.
func (p *process) waitFor(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// monotonicNow is CLOCK_MONOTONIC: nanoseconds since this machine was started, the same for all processes.
func monotonicNow() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(at.Nano())
}

// await looks until something is so. False: it did not become so in time, or ctx ended before.
func await(ctx context.Context, most, every time.Duration, satisfied func() bool) bool {
	for until := monotonicNow() + most; !satisfied(); {
		if monotonicNow() > until || !workload.Sleep(ctx, every) {
			return false
		}
	}
	return true
}
