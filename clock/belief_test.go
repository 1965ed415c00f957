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
// client's machine that sleeps.

// session is one session as nobody in it can see it: all moments are real time.
type session struct {
	ttl, hold  clock.Span
	clientRate clock.Span     // Of a million: how fast the client's clocks run.
	cluster    []era          // Follow each other; the last outlasts the session.
	sleep      [2]clock.Span  // From and to: the client's monotonic clock stands.
	sent       []transmission // In the order of sending.
}

// era is a stretch of real time in which cluster time runs at a rate of a
// million. Zero is a cluster without a leader, or one whose leader is paused.
type era struct{ lasts, rate clock.Span }

// transmission is sent, stamped as part of an entry, and answered.
type transmission struct{ sent, heard, answered clock.Span }

const million = 1_000_000

// scaled keeps the product inside int64 at the cost of a microsecond.
func scaled(s, rate clock.Span) clock.Span { return s / 1000 * rate / 1000 }

// timeAt is cluster time at a moment.
func (s session) timeAt(moment clock.Span) clock.Time {
	var time clock.Time
	for _, e := range s.cluster {
		passed := min(moment, e.lasts)
		time = time.Add(scaled(passed, e.rate))
		moment -= passed
	}
	return time
}

// momentOf is when cluster time comes to d.
func (s session) momentOf(d clock.Time) clock.Span {
	var moment clock.Span
	left := clock.Span(d)
	for _, e := range s.cluster {
		if grows := scaled(e.lasts, e.rate); left > grows {
			left -= grows
			moment += e.lasts
		} else if left > 0 {
			return moment + left*1000/e.rate*1000
		}
	}
	return moment
}

// look is what the client's clocks show at a moment.
func (s session) look(moment clock.Span) clock.Instant {
	slept := max(0, min(moment, s.sleep[1])-s.sleep[0])
	return clock.DecodeInstant(
		uint64(scaled(moment-slept, s.clientRate)), uint64(scaled(moment, s.clientRate)))
}

// life is what the cluster made of it: the transmissions that it heard in time,
// and the moment at which the lease ended because no other came.
func (s session) life() (heard []transmission, ended clock.Span) {
	byHearing := slices.SortedStableFunc(slices.Values(s.sent), func(a, b transmission) int {
		return cmp.Compare(a.heard, b.heard)
	})
	ended = math.MaxInt64
	for _, tr := range byHearing {
		if tr.heard >= ended {
			break
		}
		heard = append(heard, tr)
		ended = s.momentOf(s.timeAt(tr.heard).Add(s.ttl))
	}
	return heard, ended
}

// dating is from when the client counts an answer: from the sending of the
// transmission that it answers, or wrongly from something else.
type dating func(s session, answered transmission) clock.Instant

func fromItsSending(s session, tr transmission) clock.Instant { return s.look(tr.sent) }

func fromReceipt(s session, tr transmission) clock.Instant { return s.look(tr.answered) }

// fromTheLatestSending is what a client does that keeps one "last sent at".
func fromTheLatestSending(s session, tr transmission) clock.Instant {
	latest := tr.sent
	for _, other := range s.sent {
		if other.sent <= tr.answered {
			latest = max(latest, other.sent)
		}
	}
	return s.look(latest)
}

func withoutMargin(s session, tr transmission) clock.Instant {
	return s.look(tr.sent).Add(max(s.ttl/clock.DriftDivisor, clock.MarginMin))
}

// byOneClock never comes to the boot-time half of any deadline.
func byOneClock(s session, tr transmission) clock.Instant {
	mono, _ := s.look(tr.sent).Encode()
	return clock.DecodeInstant(mono, uint64(1000*clock.Hour))
}

// believe lets the client learn each answer as it arrives, and returns the first
// breach: at the moment when the lease, or the hold, is over in the cluster, or
// when the answer comes if that is later, the client must find it over too.
func (s session) believe(date dating) error {
	heard, leaseEnd := s.life()
	holdUntil := s.timeAt(heard[0].heard).Add(s.hold)
	holdEnd := s.momentOf(holdUntil)

	slices.SortStableFunc(heard, func(a, b transmission) int {
		return cmp.Compare(a.answered, b.answered)
	})
	trust := clock.NewLocalDeadline(s.ttl)
	var before clock.Instant
	for _, tr := range heard {
		trust.Confirm(clock.Confirmation{Sent: date(s, tr), At: s.timeAt(tr.heard)})

		if trust.Valid(s.look(max(tr.answered, leaseEnd))) {
			return fmt.Errorf("C6: the answer to %+v makes the lease outlast %v", tr, leaseEnd)
		}
		local, _ := trust.Local(holdUntil)
		if !s.look(max(tr.answered, holdEnd)).Reached(local) {
			return fmt.Errorf("C6: the answer to %+v makes the hold outlast %v", tr, holdEnd)
		}
		until, _ := trust.Until()
		if tr != heard[0] && until != until.Later(before) {
			return fmt.Errorf("C7: the answer to %+v moves trust from %v back to %v",
				tr, before, until)
		}
		before = until
	}
	return nil
}

func sessions() *rapid.Generator[session] {
	return rapid.Custom(func(t *rapid.T) session {
		// By eighths and a rest: a range alone would draw hardly any but short spans.
		span := func(least, most clock.Span, name string) clock.Span {
			eighth := (most - least) / 8
			eighths := rapid.SampledFrom([]clock.Span{0, 1, 2, 3, 4, 5, 6, 7}).Draw(t, name)
			return least + eighths*eighth + clock.Span(rapid.Int64Range(0, int64(eighth)).Draw(t, name))
		}
		// The ends of ±2.5 % on both sides: together just under 5 %.
		rate := func(rates ...clock.Span) clock.Span {
			return rapid.SampledFrom(append(rates, 975_000, million, 1_025_000)).Draw(t, "rate")
		}
		s := session{
			ttl:        span(2*clock.Second, 60*clock.Second, "ttl"),
			hold:       span(0, 5*clock.Minute, "hold"),
			clientRate: rate(),
		}
		s.sleep[0] = span(0, 2*clock.Minute, "asleep at")
		s.sleep[1] = s.sleep[0] + span(0, clock.Minute, "asleep for")
		for range rapid.IntRange(0, 4).Draw(t, "leader changes") {
			s.cluster = append(s.cluster, era{span(0, 30*clock.Second, "era"), rate(0)})
		}
		s.cluster = append(s.cluster, era{24 * clock.Hour, rate()})
		var sent clock.Span
		for range rapid.IntRange(1, 10).Draw(t, "transmissions") {
			sent += span(0, s.ttl, "apart")
			heard := sent + span(0, s.ttl, "there")
			s.sent = append(s.sent, transmission{sent, heard, heard + span(0, 2*s.ttl, "back")})
		}
		return s
	})
}

func TestNobodyBelievesLongerThanTheClusterAllows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		require.NoError(t, sessions().Draw(t, "session").believe(fromItsSending))
	})
	// The same seeds by which the wrong datings below are found, and more.
	all := sessions()
	for seed := range wrongSeeds {
		require.NoError(t, all.Example(seed).believe(fromItsSending), "seed %d", seed)
	}
}

func TestAWrongDatingIsCaught(t *testing.T) {
	all := sessions()
	for what, wrong := range map[string]dating{
		"from the receipt of the answer": fromReceipt,
		"from the latest transmission":   fromTheLatestSending,
		"nothing given up for drift":     withoutMargin,
		"by the monotonic clock alone":   byOneClock,
	} {
		requireCaught(t, what, func(seed int) error { return all.Example(seed).believe(wrong) })
	}
}
