package clock

// Instant is one look at this machine's own two clocks: the monotonic one,
// which may be bent and may stand still while the machine is suspended, and the
// raw one, which is neither ([System]). Both count from some moment that means
// nothing elsewhere, so instants compare only with instants of the same Source.
//
// The two clocks are never mixed. Every comparison is made on both, and the more
// pessimistic result counts: more time has passed, less is left.
//
// The zero Instant is as early as any Source can show. A confirmation whose instant was
// lost on the way therefore confirms nothing, rather than too much.
type Instant struct{ mono, raw Span }

// Source shows the present Instant. System and Runtime are the two.
// A Source may be used by several goroutines at once.
type Source interface{ Now() Instant }

// DecodeInstant is the reverse of Encode. Every pair of numbers is an Instant:
// one that was made up can only be wrong, not harmful to the arithmetic.
func DecodeInstant(mono, raw uint64) Instant { return Instant{Span(mono), Span(raw)} }

// Encode gives the two numbers under which an Instant travels. To a process that
// carries them they are opaque. Numbers, not bytes: their size needs no check
// at the door, and keeping them costs no memory of its own.
func (i Instant) Encode() (mono, raw uint64) { return uint64(i.mono), uint64(i.raw) }

// Add moves both clocks, and stops at the ends of the scale.
func (i Instant) Add(s Span) Instant {
	return Instant{mono: addSaturated(i.mono, s), raw: addSaturated(i.raw, s)}
}

// Since is how much time has passed from earlier to i: the larger of the two
// differences.
func (i Instant) Since(earlier Instant) Span {
	mono, raw := i.sub(earlier)
	return max(mono, raw)
}

// Until is how much time is left from i to deadline: the smaller of the two
// differences. It is zero or less exactly when the deadline is Reached. A timer for
// the deadline is set to Span.Timer.
func (i Instant) Until(deadline Instant) Span {
	mono, raw := deadline.sub(i)
	return min(mono, raw)
}

// Reached reports whether either clock has come to the deadline.
func (i Instant) Reached(deadline Instant) bool {
	return i.mono >= deadline.mono || i.raw >= deadline.raw
}

// After reports whether i is later than j: ahead on one clock at least, and behind
// on neither. Two instants that each clock orders differently are not two looks
// of one Source, and neither is after the other.
func (i Instant) After(j Instant) bool {
	return i != j && i.mono >= j.mono && i.raw >= j.raw
}

// Later takes, on each clock, the later of the two. Of two local deadlines that
// both are safe for the same event the result is safe too: whichever clock can
// be relied on, its own half was safe before.
func (i Instant) Later(j Instant) Instant {
	return Instant{mono: max(i.mono, j.mono), raw: max(i.raw, j.raw)}
}

// String prints both clocks: "12.5s/13s", monotonic first.
func (i Instant) String() string { return i.mono.String() + "/" + i.raw.String() }

func (i Instant) sub(j Instant) (mono, raw Span) {
	return subSaturated(i.mono, j.mono), subSaturated(i.raw, j.raw)
}
