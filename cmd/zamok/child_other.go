//go:build unix && !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes have nothing here that ends a child with its parent.
func childAttributes(ownGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: ownGroup}
}

const (
	getModes = unix.TIOCGETA
	putModes = unix.TIOCSETAW // when all that was written is out
)
