//go:build unix && !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// childSysProcAttr can't make a child end with its parent here.
func childSysProcAttr(groupLeader bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: groupLeader}
}

const (
	ioctlGetTermios = unix.TIOCGETA
	ioctlSetTermios = unix.TIOCSETAW // after all output was written
)
