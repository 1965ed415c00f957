package main

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// monotonicNow is CLOCK_MONOTONIC: nanoseconds since this machine was started, the same for all processes.
func monotonicNow() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(at.Nano())
}

// sleepContext lets time pass. False: ctx ended before.
func sleepContext(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// await looks until something is so. False: it did not become so in time, or ctx ended before.
func await(ctx context.Context, most, every time.Duration, satisfied func() bool) bool {
	for until := monotonicNow() + most; !satisfied(); {
		if monotonicNow() > until || !sleepContext(ctx, every) {
			return false
		}
	}
	return true
}
