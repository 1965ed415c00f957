package clock

import "golang.org/x/sys/unix"

// Suspend is covered: CLOCK_MONOTONIC stands still in it and CLOCK_BOOTTIME
// (Linux 2.6.39, older than any kernel Go runs on) counts it. A virtual machine
// paused by its hypervisor is not: both clocks may stop, and only tokens help.
const (
	monotonicClock int32 = unix.CLOCK_MONOTONIC
	boottimeClock  int32 = unix.CLOCK_BOOTTIME
)
