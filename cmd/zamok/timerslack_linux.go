package main

import (
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// timerSlack is how late the kernel may wake a sleeping thread. The work of a server comes in
	// many short pieces, so Go's monitoring thread often sleeps for 20 µs. With the kernel's
	// default of 50 µs that thread causes two of five context switches of a commit, and two of
	// three on an idle node. No timer of a node needs to be that exact.
	timerSlack = 500_000 // ns
	// kernelSlack is the default of the kernel.
	kernelSlack = 50_000
	// timerSlackVariable is in the environment of a server that has executed itself. A server with
	// the variable does not.
	timerSlackVariable = "ZAMOK_TIMER_SLACK"
)

// lengthenTimerSlack sets timerSlack for all threads of this process. A thread inherits the slack
// of the thread that started it, and the runtime has started some before main: so the process
// executes its program once more, with the same pid. A slack other than the kernel's default was
// set by an operator (TimerSlackNSec of systemd) and stays. If executing fails, the default stays.
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
		// returns only if it failed
		_ = syscall.Exec(path, os.Args,
			append(os.Environ(), timerSlackVariable+"="+strconv.Itoa(timerSlack)))
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, kernelSlack, 0, 0, 0)
	}
}

// currentTimerSlack is the slack of this thread; 0 if it can't be read.
func currentTimerSlack() int {
	slack, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	return slack
}
