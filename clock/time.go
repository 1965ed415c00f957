package clock

import (
	"fmt"
	"math"
	"time"
)

// Time is cluster time: the nanoseconds during which the cluster has had a
// leader, counted from its first. Zero is the birth of the cluster. It is part
// of the replicated state, the same on every node at the same place of the log.
// Being a plain number it is compared with <, == and >.
type Time int64

// Add stops at the ends of the scale instead of wrapping (C8).
func (t Time) Add(s Span) Time { return addSaturated(t, s) }

// Sub is how much later t is than u; negative if it is earlier. It stops at the
// ends of the scale.
func (t Time) Sub(u Time) Span { return subSaturated(t, u) }

// String prints the time since the cluster's birth: "12.5s".
func (t Time) String() string { return Span(t).String() }

// Stamp is a place in the replicated sequence: the term of the leader that put
// the entry there, and the index that the machine counted. Stamps order
// everything that ever happened in a cluster and never repeat.
type Stamp struct{ Term, Index uint64 }

// Before reports whether s comes before u.
func (s Stamp) Before(u Stamp) bool {
	return s.Term < u.Term || s.Term == u.Term && s.Index < u.Index
}

// String prints "term:index".
func (s Stamp) String() string { return fmt.Sprintf("%d:%d", s.Term, s.Index) }

// Span is a length of time in nanoseconds. It is time.Duration under a name of our own, because the
// packages that must be unable to read a clock do without "time" and still have to count in
// something.
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

// Timer is what to set a timer to that must go off within s: nine tenths of it, and
// at least a millisecond. Timers run on the monotonic clock, which may be slowed. What
// it wakes looks at the clocks, and sets the timer again if it is too early.
func (s Span) Timer() time.Duration { return max(s-s/BendDivisor, Millisecond).Duration() }

// BendDivisor says by which part of its rate a monotonic clock can be slowed or
// hurried: a tenth, on Linux.
const BendDivisor = 10

// String prints as time.Duration does: "1m12.5s".
func (s Span) String() string { return time.Duration(s).String() }

// addSaturated stops at the ends of the scale. A sum that wrapped would turn a
// deadline in the far future into one in the past, or the reverse.
func addSaturated[T ~int64](a T, b Span) T {
	if b > 0 {
		return min(a, math.MaxInt64-T(b)) + T(b)
	}
	return max(a, math.MinInt64-T(b)) + T(b)
}

// subSaturated is a−b with the same care; it is not addSaturated(a, −b),
// because the smallest int64 has no negative.
func subSaturated[T ~int64](a, b T) Span {
	if b > 0 {
		return Span(max(a, math.MinInt64+b) - b)
	}
	return Span(min(a, math.MaxInt64+b) - b)
}
