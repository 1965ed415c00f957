package clock_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/clock"
)

const testEpoch = 40

func TestLeaderStartsAtStateMachineTime(t *testing.T) {
	var src clock.Manual
	src.Set(1000*clock.Hour, 2000*clock.Hour)
	leader := clock.StartLeader(&src, testEpoch, clock.Time(7*clock.Second))

	assert.Equal(t, clock.Reading{Epoch: testEpoch, Now: clock.Time(7 * clock.Second)},
		leader.Read())
	src.Advance(30 * clock.Millisecond)
	assert.Equal(t, "7.03s", leader.Read().Now.String())
	assert.Zero(t, leader.Discarded())
}

func TestLeaderDiscardsStallsAndSuspend(t *testing.T) {
	for _, c := range []struct {
		name            string
		change          func(*clock.Manual)
		want, discarded clock.Span
	}{
		{"nothing", func(*clock.Manual) {}, 0, 0},
		{"the longest step", func(m *clock.Manual) { m.Advance(clock.StepMax) }, clock.StepMax, 0},
		{"a stall of 3s", func(m *clock.Manual) { m.Advance(3 * clock.Second) },
			clock.StepMax, 3*clock.Second - clock.StepMax},
		{"an hour of sleep", func(m *clock.Manual) { m.Suspend(clock.Hour) }, 0, 0},
		{"a clock that goes back", func(m *clock.Manual) { m.Advance(-clock.Second) }, 0, 0},
		{"a monotonic clock that is hurried",
			func(m *clock.Manual) { m.Bend(60*clock.Millisecond, 66*clock.Millisecond) },
			60 * clock.Millisecond, 0},
		{"a monotonic clock that is slowed",
			func(m *clock.Manual) { m.Bend(60*clock.Millisecond, 54*clock.Millisecond) },
			54 * clock.Millisecond, 0},
	} {
		var src clock.Manual
		src.Advance(clock.Hour)
		leader := clock.StartLeader(&src, testEpoch, 0)
		c.change(&src)
		assert.Equal(t, clock.Time(c.want), leader.Read().Now, c.name)
		assert.Equal(t, c.discarded, leader.Discarded(), c.name)
	}
}

// Time that a clock took back and then showed again must not be counted twice.
func TestLeaderAfterClockStepsBack(t *testing.T) {
	var src clock.Manual
	src.Advance(clock.Hour)
	leader := clock.StartLeader(&src, testEpoch, 0)
	for range 10 {
		src.Advance(-50 * clock.Millisecond)
		leader.Read()
		src.Advance(50 * clock.Millisecond)
		leader.Read()
	}
	assert.Zero(t, leader.Read().Now)
	src.Advance(clock.Millisecond)
	assert.Equal(t, clock.Time(clock.Millisecond), leader.Read().Now)
}

// A monotonic clock that was slowed catches up: with its total it is the slower one all the time,
// and it runs fast.
func TestLeaderDoesNotCatchUpWithABentClock(t *testing.T) {
	var src clock.Manual
	leader := clock.StartLeader(&src, testEpoch, 0)
	for range 1000 {
		src.Bend(30*clock.Millisecond, 27*clock.Millisecond)
		leader.Read()
	}
	stamped := leader.Read().Now
	for range 1000 {
		src.Bend(30*clock.Millisecond, 33*clock.Millisecond)
		leader.Read()
	}
	assert.Equal(t, 30*clock.Second, leader.Read().Now.Sub(stamped))
}

// C1 with two clocks of which each does what it likes: no leader is faster than either of them,
// between any two readings.
func TestReadingsAreBoundedByBothClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var src clock.Manual
		src.Advance(clock.Hour)
		leader := clock.StartLeader(&src, testEpoch, 0)
		type reading struct {
			now       clock.Time
			mono, raw clock.Span // the most that was shown
		}
		mono, raw := clock.Hour, clock.Hour
		seen := []reading{{0, mono, raw}}
		for _, step := range rapid.SliceOf(clockAdvance()).Draw(t, "raw") {
			bent := clockAdvance().Draw(t, "monotonic")
			src.Bend(step, bent)
			m, r := src.Now().Encode()
			mono, raw = max(mono, clock.Span(m)), max(raw, clock.Span(r))
			seen = append(seen, reading{leader.Read().Now, mono, raw})
		}
		for i, later := range seen {
			for _, earlier := range seen[:i] {
				require.LessOrEqual(t, later.now.Sub(earlier.now),
					min(later.mono-earlier.mono, later.raw-earlier.raw))
				require.GreaterOrEqual(t, later.now, earlier.now)
			}
		}
	})
}

// C1, and the account of what was cut, for any schedule of readings.
func TestReadingsAreMonotonicAndBoundedBySource(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var src clock.Manual
		src.Advance(clock.Hour)
		base := clock.Time(rapid.Int64Range(0, int64(clock.Hour)).Draw(t, "base"))
		leader := clock.StartLeader(&src, testEpoch, base)

		start := src.Now()
		highest, previous := start, clock.Reading{Epoch: testEpoch, Now: base}
		for _, advance := range rapid.SliceOf(clockAdvance()).Draw(t, "passing") {
			src.Advance(advance)
			counted := clock.Span(0)
			if src.Now().After(highest) {
				counted = src.Now().Since(highest)
				highest = src.Now()
			}

			r := leader.Read()

			require.Equal(t, previous.Epoch, r.Epoch)
			require.Equal(t, min(counted, clock.StepMax), r.Now.Sub(previous.Now))
			require.Equal(t, highest.Since(start), r.Now.Sub(base)+leader.Discarded(),
				"what passed is either counted or cut")
			previous = r
		}
	})
}

