package clock

import "golang.org/x/sys/unix"

// Suspend is covered: the runtime's clock is mach_absolute_time, which stands
// still while the machine sleeps, and CLOCK_MONOTONIC_RAW, whose name misleads a
// reader of Linux, is mach_continuous_time, which counts the sleep.
const boottimeClock int32 = unix.CLOCK_MONOTONIC_RAW
