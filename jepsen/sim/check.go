package sim

import (
	"fmt"
	"time"

	"zamok/clock"
	"zamok/fsm"
)

// findings collects what a checker has to say, the first ones.
type findings struct {
	texts []string
	more  int
}

func (f *findings) add(format string, args ...any) {
	if len(f.texts) == breachesMax {
		f.more++
		return
	}
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}

func (f *findings) list() []string {
	if f.more > 0 {
		return append(f.texts, fmt.Sprintf("… and %d more", f.more))
	}
	return f.texts
}

// Check holds a run against everything that must be so of any run, and reports what is not. The
// histories are those of the loads that have ended.
func (s *Sim) Check(histories ...*History) {
	s.Helper()
	s.report("machines that disagree", s.Audit.Breaches())
	entries := s.Audit.Entries()
	s.report("the log", checkLog(entries))
	for _, h := range histories {
		ops := h.Ops()
		s.report("answers", checkAnswers(ops, entries))
		s.report("beliefs", checkBeliefs(h.beliefs))
		s.report("leases", checkLeases(ops, entries))
	}
	s.checkMachines()
}

func (s *Sim) report(what string, found []string) {
	s.Helper()
	for _, text := range found {
		s.Errorf("%s: %s", what, text)
	}
}

// checkMachines runs the machines' own check on every node that is up.
func (s *Sim) checkMachines() {
	s.Helper()
	for _, n := range s.Nodes() {
		if up := n.Up(); up != nil {
			up.View(func(m *fsm.Machine) {
				if err := m.Check(); err != nil {
					s.Errorf("%s: %v", n.ID, err)
				}
			})
		}
	}
}

// Together waits until all initial members have applied the same, and sees that they came to the same.
func (s *Sim) Together(within time.Duration) {
	s.Helper()
	var seen map[string]bool
	s.Await(within, "all nodes are at the same place", func() bool {
		seen = map[string]bool{}
		stamps := map[clock.Stamp]bool{}
		for _, n := range s.Members() {
			up := n.Up()
			if up == nil {
				return false
			}
			up.View(func(m *fsm.Machine) {
				stamps[m.Stamp()] = true
				seen[fmt.Sprintf("%v %x", m.Stamp(), m.Digest())] = true
			})
		}
		return len(stamps) == 1
	})
	if len(seen) != 1 {
		s.Errorf("the nodes came to different states: %v", seen)
	}
}

// Drained waits until no machine has a session, a holder, a waiter or a delay.
func (s *Sim) Drained(within time.Duration) {
	s.Helper()
	var left string
	s.Await(within, "everything has drained", func() bool {
		left = ""
		for _, n := range s.Members() {
			up := n.Up()
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
