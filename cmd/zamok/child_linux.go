package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes ask the kernel to kill the child with the thread that started it. The kernel
// forgets that when a child changes who it is, as sudo does.
func childAttributes(ownGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: ownGroup, Pdeathsig: syscall.SIGKILL}
}

const (
	getModes = unix.TCGETS
	putModes = unix.TCSETSW // when all that was written is out
)
