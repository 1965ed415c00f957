//go:build linux || darwin

package clock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// System reads this machine's own clocks: the runtime's, and a raw one, which nothing
// bends and which runs on while the machine is suspended. So a lease that ran out
// during sleep is known to have, at the first look after waking, and who sets the
// machine's time, at once or little by little, changes no rate here.
//
// Which clocks they are, and on which systems they are covered at all, stands
// in the system_ file of each. All Systems of one process show one scale.
func System() Source { return systemClock{} }

type systemClock struct{}

// processStart is where the scale of the runtime's clock begins.
var processStart = time.Now()

// readClock panics when the kernel refuses. There is no value to continue with:
// any number made up here would be a lease that a client relies on.
func readClock(id int32) Span {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(fmt.Sprintf("clock: clock %d of this machine can't be read: %v; "+
			"no lease can be timed here: allow clock_gettime and start again", id, err))
	}
	return Span(ts.Nano())
}
