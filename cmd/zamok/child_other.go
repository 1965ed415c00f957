//go:build unix && !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// childSysProcAttr have nothing here that ends a child with its parent.
func childSysProcAttr(groupLeader bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: groupLeader}
}

const (
	ioctlGetTermios = unix.TIOCGETA
	ioctlSetTermios = unix.TIOCSETAW // when all that was written is out
)
