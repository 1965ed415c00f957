package clock

import (
	"math"
	"time"
)

// Span is a length of time in nanoseconds. It is time.Duration under a name of
// our own, because the packages that must not be able to read a clock do not
// import "time" at all and still have to count in something.
type Span int64

const (
	Nanosecond  Span = 1
	Microsecond      = 1000 * Nanosecond
	Millisecond      = 1000 * Microsecond
	Second           = 1000 * Millisecond
	Minute           = 60 * Second
	Hour             = 60 * Minute
)

// FromDuration turns the standard library's duration into a Span.
func FromDuration(d time.Duration) Span { return Span(d) }

// Duration turns a Span into the standard library's duration.
func (s Span) Duration() time.Duration { return time.Duration(s) }

// String prints as time.Duration does: "1m12.5s".
func (s Span) String() string { return time.Duration(s).String() }

// addSaturated stops at the ends of the scale. A sum that wrapped would turn a
// deadline in the far future into one in the past, or the reverse.
func addSaturated(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}

// subSaturated is a−b with the same care; it is not addSaturated(a, −b),
// because the smallest int64 has no negative.
func subSaturated(a, b int64) int64 {
	switch {
	case b < 0 && a > math.MaxInt64+b:
		return math.MaxInt64
	case b > 0 && a < math.MinInt64+b:
		return math.MinInt64
	}
	return a - b
}
