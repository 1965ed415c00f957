package clock_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"zamok/clock"
)

// What a client believes against what is so: C6 and C7 over a network that
// delays and reorders, leaders that come and go, clocks that run unevenly, and a
// client's machine that sleeps and whose monotonic clock is bent.

// scenario is one session seen from outside: all moments are real time.
type scenario struct {
	ttl, hold  clock.Span
	clientRate clock.Span // Of a million: how fast the client's raw clock runs.
	// Of a million: how fast its monotonic clock runs by the raw one, first and then.
	bend      [2]clock.Span
	bentUntil clock.Span     // When the second begins.
	phases    []phase        // Follow each other; the last outlasts the session.
	suspended [2]clock.Span  // From and to: the client's monotonic clock stands.
	sent      []transmission // In the order of sending.
}

// phase is a stretch of real time in which cluster time runs at a rate of a
// million. Zero is a cluster without a leader, or one whose leader is paused.
type phase struct{ duration, rate clock.Span }

// transmission is sent, stamped as part of an entry, and answered.
type transmission struct{ sent, applied, answered clock.Span }

const rateUnit = 1_000_000

// scaleByRate keeps the product inside int64 at the cost of a microsecond.
func scaleByRate(s, rate clock.Span) clock.Span { return s / 1000 * rate / 1000 }

// clusterTimeAt is cluster time at a moment.
func (s scenario) clusterTimeAt(moment clock.Span) clock.Time {
	var time clock.Time
	for _, e := range s.phases {
		elapsed := min(moment, e.duration)
		time = time.Add(scaleByRate(elapsed, e.rate))
		moment -= elapsed
	}
	return time
}

// realTimeOf is when cluster time comes to d.
func (s scenario) realTimeOf(d clock.Time) clock.Span {
	var moment clock.Span
	left := clock.Span(d)
	for _, e := range s.phases {
		if gained := scaleByRate(e.duration, e.rate); left > gained {
			left -= gained
			moment += e.duration
		} else if left > 0 {
			return moment + left*1000/e.rate*1000
		}
	}
	return moment
}

// clientClockAt is what the client's clocks show at a moment.
func (s scenario) clientClockAt(moment clock.Span) clock.Instant {
	suspended := max(0, min(moment, s.suspended[1])-s.suspended[0])
	first := min(moment, s.bentUntil)
	mono := scaleByRate(first, s.bend[0]) + scaleByRate(moment-first, s.bend[1]) - suspended
	return clock.DecodeInstant(
		uint64(max(0, scaleByRate(mono, s.clientRate))), uint64(scaleByRate(moment, s.clientRate)))
}

// leaseHistory is what the cluster made of it: the transmissions that it heard in time,
// and the moment at which the lease ended because no other came.
func (s scenario) leaseHistory() (renewals []transmission, ended clock.Span) {
	byApplied := slices.SortedStableFunc(slices.Values(s.sent), func(a, b transmission) int {
		return cmp.Compare(a.applied, b.applied)
	})
	ended = math.MaxInt64
	for _, tr := range byApplied {
		if tr.applied >= ended {
			break
		}
		renewals = append(renewals, tr)
		ended = s.realTimeOf(s.clusterTimeAt(tr.applied).Add(s.ttl))
	}
	return renewals, ended
}

// sentEstimator is from when the client counts an answer: from the sending of the
// transmission that it answers, or wrongly from something else.
type sentEstimator func(s scenario, answered transmission) clock.Instant

func ownSendTime(s scenario, tr transmission) clock.Instant { return s.clientClockAt(tr.sent) }

func receiptTime(s scenario, tr transmission) clock.Instant { return s.clientClockAt(tr.answered) }

// latestSendTime is what a client does that keeps one "last sent at".
func latestSendTime(s scenario, tr transmission) clock.Instant {
	latest := tr.sent
	for _, other := range s.sent {
		if other.sent <= tr.answered {
			latest = max(latest, other.sent)
		}
	}
	return s.clientClockAt(latest)
}

func sendTimeWithoutMargin(s scenario, tr transmission) clock.Instant {
	return s.clientClockAt(tr.sent).Add(max(s.ttl/clock.DriftDivisor, clock.MarginMin))
}

// monotonicClockOnly never comes to the raw half of any deadline.
func monotonicClockOnly(s scenario, tr transmission) clock.Instant {
	mono, _ := s.clientClockAt(tr.sent).Encode()
	return clock.DecodeInstant(mono, uint64(1000*clock.Hour))
}

