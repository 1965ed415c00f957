//go:build unix

package main

import (
	"os"
	"syscall"
	"time"

	"zamok/clock"
)

// supervisor runs a command that must end before its lock can be granted to another client.
type supervisor struct {
	lost     <-chan struct{}      // closed when the lock is lost
	timeLeft func() time.Duration // how long it is certainly still held

	killAfter time.Duration // between TERM and KILL
}

// commandResult is how a command under a lock ended.
type commandResult struct {
	exitCode   int  // its own
	terminated bool // by this program, since its lock was lost or about to be
	// a signal that ends this process too, passed on to the command; 0 = none
	stopSignal syscall.Signal
}

// run runs a command until it ends or must be ended. An error means that the command can't be run.
func (l supervisor) run(argv, env []string, signals <-chan os.Signal) (commandResult, error) {
	t := openTerminal()
	c, err := startChild(argv, env, t.childLeadsGroup())
	if err != nil {
		t.close()
		return commandResult{}, err
	}
	t.attach(c)
	defer t.detach(c)
	o := l.supervise(c, t, signals)
	o.exitCode = c.exitCode()
	return o, nil
}

func (o *commandResult) recordSignal(s os.Signal) {
	if isTermination(s) {
		o.stopSignal = s.(syscall.Signal)
	}
}

const (
	// killMargin is the time between KILL and the deadline. It allows for a late timer and for the
	// end of the command.
	killMargin = 200 * time.Millisecond
	// groupPollInterval is how often the end of a command's group is polled.
	groupPollInterval = 20 * time.Millisecond
)

// supervise passes signals on to the command until it has ended, and ends it before its lock is
// lost.
func (l supervisor) supervise(c *child, t *terminal, signals <-chan os.Signal) (o commandResult) {
	untilTerm := func() time.Duration { return l.timeLeft() - l.killAfter - killMargin }
	deadlineTimer := time.NewTimer(inTime(untilTerm()))
	defer deadlineTimer.Stop()
	for {
		select {
		case <-c.done:
			return o
		case s := <-signals:
			o.recordSignal(s)
			t.forward(c, s.(syscall.Signal))
		case s := <-c.stopped:
			t.childStopped(c, s)
		case <-t.continued:
			l.resume(c, t)
		case <-t.resumeTimer.C:
			l.resume(c, t)
		case <-l.lost:
			l.terminate(c, signals, &o)
			return o
		case <-deadlineTimer.C:
			// The lease may have been renewed since the timer was set.
			left := untilTerm()
			if left <= 0 {
				l.terminate(c, signals, &o)
				return o
			}
			deadlineTimer.Reset(inTime(left))
		}
	}
}

// inTime is the duration for a timer that must fire within d.
func inTime(d time.Duration) time.Duration { return clock.FromDuration(d).Timer() }

// resume lets a stopped command continue, unless the lock was lost meanwhile: then terminate is
// next.
func (l supervisor) resume(c *child, t *terminal) {
	if l.timeLeft() > 0 {
		t.resumeChild(c)
	}
}

// terminate sends TERM, and KILL after kill-after or just before the deadline, whichever is first.
// Other processes of the command's group have as long.
func (l supervisor) terminate(c *child, signals <-chan os.Signal, o *commandResult) {
	o.terminated = true
	began := time.Now()
	untilKill := func() time.Duration {
		return min(l.killAfter-time.Since(began), l.timeLeft()-killMargin)
	}
	killTimer := time.NewTimer(inTime(untilKill()))
	defer killTimer.Stop()
	groupPoll := time.NewTicker(groupPollInterval)
	defer groupPoll.Stop()
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGCONT) // a stopped process handles no TERM
	for {
		select {
		case <-killTimer.C:
			if left := untilKill(); left > 0 {
				killTimer.Reset(inTime(left))
				continue
			}
			c.signal(syscall.SIGKILL)
			<-c.done
			return
		case s := <-signals:
			o.recordSignal(s)
			c.signal(s.(syscall.Signal))
		case <-groupPoll.C:
			select {
			case <-c.done:
				if !c.groupAlive() {
					return
				}
			default:
			}
		}
	}
}
