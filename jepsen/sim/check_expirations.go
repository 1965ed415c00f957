package sim

import (
	"cmp"
	"slices"
	"time"

	"zamok/fsm"
)

const (
	// dueDelayMax is how late an epoch may notice that something is due.
	dueDelayMax = 25 * time.Millisecond
	// commitTimeMax is what a commit takes at most when nothing is wrong.
	commitTimeMax = 100 * time.Millisecond
)

// CheckExpirations sees that the sessions of the dead ended, and within the bound: the ttl since they
// were last heard, what each change of leader lost, what the clocks' stalls cut off, and what the
// expiring entry itself was held up by. Everything that a client was told is a sign that the
// cluster worked when it was asked, so what may have been lost is what passed since such a sign.
func (s *Sim) CheckExpirations(h *History, clocksStood time.Duration) {
	s.Helper()
	a := newAvailability(h.Ops(), s.Audit.Entries())
	var found findingList
	for _, d := range h.deaths {
		if d.Session == 0 {
			continue // it died before it knew that it lived
		}
		ended, e, ok := s.Audit.Find(func(ev fsm.Event) bool { return ev.Kind == fsm.EvSessionEnded && ev.Session == d.Session })
		if !ok {
			found.add("%s died at %v, and session %d lives", d.Client, d.At, d.Session)
			continue
		}
		renewed, _ := s.Audit.LastRenewed(d.Session)
		lost, held := a.unavailableTime(renewed, e.At), e.At-a.lastConfirmedBefore(e.Index)
		bound := d.TTL + lost + clocksStood + max(0, held) + dueDelayMax + commitTimeMax
		if ended.Reason == fsm.Expired && e.At-renewed > bound {
			found.add("%s died at %v, session %d was heard last at %v and ended at %v, after %v; the bound is %v, with %v lost at leader changes",
				d.Client, d.At, d.Session, renewed, e.At, e.At-renewed, bound, lost)
		}
	}
	s.reportFindings("the dead", found.list())
}

// availability is what is known of when the cluster worked.
type availability struct {
	epochs       []Effect // the entries that opened one
	confirmedOps []Op     // what was answered, in the order of the log
}

func newAvailability(ops []Op, entries []Effect) *availability {
	a := &availability{}
	for _, e := range entries {
		if startsEpoch(&e) {
			a.epochs = append(a.epochs, e)
		}
	}
	for _, op := range ops {
		if op.Outcome == Done {
			a.confirmedOps = append(a.confirmedOps, op)
		}
	}
	slices.SortFunc(a.confirmedOps, func(a, b Op) int { return cmp.Compare(a.Answer.Stamp.Index, b.Answer.Stamp.Index) })
	return a
}

// lastConfirmedBefore is when the latest question was sent that was answered from an entry before this index.
func (a *availability) lastConfirmedBefore(index uint64) time.Duration {
	n, _ := slices.BinarySearchFunc(a.confirmedOps, index, func(op Op, index uint64) int { return cmp.Compare(op.Answer.Stamp.Index, index) })
	// Later questions may be answered by earlier entries, but not by much: two are on their way.
	var latest time.Duration
	for _, op := range a.confirmedOps[max(0, n-64):n] {
		latest = max(latest, op.Sent)
	}
	return latest
}

// unavailableTime is what passed, between two moments, from the last sign of each epoch to the next epoch.
func (a *availability) unavailableTime(from, to time.Duration) (lost time.Duration) {
	for i, e := range a.epochs {
		if e.At < from || e.At > to {
			continue
		}
		last := a.lastConfirmedBefore(e.Index)
		if i > 0 {
			last = max(last, a.epochs[i-1].At)
		}
		lost += e.At - max(last, from)
	}
	return lost
}

func startsEpoch(e *Effect) bool {
	return slices.ContainsFunc(e.Events, func(ev fsm.Event) bool { return ev.Kind == fsm.EvEpochStarted })
}
