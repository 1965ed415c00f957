package sim

import (
	"cmp"
	"slices"
	"time"

	"zamok/fsm"
)

const (
	// tickMax is how late an epoch may notice that something is due.
	tickMax = 25 * time.Millisecond
	// commitMax is what a commit takes at most when nothing is wrong.
	commitMax = 100 * time.Millisecond
)

// CheckDeaths sees that the sessions of the dead ended, and within the bound: the ttl since they
// were last heard, what each change of leader lost, what the clocks' stalls cut off, and what the
// expiring entry itself was held up by. Everything that a client was told is a sign that the
// cluster worked when it was asked, so what may have been lost is what passed since such a sign.
func (s *Sim) CheckDeaths(h *History, clocksStood time.Duration) {
	s.Helper()
	a := newAccount(h.Ops(), s.Audit.Entries())
	var found findings
	for _, d := range h.deaths {
		if d.Session == 0 {
			continue // it died before it knew that it lived
		}
		ended, e, ok := s.Audit.Find(func(ev fsm.Event) bool { return ev.Kind == fsm.EvEnded && ev.Session == d.Session })
		if !ok {
			found.add("%s died at %v, and session %d lives", d.Client, d.At, d.Session)
			continue
		}
		heard, _ := s.Audit.LastHeard(d.Session)
		lost, held := a.lost(heard, e.At), e.At-a.sign(e.Index)
		bound := d.TTL + lost + clocksStood + max(0, held) + tickMax + commitMax
		if ended.Reason == fsm.Expired && e.At-heard > bound {
			found.add("%s died at %v, session %d was heard last at %v and ended at %v, after %v; the bound is %v, with %v lost at leader changes",
				d.Client, d.At, d.Session, heard, e.At, e.At-heard, bound, lost)
		}
	}
	s.report("the dead", found.list())
}

// account is what is known of when the cluster worked.
type account struct {
	offices []Effect // the entries that opened one
	signs   []Op     // what was answered, in the order of the log
}

func newAccount(ops []Op, entries []Effect) *account {
	a := &account{}
	for _, e := range entries {
		if opensOffice(&e) {
			a.offices = append(a.offices, e)
		}
	}
	for _, op := range ops {
		if op.Outcome == Done {
			a.signs = append(a.signs, op)
		}
	}
	slices.SortFunc(a.signs, func(a, b Op) int { return cmp.Compare(a.Answer.Stamp.Index, b.Answer.Stamp.Index) })
	return a
}

// sign is when the latest question was sent that was answered from an entry before this index.
func (a *account) sign(index uint64) time.Duration {
	n, _ := slices.BinarySearchFunc(a.signs, index, func(op Op, index uint64) int { return cmp.Compare(op.Answer.Stamp.Index, index) })
	// Later questions may be answered by earlier entries, but not by much: two are on their way.
	var latest time.Duration
	for _, op := range a.signs[max(0, n-64):n] {
		latest = max(latest, op.Sent)
	}
	return latest
}

// lost is what passed, between two moments, from the last sign of each epoch to the next epoch.
func (a *account) lost(from, to time.Duration) (lost time.Duration) {
	for i, e := range a.offices {
		if e.At < from || e.At > to {
			continue
		}
		last := a.sign(e.Index)
		if i > 0 {
			last = max(last, a.offices[i-1].At)
		}
		lost += e.At - max(last, from)
	}
	return lost
}

func opensOffice(e *Effect) bool {
	return slices.ContainsFunc(e.Events, func(ev fsm.Event) bool { return ev.Kind == fsm.EvEpochStarted })
}
