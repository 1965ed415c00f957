package main

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"zamok/jepsen/workload"
)

// monotonicNow is CLOCK_MONOTONIC: nanoseconds since this machine was started, the same for all processes.
func monotonicNow() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(at.Nano())
}

// await looks until something is so. False: it did not become so in time, or ctx ended before.
func await(ctx context.Context, most, every time.Duration, satisfied func() bool) bool {
	for until := monotonicNow() + most; !satisfied(); {
		if monotonicNow() > until || !workload.Sleep(ctx, every) {
			return false
		}
	}
	return true
}
