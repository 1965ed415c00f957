package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// holdSpan is a time in which a client considered itself the holder of a lock, and must have been
// right.
type holdSpan struct {
	*Hold
	item Item
	from time.Duration
	to   time.Duration
}

func (p *holdSpan) describe(v *historyIndex) string {
	return fmt.Sprintf("%s in %v (token %d, ticket %s) from %s to %s",
		p.Client, p.item, p.Token, p.Ref, v.formatTime(p.from), v.formatTime(p.to))
}

// holdSpans are the pieces of one lock, in order of their beginning. A hold is cut where it was
// downgraded, and ends where an operator ended it; what a pause covers is left out.
func (v *historyIndex) holdSpans(l *lockRecords) []holdSpan {
	var all []holdSpan
	for _, hold := range l.holds {
		if v.session(hold.Session).lease.ReleaseOnDisconnect {
			continue
		}
		item := itemFor(hold.Items, l.name)
		to := hold.To
		if to == 0 {
			to = max(hold.From, cmp.Or(v.diedAt[hold.Client], v.end))
		}
		to = min(to, v.endRequestedAt(hold))
		if d := hold.Downgraded; d != 0 && item.Mode == Exclusive {
			shared := Item{Name: l.name, Mode: Shared}
			all = v.appendUnexcused(all,
				holdSpan{Hold: hold, item: shared, from: max(d, hold.From), to: to})
			to = min(to, d)
		}
		all = v.appendUnexcused(all, holdSpan{Hold: hold, item: item, from: hold.From, to: to})
	}
	slices.SortStableFunc(all, func(a, b holdSpan) int { return cmp.Compare(a.from, b.from) })
	return all
}

// appendUnexcused adds the parts of a piece that lie outside the times in which its client is
// excused.
func (v *historyIndex) appendUnexcused(all []holdSpan, p holdSpan) []holdSpan {
	for _, s := range v.excused[p.Client] {
		if s.to <= p.from || s.from >= p.to {
			continue
		}
		// The part before this time is compared with the other times; the part after it continues
		// here.
		before := p
		before.to = s.from
		all = v.appendUnexcused(all, before)
		p.from = s.to
	}
	if p.from < p.to {
		all = append(all, p)
	}
	return all
}

// checkHoldExclusion looks for clients that held at one moment, by their own knowledge, what
// excludes each other.
func checkHoldExclusion(f *checker) {
	for _, l := range f.locks {
		var live []holdSpan
		for _, p := range f.holdSpans(l) {
			f.examined++
			live = slices.DeleteFunc(live, func(q holdSpan) bool { return q.to <= p.from })
			permits := p.item.Permits
			for i := range live {
				q := &live[i]
				if permits += q.item.Permits; q.Hold == p.Hold || compatible(q.item, p.item) {
					continue
				}
				f.violationf("lock %q: two held it at once for %v: %s, and %s",
					l.name, min(p.to, q.to)-p.from, q.describe(f.historyIndex),
					p.describe(f.historyIndex))
			}
			if of := p.item.Limit; p.item.Mode == Permits && permits > of {
				f.violationf("lock %q: from %s on %d of %d permits were held; the last was %s",
					l.name, f.formatTime(p.from), permits, of, p.describe(f.historyIndex))
			}
			live = append(live, p)
		}
	}
}

// checkLossBeforeGrant looks for grants that were made while another client still held the grant
// before. No event is seen before it happens, so a hold that lasted longer was reported lost too
// late.
func checkLossBeforeGrant(f *checker) {
	for _, l := range f.locks {
		grants := slices.DeleteFunc(slices.Clone(l.events),
			func(ev *Event) bool { return ev.Kind != EvGranted })
		slices.SortStableFunc(grants, func(a, b *Event) int { return cmp.Compare(a.At, b.At) })
		spans, next := f.holdSpans(l), 0
		var live []holdSpan
		for _, g := range grants {
			for ; next < len(spans) && spans[next].from <= g.At; next++ {
				live = append(live, spans[next])
			}
			live = slices.DeleteFunc(live, func(p holdSpan) bool { return p.to <= g.At })
			f.examined++
			for i := range live {
				p := &live[i]
				if p.Token >= g.Token || p.Ref == g.Ref ||
					compatible(p.item, itemFor(g.Items, l.name)) {
					continue
				}
				f.violationf("lock %q: ticket %s was granted token %d at %s (as %s saw it), and "+
					"another still held the lock: %s; that hold ended %v too late",
					l.name, g.Ref, g.Token, f.formatTime(g.At),
					cmp.Or(g.Node, "a node"), p.describe(f.historyIndex), p.to-g.At)
			}
		}
	}
}

