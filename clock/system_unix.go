//go:build linux || darwin

package clock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// System reads this machine's own clocks: one that stands still while the
// machine is suspended and one that runs on, so that a lease which ran out
// during sleep is known to have, at the first look after waking.
//
// Which clocks they are, and on which systems suspend is covered at all, stands
// in the system_ file of each. All Systems of one process show one scale.
func System() Source { return systemClock{} }

type systemClock struct{}

// processStart is where the scale of the clock that stands still begins.
var processStart = time.Now()

func (systemClock) Now() Instant {
	// The monotonic clock first: a machine suspended between the two looks then
	// shows a boot clock too far ahead, which is the pessimistic side. It is the
	// runtime's, which is read without a system call.
	mono := FromDuration(time.Since(processStart))
	return Instant{mono: mono, boot: readBootClock()}
}

// readBootClock panics when the kernel refuses. There is no value to continue with:
// any number made up here would be a lease that a client relies on.
func readBootClock() Span {
	var ts unix.Timespec
	if err := unix.ClockGettime(boottimeClock, &ts); err != nil {
		panic(fmt.Sprintf("clock: the boot-time clock (id %d) can't be read: %v; "+
			"no lease can be timed on this machine: allow clock_gettime and start again", boottimeClock, err))
	}
	return Span(ts.Nano())
}