// clockAdvance draws what a leader's clock meets between two readings: nothing, the
// usual tick, both sides of the cap, stalls, and a clock that goes back.
func clockAdvance() *rapid.Generator[clock.Span] {
	return rapid.Custom(func(t *rapid.T) clock.Span {
		return clock.Span(rapid.OneOf(
			rapid.Just(int64(0)),
			rapid.Int64Range(0, int64(50*clock.Millisecond)),
			rapid.Int64Range(int64(clock.StepMax)-1, int64(clock.StepMax)+1),
			rapid.Int64Range(0, int64(10*clock.Second)),
			rapid.Int64Range(-int64(clock.Second), 0),
		).Draw(t, "passed"))
	})
}

func TestLeaderSaturates(t *testing.T) {
	const end = clock.Time(1<<63 - 1)
	var src clock.Manual
	leader := clock.StartLeader(&src, testEpoch, end-5)
	src.Advance(clock.StepMax)
	assert.Equal(t, end, leader.Read().Now)
}

// leaderClock is what an entry can be stamped with: a Leader, or a wrong one.
type leaderClock interface {
	onTick()
	now() clock.Time
}

type steppingClock struct{ *clock.Leader }

func (c steppingClock) onTick()         { c.Read() }
func (c steppingClock) now() clock.Time { return c.Read().Now }

// lastTickClock is the plausible mistake: the ticker moves the clock, and a stamp
// shows where the ticker left it.
type lastTickClock struct {
	*clock.Leader
	atTick clock.Time
}

func (c *lastTickClock) onTick()         { c.atTick = c.Read().Now }
func (c *lastTickClock) now() clock.Time { return c.atTick }

// leaseShortfall is by how much a lease ends before its ttl is over: a renewal is
// stamped when sinceTick has passed after a tick, and time continues in ticks of
// tickEvery until the clock shows the deadline.
func leaseShortfall(c leaderClock, src *clock.Manual,
	sinceTick, tickEvery, ttl clock.Span) clock.Span {
	c.onTick()
	src.Advance(sinceTick)
	stampedAt := src.Now()
	deadline := c.now().Add(ttl)
	src.Advance(tickEvery - sinceTick)
	c.onTick()
	for c.now() < deadline {
		src.Advance(tickEvery)
		c.onTick()
	}
	return max(0, ttl-src.Now().Since(stampedAt))
}

func TestLastTickReadingEndsLeaseEarly(t *testing.T) {
	const sinceTick, tickEvery, ttl = 95 * clock.Millisecond, 100 * clock.Millisecond,
		2 * clock.Second
	var src clock.Manual
	ticking := &lastTickClock{Leader: clock.StartLeader(&src, testEpoch, 0)}
	assert.Equal(t, 95*clock.Millisecond, leaseShortfall(ticking, &src, sinceTick, tickEvery, ttl))
	step := steppingClock{clock.StartLeader(&src, testEpoch, 0)}
	assert.Zero(t, leaseShortfall(step, &src, sinceTick, tickEvery, ttl))
}

// C2: by a reading that is a step no lease ends early, whatever the ticks do,
// stalls included.
func TestSteppingReadingNeverEndsLeaseEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := func(least, most clock.Span, name string) clock.Span {
			return clock.Span(rapid.Int64Range(int64(least), int64(most)).Draw(t, name))
		}
		tickEvery := span(clock.Millisecond, 300*clock.Millisecond, "tick every")
		sinceTick := span(0, tickEvery, "since tick")
		ttl := span(clock.Millisecond, 5*clock.Second, "ttl")
		var src clock.Manual
		leader := steppingClock{clock.StartLeader(&src, testEpoch, 0)}
		require.Zero(t, leaseShortfall(leader, &src, sinceTick, tickEvery, ttl))
	})
}

// The ticker and the goroutine that stamps share one Leader.
func TestLeaderConcurrentReads(t *testing.T) {
	const readers, readings = 8, 500
	var src clock.Manual
	leader := clock.StartLeader(&src, testEpoch, 0)

	backward := make(chan string, readers)
	var reading sync.WaitGroup
	for range readers {
		reading.Go(func() {
			before := leader.Read()
			for range readings {
				src.Advance(clock.Millisecond)
				r := leader.Read()
				if r.Now <= before.Now {
					// Each reader let time pass since its own latest reading.
					backward <- fmt.Sprintf("%v after %v", r.Now, before.Now)
					return
				}
				before = r
				leader.Discarded()
			}
		})
	}
	reading.Wait()
	close(backward)
	for what := range backward {
		t.Error("a reading did not rise:", what)
	}
	passed := src.Now().Since(clock.Instant{})
	assert.Equal(t, passed, clock.Span(leader.Read().Now)+leader.Discarded())
}

// In virtual time, as an epoch runs it: a ticker, and entries at any moment.
func TestLeaderInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := clock.StartLeader(clock.Runtime(), testEpoch, 0)
		done := make(chan struct{})
		var ticking sync.WaitGroup
		ticking.Go(func() {
			ticker := time.NewTicker(30 * time.Millisecond)
			defer ticker.Stop()
			for {
				select {
				case <-ticker.C:
					leader.Read()
				case <-done:
					return
				}
			}
		})
		time.Sleep(10*time.Second + 17*time.Millisecond)
		assert.Equal(t, "10.017s", leader.Read().Now.String())
		assert.Zero(t, leader.Discarded())
		close(done)
		ticking.Wait()

		time.Sleep(5 * time.Second)
		assert.Equal(t, "10.117s", leader.Read().Now.String(), "no tick came: a stall")
		assert.Equal(t, "4.9s", leader.Discarded().String())
	})
}
