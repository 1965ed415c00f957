package main

import (
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// timerSlack is how late the kernel may wake a thread that sleeps for a time. A server whose work
	// comes in many short pieces has Go's monitoring thread sleep for 20 µs each time, again and again:
	// with the kernel's 50 µs that thread makes two of five context switches of a commit, and two of
	// three when nothing happens. No time that a node waits for needs to be that exact.
	timerSlack = 500_000 // ns
	// kernelSlack is the kernel's default.
	kernelSlack = 50_000
	// timerSlackVariable is in the environment of a server that has executed itself. With any value in it, a server does not.
	timerSlackVariable = "ZAMOK_TIMER_SLACK"
)

// lengthenTimerSlack sets timerSlack for all threads of this process. A thread passes its own on to
// those that it begins, and the runtime has begun some before main: so the process executes its
// program once more, under the same id. Another slack than the kernel's default was chosen by
// somebody (TimerSlackNSec of systemd) and stays, and so does the default if that can't be done.
func lengthenTimerSlack() {
	if os.Getenv(timerSlackVariable) != "" {
		return
	}
	runtime.LockOSThread() // which becomes the first thread
	defer runtime.UnlockOSThread()
	path, err := os.Executable()
	if err != nil || currentTimerSlack() != kernelSlack {
		return
	}
	if unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0) == nil {
		_ = syscall.Exec(path, os.Args, append(os.Environ(), timerSlackVariable+"="+strconv.Itoa(timerSlack))) // returns only if it failed
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, kernelSlack, 0, 0, 0)
	}
}

// currentTimerSlack is that of this thread; 0 = it can't be read.
func currentTimerSlack() int {
	slack, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	return slack
}
