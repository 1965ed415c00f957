package clock

import "time"

// Runtime reads the Go runtime's monotonic clock and shows it as both clocks.
// It counts from the call of Runtime, so two calls give two scales.
//
// On most systems that clock stands still while the machine is suspended, and on
// some it can be bent. Nothing here notices: where that matters use System. In exchange it is the
// one that runs in virtual time inside a testing/synctest bubble, if Runtime is
// called there too.
func Runtime() Source { return runtimeClock{start: time.Now()} }

type runtimeClock struct{ start time.Time }

func (c runtimeClock) Now() Instant {
	// time.Since takes the monotonic difference: a wall clock that was set does
	// not show here.
	elapsed := FromDuration(time.Since(c.start))
	return Instant{mono: elapsed, raw: elapsed}
}
