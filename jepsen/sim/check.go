package sim

import (
	"fmt"
	"time"

	"zamok/clock"
	"zamok/fsm"
)

// findingList collects what a checker has to say, the first ones.
type findingList struct {
	texts      []string
	suppressed int
}

func (f *findingList) add(format string, args ...any) {
	if len(f.texts) == violationsMax {
		f.suppressed++
		return
	}
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}

func (f *findingList) list() []string {
	if f.suppressed > 0 {
		return append(f.texts, fmt.Sprintf("… and %d more", f.suppressed))
	}
	return f.texts
}

// Check holds a run against everything that must be so of any run, and reports what is not. The
// histories are those of the loads that have ended.
func (s *Sim) Check(histories ...*History) {
	s.Helper()
	s.reportFindings("machines that disagree", s.Audit.Violations())
	entries := s.Audit.Entries()
	s.reportFindings("the log", checkLog(entries))
	for _, h := range histories {
		ops := h.Ops()
		s.reportFindings("answers", checkOutcomes(ops, entries))
		s.reportFindings("beliefs", checkHolds(h.holds))
		s.reportFindings("leases", checkLeases(ops, entries))
	}
	s.checkMachines()
}

func (s *Sim) reportFindings(what string, found []string) {
	s.Helper()
	for _, text := range found {
		s.Errorf("%s: %s", what, text)
	}
}

// checkMachines runs the machines' own check on every node that is up.
func (s *Sim) checkMachines() {
	s.Helper()
	for _, n := range s.Nodes() {
		if up := n.Running(); up != nil {
			up.View(func(m *fsm.Machine) {
				if err := m.Check(); err != nil {
					s.Errorf("%s: %v", n.ID, err)
				}
			})
		}
	}
}

// AwaitConverged waits until all initial members have applied the same, and sees that they came to the same.
func (s *Sim) AwaitConverged(within time.Duration) {
	s.Helper()
	var indexes map[string]bool
	s.Await(within, "all nodes are at the same place", func() bool {
		indexes = map[string]bool{}
		stamps := map[clock.Stamp]bool{}
		for _, n := range s.Members() {
			up := n.Running()
			if up == nil {
				return false
			}
			up.View(func(m *fsm.Machine) {
				stamps[m.Stamp()] = true
				indexes[fmt.Sprintf("%v %x", m.Stamp(), m.Digest())] = true
			})
		}
		return len(stamps) == 1
	})
	if len(indexes) != 1 {
		s.Errorf("the nodes came to different states: %v", indexes)
	}
}

// AwaitDrained waits until no machine has a session, a holder, a waiter or a delay.
func (s *Sim) AwaitDrained(within time.Duration) {
	s.Helper()
	var left string
	s.Await(within, "everything has drained", func() bool {
		left = ""
		for _, n := range s.Members() {
			up := n.Running()
			if up == nil {
				return false
			}
			up.View(func(m *fsm.Machine) {
				if c := m.Counts(); c != (fsm.Counts{}) {
					left = fmt.Sprintf("%s: %+v", n.ID, c)
				}
			})
		}
		return left == ""
	})
}