// checkDeadlines lets the client learn each answer as it arrives, and returns the first
// breach: at the moment when the lease, or the hold, is over in the cluster, or
// when the answer comes if that is later, the client must find it over too.
func (s scenario) checkDeadlines(estimateSent sentEstimator) error {
	renewals, leaseEnd := s.leaseHistory()
	holdUntil := s.clusterTimeAt(renewals[0].applied).Add(s.hold)
	holdEnd := s.realTimeOf(holdUntil)

	slices.SortStableFunc(renewals, func(a, b transmission) int {
		return cmp.Compare(a.answered, b.answered)
	})
	deadline := clock.NewLocalDeadline(s.ttl)
	var before clock.Instant
	for _, tr := range renewals {
		deadline.Confirm(clock.Confirmation{Sent: estimateSent(s, tr),
			At: s.clusterTimeAt(tr.applied)})

		if deadline.Valid(s.clientClockAt(max(tr.answered, leaseEnd))) {
			return fmt.Errorf("C6: the answer to %+v makes the lease outlast %v", tr, leaseEnd)
		}
		local, _ := deadline.Local(holdUntil)
		if !s.clientClockAt(max(tr.answered, holdEnd)).Reached(local) {
			return fmt.Errorf("C6: the answer to %+v makes the hold outlast %v", tr, holdEnd)
		}
		until, _ := deadline.Until()
		if tr != renewals[0] && until != until.Later(before) {
			return fmt.Errorf("C7: the answer to %+v moves trust from %v back to %v",
				tr, before, until)
		}
		before = until
	}
	return nil
}

func scenarios() *rapid.Generator[scenario] {
	return rapid.Custom(func(t *rapid.T) scenario {
		// By eighths and a rest: a range alone would draw hardly any but short spans.
		span := func(least, most clock.Span, name string) clock.Span {
			eighth := (most - least) / 8
			eighths := rapid.SampledFrom([]clock.Span{0, 1, 2, 3, 4, 5, 6, 7}).Draw(t, name)
			return least + eighths*eighth +
				clock.Span(rapid.Int64Range(0, int64(eighth)).Draw(t, name))
		}
		// The ends of ±2.5 % on both sides: together just under 5 %.
		rate := func(rates ...clock.Span) clock.Span {
			return rapid.SampledFrom(append(rates, 975_000, rateUnit, 1_025_000)).Draw(t, "rate")
		}
		s := scenario{
			ttl:        span(2*clock.Second, 60*clock.Second, "ttl"),
			hold:       span(0, 5*clock.Minute, "hold"),
			clientRate: rate(),
			bentUntil:  span(0, 2*clock.Minute, "bent until"),
		}
		for i := range s.bend {
			s.bend[i] = rapid.SampledFrom([]clock.Span{900_000, rateUnit, 1_100_000}).Draw(t,
				"bend")
		}
		s.suspended[0] = span(0, 2*clock.Minute, "asleep at")
		s.suspended[1] = s.suspended[0] + span(0, clock.Minute, "asleep for")
		for range rapid.IntRange(0, 4).Draw(t, "leader changes") {
			s.phases = append(s.phases, phase{span(0, 30*clock.Second, "era"), rate(0)})
		}
		s.phases = append(s.phases, phase{24 * clock.Hour, rate()})
		var sent clock.Span
		for range rapid.IntRange(1, 10).Draw(t, "transmissions") {
			sent += span(0, s.ttl, "apart")
			applied := sent + span(0, s.ttl, "there")
			s.sent = append(s.sent, transmission{sent, applied, applied + span(0, 2*s.ttl, "back")})
		}
		return s
	})
}

func TestLocalDeadlineNeverOutlastsTheLease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		require.NoError(t, scenarios().Draw(t, "session").checkDeadlines(ownSendTime))
	})
	// The same seeds by which the wrong datings below are found, and more.
	all := scenarios()
	for seed := range mutantSeeds {
		require.NoError(t, all.Example(seed).checkDeadlines(ownSendTime), "seed %d", seed)
	}
}

func TestWrongSendTimeIsCaught(t *testing.T) {
	all := scenarios()
	for name, estimate := range map[string]sentEstimator{
		"from the receipt of the answer": receiptTime,
		"from the latest transmission":   latestSendTime,
		"nothing given up for drift":     sendTimeWithoutMargin,
		"by the monotonic clock alone":   monotonicClockOnly,
	} {
		requireCaught(t, name, func(seed int) error {
			return all.Example(seed).checkDeadlines(estimate)
		})
	}
}
