package fsm

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"zamok/session"
)

// tell says what an applied entry did: for each step first the answer to its command, then what
// happened, in order. An answer and an event that say the same make one sentence; that both are
// there is insisted upon.
func (s *story) tell(d *draft, a Applied) []string {
	s.t.Helper()
	t := &teller{story: s, events: a.Events}
	t.tellRenewals(d.Renewals, a)
	t.tellEvents(a.Index)
	require.Len(s.t, a.Results, len(d.Commands))
	for i, r := range a.Results {
		t.tellAnswer(d.Commands[i], r)
		t.tellEvents(r.Index)
	}
	require.Empty(s.t, t.events, "events of no step")
	t.tellDelays(a.Events)
	return t.said
}

// teller makes the transcript of one entry.
type teller struct {
	*story
	events []Event // not yet told
	said   []string
}

func (t *teller) say(format string, args ...any) {
	t.said = append(t.said, fmt.Sprintf(format, args...))
}

func (t *teller) tellRenewals(renewals []session.ID, a Applied) {
	dead := make(map[session.ID]bool)
	for _, id := range a.Unrenewed {
		dead[id] = true
	}
	for _, id := range renewals {
		if dead[id] {
			t.say("%s is told: there is no such session", t.client(id))
		} else if one, alive := t.m.Session(id); alive {
			t.say("%s is alive until %v", t.client(id), moment(one.Deadline))
		}
	}
}

func (t *teller) tellEvents(index uint64) {
	for len(t.events) > 0 && t.events[0].Index == index {
		e := t.events[0]
		t.events = t.events[1:]
		t.tellEvent(e)
	}
}

func (t *teller) tellEvent(e Event) {
	t.t.Helper()
	who, what := t.client(e.Session), t.locks(e.Items)
	switch e.Kind {
	case EvAttached:
		t.say("%s attaches: %s", who, t.states(e))
	case EvGranted:
		t.say("%s gets %s, token %d%s", t.holder(e.TicketRef), what, e.Token, until(e.HoldUntil, ", until %v at most"))
	case EvRefused:
		t.say("%s no longer waits for %s: %s", t.holder(e.TicketRef), what, because(e.Reason, e.Text))
	case EvLost:
		t.say("%s loses %s, token %d: %s", who, what, e.Token, because(e.Reason, e.Text))
	case EvReleased:
		t.say("%s", t.released(e))
	case EvDowngraded:
		t.say("%s now has %s, token %d", who, what, e.Token)
	case EvEnded:
		t.say("%s's session ends: %s", who, because(e.Reason, e.Text))
	case EvQueueMoved: // judged, and to be seen in `show`
	case EvEpochStarted:
		require.Equal(t.t, t.nonce, e.Value, "the epoch is not for this nonce")
		t.offices = append(t.offices, office{e.Text, e.Index})
		t.office, t.now = e.Index, t.m.Time()
		t.say("%s leads in term %d: epoch %c begins at index %d, its clock at %v",
			e.Text, t.term, 'A'+len(t.offices)-1, e.Index, moment(t.now))
	case EvVersionSet:
		t.say("the version is %d from now on", e.Value)
	case EvReported:
		t.say("%s had the digest %d at index %d", e.Text, e.Value, e.At)
	default:
		t.t.Fatalf("an event of kind %d", e.Kind)
	}
}

func (t *teller) released(e Event) string {
	who, what := t.client(e.Session), t.locks(e.Items)
	switch {
	case e.Token == 0:
		return fmt.Sprintf("%s no longer waits for %s: %s", t.holder(e.TicketRef), what, because(e.Reason, ""))
	case e.Reason == Dropped:
		return fmt.Sprintf("%s drops %s, token %d", who, what, e.Token)
	default:
		return fmt.Sprintf("%s gives back %s, token %d: %s", who, what, e.Token, because(e.Reason, ""))
	}
}

// states is what an attached client is told.
func (t *teller) states(e Event) string {
	if len(e.Tickets) == 0 {
		return "no tickets"
	}
	var all []string
	for _, state := range e.Tickets {
		what := fmt.Sprintf("#%d %s ", state.Ticket, t.asked(TicketRef{e.Session, state.Ticket}))
		switch state.State {
		case Waiting:
			what += "waiting"
		case Granted:
			what += fmt.Sprintf("held, token %d%s", state.Token, until(state.HoldUntil, " until %v at most"))
		default:
			what += "gone: " + because(state.Reason, "")
		}
		all = append(all, what)
	}
	return strings.Join(all, "; ")
}

// tellDelays says which of the locks just lost stay closed.
func (t *teller) tellDelays(events []Event) {
	told := make(map[string]bool)
	for _, e := range events {
		if e.Kind != EvLost {
			continue
		}
		for _, it := range e.Items {
			lock, _ := t.m.Lock(it.Name, 0)
			if lock.DelayedUntil != 0 && !told[it.Name] {
				t.say("%s stays closed until %v", it.Name, moment(lock.DelayedUntil))
			}
			told[it.Name] = true
		}
	}
}

// client is the name of a session.
func (s *story) client(id session.ID) string {
	if name, ok := s.named[id]; ok {
		return name
	}
	return fmt.Sprintf("session %d", id)
}

// holder is the name of who has a ticket: the session's, or its owner's.
func (s *story) holder(ref TicketRef) string {
	name := s.client(ref.Session)
	if p := s.people[name]; p != nil && p.sent[ref.Ticket] != nil && p.sent[ref.Ticket].Owner != "" {
		return name + "'s " + p.sent[ref.Ticket].Owner
	}
	return name
}

// asked is what a ticket asked for.
func (s *story) asked(ref TicketRef) string {
	if p := s.people[s.client(ref.Session)]; p != nil && p.sent[ref.Ticket] != nil {
		return s.locks(p.sent[ref.Ticket].Items)
	}
	return "nothing yet"
}

func (s *story) locks(items []Item) string {
	var names []string
	for _, it := range items {
		names = append(names, lockName(it))
	}
	if len(names) > 8 {
		return fmt.Sprintf("%s, … %s (%d locks)", names[0], names[len(names)-1], len(names))
	}
	return strings.Join(names, " and ")
}

func lockName(it Item) string {
	name := it.Name
	if len(name) > 40 {
		name = fmt.Sprintf("%s… (%d bytes)", name[:8], len(name))
	}
	switch it.Mode {
	case Shared:
		return name + " (shared)"
	case Permits:
		return fmt.Sprintf("%s (%d of %d)", name, it.Permits, it.Limit)
	default:
		return name
	}
}

// because says how a ticket or a session ended.
func because(reason Reason, text string) string {
	reasons := [...]string{
		0:               "forgotten",
		Dropped:         "dropped",
		Closed:          "session closed",
		Expired:         "the lease is over",
		Disconnected:    "the stream broke and the grace is over",
		Evicted:         "an operator ended the session",
		Revoked:         "an operator released it by force",
		MaxHoldExceeded: "the maximum hold is over",
		WaitTimeout:     "the wait is over",
		TryFailed:       "it would not wait",
		Deadlocked:      "a deadlock",
		OwnerBusy:       "its owner waits already",
		KindMismatch:    "the lock is of another kind",
		TooMany:         "too many tickets",
		Restored:        "a backup was restored",
	}
	if text != "" {
		return fmt.Sprintf("%s (%s)", reasons[reason], text)
	}
	return reasons[reason]
}
