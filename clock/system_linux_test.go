package clock_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zamok/clock"
)

// The second clock of this machine is the one that no time service bends, and what it was asleep.
// CLOCK_BOOTTIME would pass every other test.
func TestSystemReadsTheRawClock(t *testing.T) {
	read := func(id int32) clock.Span {
		var ts unix.Timespec
		require.NoError(t, unix.ClockGettime(id, &ts))
		return clock.Span(ts.Nano())
	}
	src := clock.System()
	for first := src.Now(); src.Now().Since(first) < clock.Millisecond; {
		raw, boot := read(unix.CLOCK_MONOTONIC_RAW), read(unix.CLOCK_BOOTTIME)
		mono, shown := src.Now().Encode()
		least := raw + boot - clock.Span(mono)
		most := read(unix.CLOCK_MONOTONIC_RAW) + read(unix.CLOCK_BOOTTIME) - clock.Span(mono)
		assert.GreaterOrEqual(t, clock.Span(shown), least)
		assert.LessOrEqual(t, clock.Span(shown), most)
	}
}
