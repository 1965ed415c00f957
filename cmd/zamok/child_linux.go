package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// childSysProcAttr makes the kernel kill the child when the thread that started it ends. That does
// not apply after the child has changed its user, as sudo does.
func childSysProcAttr(groupLeader bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: groupLeader, Pdeathsig: syscall.SIGKILL}
}

const (
	ioctlGetTermios = unix.TCGETS
	ioctlSetTermios = unix.TCSETSW // after all output was written
)