// checkFencing looks at what the resources accepted: tokens never fall, and each was granted.
// Pauses and wrong clocks excuse nothing here.
func checkFencing(f *checker) {
	writes := make([]*Write, len(f.Writes))
	for i := range f.Writes {
		writes[i] = &f.Writes[i]
	}
	slices.SortStableFunc(writes, func(a, b *Write) int { return cmp.Compare(a.At, b.At) })
	highestWrites := map[string]*Write{} // the accepted exclusive write with the greatest token
	for _, w := range writes {
		f.examined++
		highest := highestWrites[w.Resource]
		below := highest != nil && w.Token < highest.Token
		switch {
		case w.Accepted && below:
			f.violationf("resource %q: at %s it accepted a write of %s with token %d, "+
				"and at %s it had accepted one of %s with token %d",
				w.Resource, f.formatTime(w.At), w.Client, w.Token, f.formatTime(highest.At),
				highest.Client, highest.Token)
		case w.Accepted && !f.lock(w.Resource).tokens[w.Token]:
			f.violationf("resource %q: at %s it accepted a write of %s with token %d, which was "+
				"never granted",
				w.Resource, f.formatTime(w.At), w.Client, w.Token)
		case !w.Accepted && !below:
			f.violationf("resource %q: at %s it rejected a write of %s with token %d, "+
				"though it had seen no greater one",
				w.Resource, f.formatTime(w.At), w.Client, w.Token)
		}
		if w.Accepted && !w.Shared && !below {
			highestWrites[w.Resource] = w
		}
	}
}

// ClockMargin is what a client takes off every deadline for the drift of clocks.
func ClockMargin(ttl time.Duration) time.Duration { return max(ttl/20, 200*time.Millisecond) }

// checkLeases looks for leases that ended early: a session that expired, or a hold that was given
// up for lost, though something later had been sent and was answered with proof.
func checkLeases(f *checker) {
	// every end is recorded, so a session without one, or with another one, did not expire
	if f.Plan.CompleteEvents {
		for _, s := range f.sessions {
			if n := len(s.renewals); s.lease.Session != 0 && n > 0 &&
				s.renewals[n-1].Sent-s.renewals[0].Sent > s.lease.TTL {
				f.examined++ // without its renewals it would have ended
			}
		}
	}
	for _, ev := range f.events {
		s, all := f.session(ev.Session).lease, f.session(ev.Session).renewals
		if s.Session == 0 || len(all) == 0 || ev.Reason != Expired ||
			ev.Kind != EvEnded && ev.Kind != EvLost {
			continue
		}
		f.examined++
		sent := all[len(all)-1].Sent
		if until := sent + time.Duration(float64(s.TTL)/cmp.Or(f.Plan.ClockRate, 1)); ev.At <
			until {
			f.violationf("session %d of %s had expired at %s; what it sent at %s was answered, "+
				"so with a ttl of %v it had until %s",
				s.Session, s.Client, f.formatTime(ev.At), f.formatTime(sent), s.TTL,
				f.formatTime(until))
		}
	}
	for _, hold := range f.holds {
		s, all := f.session(hold.Session).lease, f.session(hold.Session).renewals
		if s.Session == 0 || hold.End != Lost || hold.Reason != "" && hold.Reason != Expired ||
			f.isExcused(hold, hold.To) {
			continue
		}
		n, _ := slices.BinarySearchFunc(all, hold.To, func(renewal Renewal, to time.Duration) int {
			return cmp.Compare(renewal.Confirmed, to)
		})
		if n == 0 {
			continue
		}
		f.examined++
		// Twice the margin: the client's clock may be fast by as much as it takes off.
		if until := all[n-1].Sent + s.TTL - 2*ClockMargin(s.TTL); hold.To < until {
			f.violationf("%s gave up %s (token %d) for lost at %s; what it sent at %s had been "+
				"answered by then, so it had until %s at least",
				hold.Client, hold.Ref, hold.Token, f.formatTime(hold.To),
				f.formatTime(all[n-1].Sent), f.formatTime(until))
		}
	}
}

// checkExpirations checks that the sessions of dead clients ended within the bound: their ttl, the
// cluster time that did not pass meanwhile, the end of a time without commits, and some slack.
func checkExpirations(f *checker) {
	for i := range f.Sessions {
		s := &f.Sessions[i]
		if s.Died == 0 || f.session(s.Session).lease != s {
			continue
		}
		ev, nominal := f.session(s.Session).seenEnd, s.Died+f.maxElapsed(s.TTL)
		stalled := f.expirationDue(s.Died, nominal)
		due := stalled + f.expirationSlack()
		explanation := fmt.Sprintf(
			"with a ttl of %v, and %v for times in which the cluster's clock stood or nothing "+
				"was committed, it was due by %s", s.TTL, stalled-nominal, f.formatTime(due))
		switch {
		case ev == nil && !f.Plan.CompleteEvents: // it may have ended unseen
		case ev == nil && f.end > due:
			f.violationf("%s died at %s, and its session %d was never ended; %s",
				s.Client, f.formatTime(s.Died), s.Session, explanation)
		case ev != nil && ev.At > due:
			f.violationf("%s died at %s, and its session %d ended at %s only, %v later; %s",
				s.Client, f.formatTime(s.Died), s.Session, f.formatTime(ev.At), ev.At-s.Died,
				explanation)
		}
		if ev != nil || f.Plan.CompleteEvents {
			f.examined++
		}
	}
}

func (f *checker) expirationSlack() time.Duration {
	return cmp.Or(f.Plan.ExpirationSlack, time.Second)
}

// expirationDue is when the session of a client ends that died then, and whose ttl is over at due
// if time passes.
func (f *checker) expirationDue(died, due time.Duration) time.Duration {
	nominal := due
	for changed := true; changed; {
		changed = false
		lost := time.Duration(0)
		for _, s := range f.Stalls {
			switch {
			case s.From >= due+f.expirationSlack() || s.To <= died:
				// it has ended before, or died later
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
