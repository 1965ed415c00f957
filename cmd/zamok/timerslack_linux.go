package main

import (
	"os"
	"runtime"
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
)

// lengthenTimerSlack sets timerSlack for all threads of this process. A thread passes its own on to
// those that it begins, and the runtime has begun some before main: so the process executes itself
// once more, under the same id. Another slack than the kernel's default was chosen by somebody
// (TimerSlackNSec of systemd) and stays, and so does the default if the program can't be executed.
func lengthenTimerSlack() {
	runtime.LockOSThread() // which becomes the first thread
	defer runtime.UnlockOSThread()
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || slack != kernelSlack {
		return
	}
	path, err := os.Executable()
	if err != nil || unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0) != nil {
		return
	}
	_ = syscall.Exec(path, os.Args, os.Environ()) // returns only if it failed
}
