package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now reads three clocks. The runtime's is CLOCK_MONOTONIC: NTP bends it, by up to 10 %
// (adjtimex; chronyd by up to 8.33 % unless told otherwise), and it stands while
// the machine is suspended. CLOCK_BOOTTIME is the same with the time asleep, and
// bent alike. CLOCK_MONOTONIC_RAW is not bent, and stands too; so the raw clock is
// this one and the time asleep, the difference of the two others. A virtual
// machine paused by its hypervisor is not covered: all of them may stop, and only
// tokens help.
//
// CLOCK_MONOTONIC_RAW is read last, so that the raw clock shows a moment within this call. If
// the thread is stopped between the first two looks while their clock is bent, that
// moment is too early, by a tenth of the stop at most: a client loses by it what it
// loses by a stop after the look, and a leader 9 ms (of one step: StepMax).
func (systemClock) Now() Instant {
	boot := readClock(unix.CLOCK_BOOTTIME)
	mono := FromDuration(time.Since(processStart)) // without a system call
	asleep := boot - mono
	return Instant{mono: mono, raw: readClock(unix.CLOCK_MONOTONIC_RAW) + asleep}
}
