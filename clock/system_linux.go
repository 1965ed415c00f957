package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now reads three clocks. The runtime's is CLOCK_MONOTONIC: a time service may bend
// it by up to 10 % (adjtimex), and it stands while the machine is suspended.
// CLOCK_BOOTTIME is the same clock and the time asleep, and is bent alike.
// CLOCK_MONOTONIC_RAW is not bent, and stands too. So the raw clock is this one and
// the time asleep, which is the difference of the two others. A virtual machine paused
// by its hypervisor is not covered: all of them may stop, and only tokens help.
//
// CLOCK_MONOTONIC_RAW is read last, so that the raw clock shows a moment within this
// call. If the thread is stopped between the first two looks while their clock is
// bent, the moment is too early by a tenth of the stop at most. For a client that is
// a stop after the look. For a leader it is 10 ms at most, a tenth of what one step may
// add, which MarginMin covers.
func (systemClock) Now() Instant {
	boot := readClock(unix.CLOCK_BOOTTIME)
	mono := FromDuration(time.Since(processStart)) // without a system call
	asleep := boot - mono
	return Instant{mono: mono, raw: readClock(unix.CLOCK_MONOTONIC_RAW) + asleep}
}
