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

// Confirmation is what an answer that went through the log proves: the transmission
// sent at Sent was in an entry after which the cluster's time was At. Sent must
// be that of the *very transmission whose bytes were in the entry*, as echoed in
// the answer, never of a later one and never the moment of receipt.
type Confirmation struct {
	Sent Instant
	At   Time
}

// Local turns a deadline of the cluster into an instant of this machine that
// comes no later: Sent + (d − At) less a margin of a twentieth, at least 200 ms.
// For a deadline that the cluster had passed when it answered, the result lies
// before Sent, so it is reached whenever one looks.
func (p Confirmation) Local(d Time) Instant {
	ahead := d.Sub(p.At)
	return p.Sent.Add(subSaturated(ahead, Margin(ahead)))
}

// LocalDeadline is how long a client may continue believing in its session without hearing
// from anybody. It has one owner, who serialises its calls. The zero LocalDeadline,
// and one that has confirmed nothing, trusts nothing.
//
// It keeps one proof, the one sent last, for these reasons. Every proof is sound
// by itself and forever, so keeping any one of them is safe. The lease ends at
// Sent + ttl less the margin, whatever At was, so the proof sent last *is* the
// best one for the lease, no other need be remembered, and an answer that comes
// late to an earlier transmission changes nothing: Until never moves back (C7).
//
// For other deadlines the best proof would be another one now and then: one that
// travelled faster places a deadline later, by the difference of the two
// journeys. That is not worth a second kept proof; who has shown a deadline to
// somebody and must not take it back keeps the Later of old and new.
type LocalDeadline struct {
	ttl       Span
	newest    Confirmation // Meaningful if proven.
	confirmed bool
}

// NewLocalDeadline begins without proof. ttl is what the cluster granted, which is not
// always what was asked for.
func NewLocalDeadline(ttl Span) *LocalDeadline { return &LocalDeadline{ttl: ttl} }

// Confirm takes in a proof, in whatever order answers arrive.
func (t *LocalDeadline) Confirm(p Confirmation) {
	if !t.confirmed || p.Sent.After(t.newest.Sent) {
		t.newest, t.confirmed = p, true
	}
}

// Until is the local end of the lease; false if nothing was proven yet.
func (t *LocalDeadline) Until() (Instant, bool) {
	return t.Local(t.newest.At.Add(t.ttl))
}

// Local places any deadline of the cluster, such as the end of a maximum hold;
// false if nothing was proven yet. It says nothing about the lease.
func (t *LocalDeadline) Local(d Time) (Instant, bool) {
	if !t.confirmed {
		return Instant{}, false
	}
	return t.newest.Local(d), true
}

// Valid says whether the session may be believed in at now.
func (t *LocalDeadline) Valid(now Instant) bool {
	until, proven := t.Until()
	return proven && !now.Reached(until)
}
