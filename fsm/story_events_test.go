package fsm

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"zamok/session"
)

// describe says what an applied entry did: for each step first the answer to its command, then what
// happened, in order. An answer and an event that say the same make one sentence; that both are
// there is insisted upon.
func (s *story) describe(d *entryDraft, a Applied) []string {
	s.t.Helper()
	t := &transcript{story: s, events: a.Events}
	t.describeRenewals(d.Renewals, a)
	t.describeEvents(a.Index)
	require.Len(s.t, a.Results, len(d.Commands))
	for i, r := range a.Results {
		t.describeResult(d.Commands[i], r)
		t.describeEvents(r.Index)
	}
	require.Empty(s.t, t.events, "events of no step")
	t.describeDelays(a.Events)
	return t.lines
}

// transcript makes the transcript of one entry.
type transcript struct {
	*story
	events []Event // not yet shown
	lines  []string
}

func (t *transcript) addf(format string, args ...any) {
	t.lines = append(t.lines, fmt.Sprintf(format, args...))
}

func (t *transcript) describeRenewals(renewals []session.ID, a Applied) {
	unrenewed := make(map[session.ID]bool)
	for _, id := range a.Unrenewed {
		unrenewed[id] = true
	}
	for _, id := range renewals {
		if unrenewed[id] {
			t.addf("%s is answered: there is no such session", t.clientName(id))
		} else if one, alive := t.m.Session(id); alive {
			t.addf("%s is alive until %v", t.clientName(id), formatTime(one.Deadline))
		}
	}
}

func (t *transcript) describeEvents(index uint64) {
	for len(t.events) > 0 && t.events[0].Index == index {
		e := t.events[0]
		t.events = t.events[1:]
		t.describeEvent(e)
	}
}

func (t *transcript) describeEvent(e Event) {
	t.t.Helper()
	who, what := t.clientName(e.Session), t.lockList(e.Items)
	switch e.Kind {
	case EvAttached:
		t.addf("%s attaches: %s", who, t.describeTickets(e))
	case EvGranted:
		t.addf("%s gets %s, token %d%s", t.ownerName(e.TicketRef), what, e.Token,
			formatUntil(e.HoldUntil, ", until %v at most"))
	case EvRefused:
		t.addf("%s no longer waits for %s: %s", t.ownerName(e.TicketRef), what,
			reasonText(e.Reason, e.Text))
	case EvLost:
		t.addf("%s loses %s, token %d: %s", who, what, e.Token, reasonText(e.Reason, e.Text))
	case EvReleased:
		t.addf("%s", t.describeReleased(e))
	case EvDowngraded:
		t.addf("%s now has %s, token %d", who, what, e.Token)
	case EvSessionEnded:
		t.addf("%s's session ends: %s", who, reasonText(e.Reason, e.Text))
	case EvQueueChanged: // judged, and to be seen in `show`
	case EvEpochStarted:
		require.Equal(t.t, t.nonce, e.Epoch.Nonce, "the epoch is not for this nonce")
		t.epochs = append(t.epochs, epochInfo{e.Epoch.Node, e.Index})
		t.epoch, t.now = e.Index, t.m.Time()
		t.addf("%s leads in term %d: epoch %c begins at index %d, its clock at %v",
			e.Epoch.Node, t.term, 'A'+len(t.epochs)-1, e.Index, formatTime(t.now))
	case EvUpgraded:
		t.addf("the version is %d from now on", e.Version)
	case EvDigestReported:
		t.addf("%s had the digest %d at index %d", e.Digest.Node, e.Digest.Value, e.Digest.Index)
	default:
		t.t.Fatalf("an event of kind %d", e.Kind)
	}
}

func (t *transcript) describeReleased(e Event) string {
	who, what := t.clientName(e.Session), t.lockList(e.Items)
	switch {
	case e.Token == 0:
		return fmt.Sprintf("%s no longer waits for %s: %s", t.ownerName(e.TicketRef), what,
			reasonText(e.Reason, ""))
	case e.Reason == Dropped:
		return fmt.Sprintf("%s drops %s, token %d", who, what, e.Token)
	default:
		return fmt.Sprintf("%s gives back %s, token %d: %s", who, what, e.Token,
			reasonText(e.Reason, ""))
	}
}

// describeTickets is what an attached client receives.
func (t *transcript) describeTickets(e Event) string {
	if len(e.Tickets) == 0 {
		return "no tickets"
	}
	var all []string
	for _, state := range e.Tickets {
		what := fmt.Sprintf("#%d %s ", state.Ticket,
			t.requestedLocks(TicketRef{e.Session, state.Ticket}))
		switch state.State {
		case Waiting:
			what += "waiting"
		case Granted:
			what += fmt.Sprintf("held, token %d%s", state.Token,
				formatUntil(state.HoldUntil, " until %v at most"))
		default:
			what += "ended: " + reasonText(state.Reason, "")
		}
		all = append(all, what)
	}
	return strings.Join(all, "; ")
}

// describeDelays says which of the locks just lost stay closed.
func (t *transcript) describeDelays(events []Event) {
	described := make(map[string]bool)
	for _, e := range events {
		if e.Kind != EvLost {
			continue
		}
		for _, it := range e.Items {
			lock, _ := t.m.Lock(it.Name)
			if lock.DelayedUntil != 0 && !described[it.Name] {
				t.addf("%s stays closed until %v", it.Name, formatTime(lock.DelayedUntil))
			}
			described[it.Name] = true
		}
	}
}

// clientName is the name of a session.
func (s *story) clientName(id session.ID) string {
	if name, ok := s.names[id]; ok {
		return name
	}
	return fmt.Sprintf("session %d", id)
}

// ownerName is the name of who has a ticket: the session's, or its owner's.
func (s *story) ownerName(ref TicketRef) string {
	name := s.clientName(ref.Session)
	if p := s.clients[name]; p != nil && p.sent[ref.Ticket] != nil &&
		p.sent[ref.Ticket].Owner != "" {
		return name + "'s " + p.sent[ref.Ticket].Owner
	}
	return name
}

// requestedLocks is what a ticket asked for.
func (s *story) requestedLocks(ref TicketRef) string {
	if p := s.clients[s.clientName(ref.Session)]; p != nil && p.sent[ref.Ticket] != nil {
		return s.lockList(p.sent[ref.Ticket].Items)
	}
	return "nothing yet"
}

func (s *story) lockList(items []Item) string {
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
		return fmt.Sprintf("%s (%d of %d)", name, it.Permits, it.Of)
	default:
		return name
	}
}

// reasonText says how a ticket or a session ended.
func reasonText(reason Reason, text string) string {
	reasons := [...]string{
		0:                 "forgotten",
		Dropped:           "dropped",
		Closed:            "session closed",
		Expired:           "the lease is over",
		Disconnected:      "the stream broke and did not come back in time",
		ExpiredByOperator: "an operator expired it",
		ForceReleased:     "an operator force-released it",
		MaxHoldExceeded:   "the maximum hold is over",
		WaitTimeout:       "the wait is over",
		TryFailed:         "it would not wait",
		Deadlocked:        "a deadlock",
		OwnerBusy:         "its owner waits already",
		KindMismatch:      "the lock is of another kind",
		TooMany:           "a limit was met",
		Restored:          "a backup was restored",
	}
	if text != "" {
		return fmt.Sprintf("%s (%s)", reasons[reason], text)
	}
	return reasons[reason]
}
