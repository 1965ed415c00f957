package fsm_test

import (
	"fmt"
	"slices"

	"zamok/fsm"
	"zamok/session"
)

// What is remembered of ended sessions.

// rememberSession remembers a session that its owner closed, or that held something, with its
// tickets as they stood. Of one that is withdrawn only what had ended counts.
func (m *model) rememberSession(s *modelSession, tickets []fsm.TicketState, reason fsm.Reason,
	withdrawn bool) {
	e, held := fsm.EndedSession{ID: s.id, Secret: s.Secret, Identity: s.Identity, Reason: reason},
		s.ackedThrough > 0
	for _, t := range tickets {
		held = held || t.Token != 0 && (!withdrawn || t.State == fsm.Ended)
		if e.Ticket = reason; t.State == fsm.Ended {
			e.Ticket = t.Reason
		}
	}
	if len(tickets) > 1 || s.ackedThrough > 0 {
		e.Ticket = 0
	}
	if held || reason == fsm.Closed && !withdrawn {
		m.ended = append(m.ended, e)
		m.forgetSessions(s.Identity)
	}
}

func (m *model) endedSession(secret session.Hash) *fsm.EndedSession {
	for i := range m.ended {
		if m.ended[i].Secret == secret {
			return &m.ended[i]
		}
	}
	return nil
}

// endedBytes is what the ended sessions take that are counted.
func (m *model) endedBytes(counts func(identity string) bool) (sum uint64) {
	for _, e := range m.ended {
		if counts(e.Identity) {
			sum += fsm.EndedSessionBytes + uint64(len(e.Identity))
		}
	}
	return sum
}

// forgetSessions forgets the oldest ended sessions while there are too many.
func (m *model) forgetSessions(identity string) {
	everybody := func(string) bool { return true }
	its := func(of string) bool { return of == identity }
	forget := func(counts func(string) bool) {
		at := slices.IndexFunc(m.ended, func(e fsm.EndedSession) bool { return counts(e.Identity) })
		m.ended = slices.Delete(m.ended, at, at+1)
		m.outlived++
	}
	share := (m.quotas.Bytes*uint64(m.quotas.Share) + 99) / 100
	for own := m.endedBytes(its); own > 0 &&
		(own > share/16 || m.usedBy(identity).Bytes > share); own = m.endedBytes(its) {
		forget(its)
	}
	for all := m.endedBytes(everybody); all > 0 &&
		(all > m.quotas.Bytes/16 ||
			m.usedByAll().Bytes > m.quotas.Bytes); all = m.endedBytes(everybody) {
		forget(everybody)
	}
}

func (m *model) compareEnded(machine *fsm.Machine) error {
	for _, want := range m.ended {
		if got, known := machine.EndedSession(want.Secret); !known || got != want {
			return fmt.Errorf("want the ended session %+v; got %t, %+v", want, known, got)
		}
	}
	if got := machine.EndedSessions(); got != len(m.ended) {
		return fmt.Errorf("want %d ended sessions, got %d", len(m.ended), got)
	}
	return nil
}
