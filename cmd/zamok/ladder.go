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

// outcome is how a command under a lock ended.
type outcome struct {
	code  int            // its own
	ended bool           // by us, since its lock was lost or nearly
	asked syscall.Signal // somebody's wish that we end too, passed on to it; 0 = none
}

// run runs a command until it ends or must be ended. Its error is that the command can't be run.
func (l leash) run(argv, env []string, signals <-chan os.Signal) (outcome, error) {
	t := openTerminal()
	c, err := startChild(argv, env, t.ownGroup())
	if err != nil {
		t.close()
		return outcome{}, err
	}
	t.begin(c)
	defer t.end(c)
	o := l.watch(c, t, signals)
	o.code = c.exitCode()
	return o, nil
}

func (o *outcome) note(s os.Signal) {
	if endsUs(s) {
		o.asked = s.(syscall.Signal)
	}
}

const (
	// killMargin lies between KILL and the deadline: for a timer that is late, and for the command
	// to be really gone.
	killMargin = 200 * time.Millisecond
	// groupEvery is how often one looks whether the rest of a command's group is gone.
	groupEvery = 20 * time.Millisecond
)

// watch passes signals on to the command until it has ended, and ends it before the lock does.
func (l leash) watch(c *child, t *terminal, signals <-chan os.Signal) (o outcome) {
	look := time.NewTimer(l.left() - l.killAfter - killMargin)
	defer look.Stop()
	for {
		select {
		case <-c.done:
			return o
		case s := <-signals:
			o.note(s)
			t.pass(c, s.(syscall.Signal))
		case s := <-c.stopped:
			t.stopped(c, s)
		case <-t.continued:
			l.resume(c, t)
		case <-t.wake.C:
			l.resume(c, t)
		case <-l.lost:
			l.end(c, signals, &o)
			return o
		case <-look.C:
			// The lease was renewed since, or it was not.
			left := l.left() - l.killAfter - killMargin
			if left <= 0 {
				l.end(c, signals, &o)
				return o
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
func (l leash) end(c *child, signals <-chan os.Signal, o *outcome) {
	o.ended = true
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
			o.note(s)
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
