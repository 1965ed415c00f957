package clock_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/clock"
)

// instantAt makes an Instant of two readings in seconds.
func instantAt(mono, boot clock.Span) clock.Instant {
	return clock.DecodeInstant(uint64(mono*clock.Second), uint64(boot*clock.Second))
}

func TestInstantUsesMorePessimisticClock(t *testing.T) {
	for _, c := range []struct {
		name          string
		now, deadline clock.Instant
		left          clock.Span
		reached       bool
	}{
		{"both clocks are before it", instantAt(10, 10), instantAt(15, 15),
			5 * clock.Second, false},
		{"both have come to it", instantAt(15, 15), instantAt(15, 15), 0, true},
		{"the machine slept past it", instantAt(11, 40), instantAt(15, 15),
			-25 * clock.Second, true},
		{"the machine slept, but not long enough", instantAt(11, 13), instantAt(15, 15),
			2 * clock.Second, false},
		{"only the monotonic clock is past it", instantAt(16, 14), instantAt(15, 15),
			-clock.Second, true},
	} {
		assert.Equal(t, c.left, c.now.Until(c.deadline), c.name)
		assert.Equal(t, c.reached, c.now.Reached(c.deadline), c.name)
		assert.Equal(t, -c.left, c.now.Since(c.deadline), c.name)
	}
}

// A machine that sleeps through its lease finds it over at the first look after
// waking, though the clock that Go's timers run on says that no time has passed.
func TestSuspendedMachineReachesDeadline(t *testing.T) {
	var src clock.Manual
	start := src.Now()
	deadline := start.Add(10 * clock.Second)
	src.Advance(clock.Second)
	require.False(t, src.Now().Reached(deadline))

	src.Suspend(9 * clock.Second)

	assert.True(t, src.Now().Reached(deadline))
	assert.Equal(t, 10*clock.Second, src.Now().Since(start))
	assert.Equal(t, "1s/10s", src.Now().String())
}

func TestInstantsOfOneSourceAreOrdered(t *testing.T) {
	assert.True(t, instantAt(2, 3).After(instantAt(2, 2)))
	assert.True(t, instantAt(3, 2).After(instantAt(2, 2)))
	assert.False(t, instantAt(2, 2).After(instantAt(2, 2)))
	assert.False(t, instantAt(2, 2).After(instantAt(3, 3)))
	// Two scales: no order, in either direction.
	assert.False(t, instantAt(1, 9).After(instantAt(5, 5)))
	assert.False(t, instantAt(5, 5).After(instantAt(1, 9)))
	assert.Equal(t, instantAt(5, 9), instantAt(1, 9).Later(instantAt(5, 5)))
}

// C5 and C8 for any two numbers, those no source would show included.
func TestInstantProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i, j := anyInstant().Draw(t, "i"), anyInstant().Draw(t, "j")
		s := clock.Span(anyInt64().Draw(t, "s"))

		require.Equal(t, i, clock.DecodeInstant(i.Encode()))
		require.Equal(t, i.Until(j) <= 0, i.Reached(j))
		require.False(t, i.After(j) && j.After(i))
		if s >= 0 {
			require.False(t, i.After(i.Add(s)))
		} else {
			require.False(t, i.Add(s).After(i))
		}
		require.False(t, i.After(i.Later(j)))
		require.Equal(t, i.Later(j), j.Later(i))
	})
}

func anyInstant() *rapid.Generator[clock.Instant] {
	return rapid.Custom(func(t *rapid.T) clock.Instant {
		return clock.DecodeInstant(
			uint64(anyInt64().Draw(t, "mono")),
			uint64(anyInt64().Draw(t, "boot")),
		)
	})
}

func TestZeroInstantIsEarliest(t *testing.T) {
	var lost clock.Instant
	for _, src := range []clock.Source{clock.System(), clock.Runtime(), new(clock.Manual)} {
		assert.False(t, lost.After(src.Now()), "%T", src)
	}
}

// The real clocks of this machine run, never go back, and are not ahead of what
// the standard library measures meanwhile.
func TestRealClocksAdvance(t *testing.T) {
	const duration = 2 * clock.Millisecond
	for _, src := range []clock.Source{clock.System(), clock.Runtime()} {
		began := time.Now()
		start := src.Now()
		for seen := start; seen.Since(start) < duration; {
			next := src.Now()
			require.False(t, seen.After(next), "%T went back from %v to %v", src, seen, next)
			seen = next
		}
		elapsed := clock.FromDuration(time.Since(began))
		// The witness began earlier and ended later; half allows for its rate.
		assert.GreaterOrEqual(t, elapsed, duration/2, "%T runs ahead", src)
	}
}

func TestRuntimeRunsInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := clock.Runtime()
		start := src.Now()
		time.Sleep(time.Hour)
		assert.Equal(t, clock.Hour, src.Now().Since(start))
		assert.Equal(t, clock.Span(0), src.Now().Until(start.Add(clock.Hour)))
	})
}

func TestManualAdvancesOnlyExplicitly(t *testing.T) {
	var src clock.Manual
	assert.Equal(t, clock.Instant{}, src.Now())
	src.Set(4*clock.Second, 9*clock.Second)
	assert.Equal(t, instantAt(4, 9), src.Now())
	src.Advance(clock.Second)
	src.Suspend(clock.Second)
	assert.Equal(t, instantAt(5, 11), src.Now())
	src.Advance(math.MaxInt64)
	assert.False(t, instantAt(5, 11).After(src.Now()), "the scale has an end, and no way round it")
}
