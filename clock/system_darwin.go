package clock

import "golang.org/x/sys/unix"

// Suspend is covered, by names that mislead a reader of Linux: CLOCK_UPTIME_RAW
// (mach_absolute_time) stands still while the machine sleeps, and
// CLOCK_MONOTONIC_RAW (mach_continuous_time) counts the sleep.
const (
	monotonicClock int32 = unix.CLOCK_UPTIME_RAW
	boottimeClock  int32 = unix.CLOCK_MONOTONIC_RAW
)
