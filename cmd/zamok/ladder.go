//go:build unix

package main

import (
	"os"
	"syscall"
	"time"
)

// leash is what a command under a lock hangs on.
type leash struct {
	lost <-chan struct{}      // closed when the lock is lost
	left func() time.Duration // for how long it is surely still held

	killAfter time.Duration // between TERM and KILL
}

// run runs a command until it ends or must be ended. Its error is that the command can't be run.
func (l leash) run(argv, env []string, signals <-chan os.Signal) (code int, ended bool, err error) {
	t := openTerminal()
	c, err := startChild(argv, env, t.ownGroup())
	if err != nil {
		t.close()
		return 0, false, err
	}
	t.begin(c)
	defer t.end(c)
	ended = l.watch(c, t, signals)
	return c.exitCode(), ended, nil
}

const (
	// killMargin lies between KILL and the deadline: for a timer that is late, and for the command
	// to be really gone.
	killMargin = 200 * time.Millisecond
	// groupEvery is how often one looks whether the rest of a command's group is gone.
	groupEvery = 20 * time.Millisecond
)

// watch passes signals on to the command until it has ended, and ends it before the lock does: then
// it returns true.
func (l leash) watch(c *child, t *terminal, signals <-chan os.Signal) (ended bool) {
	look := time.NewTimer(l.left() - l.killAfter - killMargin)
	defer look.Stop()
	for {
		select {
		case <-c.done:
			return false
		case s := <-signals:
			t.pass(c, s.(syscall.Signal))
		case s := <-c.stopped:
			t.stopped(c, s)
		case <-t.continued:
			l.resume(c, t)
		case <-t.wake.C:
			l.resume(c, t)
		case <-l.lost:
			l.end(c, signals)
			return true
		case <-look.C:
			// The lease was renewed since, or it was not.
			left := l.left() - l.killAfter - killMargin
			if left <= 0 {
				l.end(c, signals)
				return true
			}
			look.Reset(left)
		}
	}
}

// resume lets a stopped command go on, if the lock was not lost meanwhile: then the ladder is next.
func (l leash) resume(c *child, t *terminal) {
	if l.left() > 0 {
		t.resume(c)
	}
}

// end is the ladder: TERM, and KILL at kill-after later or just before the deadline, whichever is
// first. What the command leaves in its group has until then too.
func (l leash) end(c *child, signals <-chan os.Signal) {
	kill := time.NewTimer(min(l.killAfter, l.left()-killMargin))
	defer kill.Stop()
	look := time.NewTicker(groupEvery)
	defer look.Stop()
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGCONT) // who is stopped gets no TERM
	for {
		select {
		case <-kill.C:
			c.signal(syscall.SIGKILL)
			<-c.done
			return
		case s := <-signals:
			c.signal(s.(syscall.Signal))
		case <-look.C:
			select {
			case <-c.done:
				if !c.leftOvers() {
					return
				}
			default:
			}
		}
	}
}
