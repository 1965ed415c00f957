package clock

import "golang.org/x/sys/unix"

// Suspend is covered: the runtime's clock is CLOCK_MONOTONIC, which stands still in
// it, and CLOCK_BOOTTIME (Linux 2.6.39, older than any kernel Go runs on) counts
// it. A virtual machine paused by its hypervisor is not: both clocks may stop, and
// only tokens help.
const boottimeClock int32 = unix.CLOCK_BOOTTIME
