package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// ClockMargin is what a client takes off every deadline for the drift of clocks.
func ClockMargin(ttl time.Duration) time.Duration { return max(ttl/20, 200*time.Millisecond) }

// checkLeases looks for leases that ended early: a session that expired, or a hold that was given up for
// lost, though something later had been sent and was answered with proof.
func checkLeases(f *checker) {
	renewals := map[uint64][]Renewal{}
	for _, b := range f.Renewals {
		renewals[b.Session] = append(renewals[b.Session], b)
	}
	for id, all := range renewals {
		slices.SortStableFunc(all, func(a, b Renewal) int { return cmp.Compare(a.Confirmed, b.Confirmed) })
		for i := 1; i < len(all); i++ { // each then has the latest Sent that was confirmed by its Confirmed
			all[i].Sent = max(all[i].Sent, all[i-1].Sent)
		}
		renewals[id] = all
	}
	if f.Plan.CompleteEvents { // every end is recorded, so a session without one, or with another one, did not expire
		for id, all := range renewals {
			if s := f.sessions[id]; s != nil && all[len(all)-1].Sent-all[0].Sent > s.TTL {
				f.examined++ // without its renewals it would have ended
			}
		}
	}
	for _, ev := range f.events {
		s, all := f.sessions[ev.Session], renewals[ev.Session]
		if s == nil || len(all) == 0 || ev.Reason != Expired || ev.Kind != EvEnded && ev.Kind != EvLost {
			continue
		}
		f.examined++
		sent := all[len(all)-1].Sent
		if until := sent + time.Duration(float64(s.TTL)/cmp.Or(f.Plan.ClockRate, 1)); ev.At < until {
			f.violationf("session %d of %s had expired at %s; what it sent at %s was answered, "+
				"so with a ttl of %v it had until %s",
				s.Session, s.Client, f.formatTime(ev.At), f.formatTime(sent), s.TTL, f.formatTime(until))
		}
	}
	for _, b := range f.holds {
		s, all := f.sessions[b.Session], renewals[b.Session]
		if s == nil || b.End != Lost || b.Reason != "" && b.Reason != Expired || f.isExcused(b, b.To) {
			continue
		}
		n, _ := slices.BinarySearchFunc(all, b.To, func(renewal Renewal, to time.Duration) int {
			return cmp.Compare(renewal.Confirmed, to)
		})
		if n == 0 {
			continue
		}
		f.examined++
		// Twice the margin: the client's clock may be fast by as much as it takes off.
		if until := all[n-1].Sent + s.TTL - 2*ClockMargin(s.TTL); b.To < until {
			f.violationf("%s gave up %s (token %d) for lost at %s; what it sent at %s had been answered by then, "+
				"so it had until %s at least",
				b.Client, b.Ref, b.Token, f.formatTime(b.To), f.formatTime(all[n-1].Sent), f.formatTime(until))
		}
	}
}

// checkExpirations sees that the sessions of dead clients ended, and within the bound: their ttl, the cluster time
// that did not pass meanwhile, the end of a time in which nothing was committed, and some slack.
func checkExpirations(f *checker) {
	ended, slack := map[uint64]*Event{}, f.expirationSlack()
	for _, ev := range f.events {
		if first := ended[ev.Session]; ev.Kind == EvEnded && (first == nil || ev.At < first.At) {
			ended[ev.Session] = ev
		}
	}
	for i := range f.Sessions {
		s := &f.Sessions[i]
		if s.Died == 0 || f.sessions[s.Session] != s {
			continue
		}
		ev, nominal := ended[s.Session], s.Died+f.maxElapsed(s.TTL)
		stalled := f.expirationDue(s.Died, nominal)
		due := stalled + slack
		explanation := fmt.Sprintf("with a ttl of %v, and %v for times in which the cluster's clock stood or nothing was "+
			"committed, it was due by %s", s.TTL, stalled-nominal, f.formatTime(due))
		switch {
		case ev == nil && !f.Plan.CompleteEvents: // it may have ended unseen
		case ev == nil && f.end > due:
			f.violationf("%s died at %s, and its session %d was never ended; %s",
				s.Client, f.formatTime(s.Died), s.Session, explanation)
		case ev != nil && ev.At > due:
			f.violationf("%s died at %s, and its session %d ended at %s only, %v later; %s",
				s.Client, f.formatTime(s.Died), s.Session, f.formatTime(ev.At), ev.At-s.Died, explanation)
		}
		if ev != nil || f.Plan.CompleteEvents {
			f.examined++
		}
	}
}

func (f *checker) expirationSlack() time.Duration { return cmp.Or(f.Plan.ExpirationSlack, time.Second) }

// expirationDue is when the session of a client ends that died then, and whose ttl is over at due if time passes.
func (f *checker) expirationDue(died, due time.Duration) time.Duration {
	nominal := due
	for changed := true; changed; {
		changed = false
		lost := time.Duration(0)
		for _, s := range f.Stalls {
			switch {
			case s.From >= due+f.expirationSlack() || s.To <= died: // it has ended before, or died later
			case !s.CommitsBlocked:
				lost += s.LostTime
			case s.To > due:
				due, changed = s.To, true
			}
		}
		if nominal+lost > due {
			due, changed = nominal+lost, true
		}
	}
	return due
}
