package clock

const (
	// DriftDivisor says which part of a span is given up to clocks that run at
	// different rates: one twentieth, so the rates of a client's and a leader's
	// clock may differ by up to 5 %.
	DriftDivisor = 20

	// MarginMin is given up even on short spans, for what does not grow with
	// the span: the time from a local check to the effect that it guards.
	MarginMin = 200 * Millisecond
)

// Margin is what a client gives up of a span: a twentieth, at least MarginMin.
func Margin(s Span) Span { return max(s/DriftDivisor, MarginMin) }

// Confirmation is what an answer that went through the log proves: the transmission sent at Sent
// was in an entry after which the cluster's time was At. Sent must be that of the *very
// transmission whose bytes were in the entry*, as echoed in the answer: never that of a later
// transmission, and never the moment of receipt.
type Confirmation struct {
	Sent Instant
	At   Time
}

// Local converts a deadline of the cluster into an instant of this machine that comes no later:
// Sent + (deadline − At) less a margin of a twentieth, at least 200 ms. If the cluster had passed
// the deadline when it answered, the result lies before Sent, so it is always reached.
func (c Confirmation) Local(deadline Time) Instant {
	ahead := deadline.Sub(c.At)
	return c.Sent.Add(subSaturated(ahead, Margin(ahead)))
}

// LocalDeadline is how long a client may consider its session valid without hearing from the
// cluster. It has one owner, who serialises its calls. Before the first confirmation nothing is
// valid; the zero LocalDeadline has none.
//
// It keeps one confirmation, the one sent last. Each confirmation holds by itself and forever, so
// keeping any one of them is safe. The lease ends at Sent + ttl less the margin, whatever At was.
// So the one sent last is the best one for the lease, and an answer that comes late to an earlier
// transmission changes nothing: Until never moves back (C7).
//
// For other deadlines another confirmation is sometimes better: one that travelled faster places
// a deadline later, by the difference of the two journeys. That gain is not worth keeping a second
// one. A client that has shown a deadline, and must not take it back, keeps the Later of old and
// new.
type LocalDeadline struct {
	ttl       Span
	newest    Confirmation // meaningful if confirmed
	confirmed bool
}

// NewLocalDeadline begins without a confirmation. ttl is what the cluster granted, which may
// differ from what the client requested.
func NewLocalDeadline(ttl Span) *LocalDeadline { return &LocalDeadline{ttl: ttl} }

// Confirm takes in a confirmation. They may come in any order.
func (l *LocalDeadline) Confirm(c Confirmation) {
	if !l.confirmed || c.Sent.After(l.newest.Sent) {
		l.newest, l.confirmed = c, true
	}
}

// Until is the local end of the lease; false before the first confirmation.
func (l *LocalDeadline) Until() (Instant, bool) {
	return l.Local(l.newest.At.Add(l.ttl))
}

// Local converts any deadline of the cluster, such as the end of a maximum hold; false before the
// first confirmation. It says nothing about the lease.
func (l *LocalDeadline) Local(deadline Time) (Instant, bool) {
	if !l.confirmed {
		return Instant{}, false
	}
	return l.newest.Local(deadline), true
}

// Valid reports whether the client may consider the session valid at now.
func (l *LocalDeadline) Valid(now Instant) bool {
	until, confirmed := l.Until()
	return confirmed && !now.Reached(until)
}
