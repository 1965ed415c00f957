//go:build unix

package main

import (
	"os"
	"syscall"
	"time"

	"zamok/clock"
)

// supervisor is what a command under a lock hangs on.
type supervisor struct {
	lost     <-chan struct{}      // closed when the lock is lost
	timeLeft func() time.Duration // for how long it is surely still held

	killAfter time.Duration // between TERM and KILL
}

// commandResult is how a command under a lock ended.
type commandResult struct {
	exitCode   int            // its own
	terminated bool           // by us, since its lock was lost or nearly
	stopSignal syscall.Signal // a signal that ends this process too, passed on to the command; 0 = none
}

// run runs a command until it ends or must be ended. Its error is that the command can't be run.
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
	// killMargin lies between KILL and the deadline: for a timer that is late, and for the command
	// to have ended.
	killMargin = 200 * time.Millisecond
	// groupPollInterval is how often the end of a command's group is polled.
	groupPollInterval = 20 * time.Millisecond
)

// supervise passes signals on to the command until it has ended, and ends it before the lock does.
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
			// The lease was renewed since, or it was not.
			left := untilTerm()
			if left <= 0 {
				l.terminate(c, signals, &o)
				return o
			}
			deadlineTimer.Reset(inTime(left))
		}
	}
}

// inTime is what to set a timer to that must go off within d.
func inTime(d time.Duration) time.Duration { return clock.FromDuration(d).Timer() }

// resume lets a stopped command continue, if the lock was not lost meanwhile: then the ladder is next.
func (l supervisor) resume(c *child, t *terminal) {
	if l.timeLeft() > 0 {
		t.resumeChild(c)
	}
}

// terminate is the ladder: TERM, and KILL at kill-after later or just before the deadline, whichever is
// first. What the command leaves in its group has until then too.
func (l supervisor) terminate(c *child, signals <-chan os.Signal, o *commandResult) {
	o.terminated = true
	began := time.Now()
	untilKill := func() time.Duration { return min(l.killAfter-time.Since(began), l.timeLeft()-killMargin) }
	killTimer := time.NewTimer(inTime(untilKill()))
	defer killTimer.Stop()
	groupPoll := time.NewTicker(groupPollInterval)
	defer groupPoll.Stop()
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGCONT) // a stopped process gets no TERM
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
