package sim

import (
	"time"

	"zamok/clock"
	"zamok/fsm"
	"zamok/jepsen/check"
)

// Check checks the run so far against everything that must hold of any run, and reports what does not.
func (s *Sim) Check() {
	s.Helper()
	s.checkNodes()
	now := s.historyTime()
	h := s.record.history(check.Plan{
		Begin: historyBegin, Healed: now, End: now, Drain: drainMax, CompleteEvents: true, ClockRate: 1 + s.config.Drift,
	})
	for _, f := range check.Check(h).Violations {
		s.Errorf("%v", f)
	}
}

// checkNodes checks what histories do not show: each node's state, and how it differs from the others'.
func (s *Sim) checkNodes() {
	s.Helper()
	for _, violation := range s.Audit.Violations() {
		s.Errorf("%s", violation)
	}
	for _, n := range s.Nodes() {
		n.View(func(m *fsm.Machine) {
			if err := m.Check(); err != nil {
				s.Errorf("%s: %v", n.ID, err)
			}
		})
	}
}

// AwaitConverged waits until all members have applied the same, and sees that their states are equal.
func (s *Sim) AwaitConverged(within time.Duration) {
	s.Helper()
	digests := map[clock.Stamp]map[uint64]bool{}
	s.Await(within, "all nodes have applied the same", func() bool {
		clear(digests)
		return s.viewMembers(func(m *fsm.Machine) {
			if digests[m.Stamp()] == nil {
				digests[m.Stamp()] = map[uint64]bool{}
			}
			digests[m.Stamp()][m.Digest()] = true
		}) && len(digests) == 1
	})
	for stamp, different := range digests {
		if len(different) != 1 {
			s.Errorf("the nodes came to different states at %v: %v", stamp, different)
		}
	}
}

// AwaitDrained waits until no machine has a session, a holder, a waiter or a delay.
func (s *Sim) AwaitDrained(within time.Duration) {
	s.Helper()
	s.Await(within, "everything has drained", func() bool {
		left := false
		return s.viewMembers(func(m *fsm.Machine) { left = left || m.Counts() != (fsm.Counts{}) }) && !left
	})
}

// viewMembers reads the machines of all members. False: one does not run.
func (s *Sim) viewMembers(read func(*fsm.Machine)) (all bool) {
	for _, n := range s.Members() {
		up := n.Running()
		if up == nil {
			return false
		}
		up.View(read)
	}
	return true
}
