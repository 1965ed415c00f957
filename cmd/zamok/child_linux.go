package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// childSysProcAttr ask the kernel to kill the child with the thread that started it. The kernel
// forgets that when a child changes its user, as sudo does.
func childSysProcAttr(groupLeader bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: groupLeader, Pdeathsig: syscall.SIGKILL}
}

const (
	ioctlGetTermios = unix.TCGETS
	ioctlSetTermios = unix.TCSETSW // when all that was written is out
)
