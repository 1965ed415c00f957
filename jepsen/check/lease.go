package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// margin is what a client takes off every deadline for the drift of clocks.
func margin(ttl time.Duration) time.Duration { return max(ttl/20, 200*time.Millisecond) }

// leases looks for leases that ended early: a session that expired, or a hold that was given up for
// lost, though something later had been sent and was answered with proof.
func leases(f *finder) {
	beats := map[uint64][]Beat{}
	for _, b := range f.Beats {
		beats[b.Session] = append(beats[b.Session], b)
	}
	for id, all := range beats {
		slices.SortStableFunc(all, func(a, b Beat) int { return cmp.Compare(a.Back, b.Back) })
		for i := 1; i < len(all); i++ { // each then tells the latest that had been proved by its Back
			all[i].Sent = max(all[i].Sent, all[i-1].Sent)
		}
		beats[id] = all
	}
	if f.Plan.Audit { // every end is recorded, so who has none, or another one, did not expire
		for id, all := range beats {
			if s := f.sessions[id]; s != nil && all[len(all)-1].Sent-all[0].Sent > s.TTL {
				f.looked++ // without its renewals it would have ended
			}
		}
	}
	for _, ev := range f.events {
		s, all := f.sessions[ev.Session], beats[ev.Session]
		if s == nil || len(all) == 0 || ev.Why != Expired || ev.Happened != EvEnded && ev.Happened != EvLost {
			continue
		}
		f.looked++
		sent := all[len(all)-1].Sent
		if until := sent + time.Duration(float64(s.TTL)/orElse(f.Plan.Rate, 1)); ev.At < until {
			f.wrong("session %d of %s had expired at %s; what it sent at %s was answered, "+
				"so with a ttl of %v it had until %s",
				s.Session, s.Client, f.at(ev.At), f.at(sent), s.TTL, f.at(until))
		}
	}
	for _, b := range f.holds {
		s, all := f.sessions[b.Session], beats[b.Session]
		if s == nil || b.How != Lost || b.Why != "" && b.Why != Expired || f.excused(b, b.To) {
			continue
		}
		n, _ := slices.BinarySearchFunc(all, b.To, func(beat Beat, to time.Duration) int {
			return cmp.Compare(beat.Back, to)
		})
		if n == 0 {
			continue
		}
		f.looked++
		// Twice the margin: the client's clock may be fast by as much as it takes off.
		if until := all[n-1].Sent + s.TTL - 2*margin(s.TTL); b.To < until {
			f.wrong("%s gave up %s (token %d) for lost at %s; what it sent at %s had been answered by then, "+
				"so it had until %s at least",
				b.Client, b.Ref, b.Token, f.at(b.To), f.at(all[n-1].Sent), f.at(until))
		}
	}
}

// deaths sees that the sessions of the dead ended, and within the bound: their ttl, the cluster time
// that did not pass meanwhile, the end of a time in which nothing was committed, and some slack.
func deaths(f *finder) {
	ended := map[uint64]*Event{}
	for _, ev := range f.events {
		if first := ended[ev.Session]; ev.Happened == EvEnded && (first == nil || ev.At < first.At) {
			ended[ev.Session] = ev
		}
	}
	for i := range f.Sessions {
		s := &f.Sessions[i]
		if s.Died == 0 || f.sessions[s.Session] != s {
			continue
		}
		ev, bare := ended[s.Session], s.Died+f.most(s.TTL)
		freed := f.freed(s.Died, bare)
		due := freed + f.limits.Slack
		why := fmt.Sprintf("with a ttl of %v, and %v for times in which the cluster's clock stood or nothing was "+
			"committed, it was due by %s", s.TTL, freed-bare, f.at(due))
		switch {
		case ev == nil && !f.Plan.Audit: // it may have ended unseen
		case ev == nil && f.end > due:
			f.wrong("%s died at %s, and its session %d was never ended; %s",
				s.Client, f.at(s.Died), s.Session, why)
		case ev != nil && ev.At > due:
			f.wrong("%s died at %s, and its session %d ended at %s only, %v later; %s",
				s.Client, f.at(s.Died), s.Session, f.at(ev.At), ev.At-s.Died, why)
		}
		if ev != nil || f.Plan.Audit {
			f.looked++
		}
	}
}

// freed is when the session of somebody ends who died then, and whose ttl is over at due if time passes.
func (f *finder) freed(died, due time.Duration) time.Duration {
	bare := due
	for again := true; again; {
		again = false
		lost := time.Duration(0)
		for _, s := range f.Stalls {
			switch {
			case s.From >= due+f.limits.Slack || s.To <= died: // it has ended before, or died later
			case !s.Held:
				lost += s.Lost
			case s.To > due:
				due, again = s.To, true
			}
		}
		if bare+lost > due {
			due, again = bare+lost, true
		}
	}
	return due
}
