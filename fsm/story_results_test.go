package fsm

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"zamok/clock"
)

// describeResult says how a command was answered. What happened at the same index and says the same
// is taken from the events.
func (t *transcript) describeResult(c Command, r Result) {
	t.t.Helper()
	switch c := c.(type) {
	case *OpenSession:
		t.describeOpened(c, r)
	case *Acquire:
		t.describeAcquired(c, r)
	case *Drop:
		t.describeDropped(c, r)
	case *Downgrade:
		if r.Code == OK && !t.hasEvent(EvDowngraded, r.Index) {
			t.addf("%s's ticket %d has nothing left to downgrade", t.clientName(c.Session),
				c.Ticket)
		} else if r.Code == NotHeld {
			t.addf("%s's ticket %d can't be downgraded: %s", t.clientName(c.Session), c.Ticket,
				stateName(r))
		} else {
			t.describeCode(c, r)
		}
	case *Attach:
		if r.Code == OK {
			require.True(t.t, t.hasEvent(EvAttached, r.Index))
		}
		t.describeCode(c, r)
	case *ReleaseOnDisconnect:
		if r.Code == OK && !t.hasEvent(EvSessionEnded, r.Index) {
			t.addf("there was a renewal: nothing happens")
		}
		t.describeCode(c, r)
	case *ForceRelease:
		if r.Code == OK && len(r.Detail.Ended) == 0 {
			t.addf("nobody holds %s with a token up to %d: nothing happens", c.Name, c.Token)
		}
		t.describeCode(c, r)
	case *SetLongestTTL:
		if r.Code == OK {
			t.addf("the longest ttl is %v now; a restore from now on grants nothing for %v",
				formatTime(clock.Time(t.m.LongestTTL())),
				formatTime(clock.Time(t.m.RestoreHoldOff())))
		}
		t.describeCode(c, r)
	case *SetQuotas:
		if r.Code == OK {
			t.addf("the quotas are %s now, of which an identity may use %d %%",
				amountsText(t.m.Quotas().Amounts), t.m.Quotas().Share)
		}
		t.describeCode(c, r)
	case *Member:
		if r.Code == OK {
			t.addf("%s is known, with disk %s", c.ID,
				strings.TrimRight(string(c.Incarnation[:]), "\x00"))
		} else {
			t.describeCode(c, r)
		}
	default:
		t.describeCode(c, r)
	}
}

// hasEvent looks for an event of this kind at this index.
func (t *transcript) hasEvent(kind EventKind, index uint64) bool {
	for _, e := range t.events {
		if e.Kind == kind && e.Index == index {
			return true
		}
	}
	return false
}

// takeEvent removes the event of a ticket that an answer speaks for.
func (t *transcript) takeEvent(kind EventKind, index uint64, ref TicketRef) (Event, bool) {
	for i, e := range t.events {
		if e.Kind == kind && e.Index == index && e.TicketRef == ref {
			t.events = append(t.events[:i:i], t.events[i+1:]...)
			return e, true
		}
	}
	return Event{}, false
}

// describeCode says what any command may be answered.
func (t *transcript) describeCode(c Command, r Result) {
	t.t.Helper()
	who := t.sender(c)
	switch r.Code {
	case OK:
	case Invalid:
		t.addf("%s is refused: invalid %s", who, r.Detail.Field)
	case NoSession:
		reason := ""
		switch {
		case r.Reason == Restored:
			reason = ", a backup was restored"
		case r.Reason != 0:
			reason = ", it has ended: " + reasonText(r.Reason, "")
		}
		t.addf("%s is answered: there is no such session%s", who, reason)
	case WrongSecret:
		t.addf("%s is refused: that is not the session's secret", who)
	case Superseded:
		t.addf("%s is refused: a later attempt took effect before", who)
	case LimitExceeded:
		t.addf("%s is refused: over the limit (%s)", who, r.Detail.Field)
	default:
		t.t.Fatalf("%T was answered with code %d: %+v", c, r.Code, r)
	}
}

func (t *transcript) describeOpened(c *OpenSession, r Result) {
	t.t.Helper()
	if r.Code == Invalid && r.TTL != 0 {
		t.addf("who opens is refused: the longest ttl is %v", formatTime(clock.Time(r.TTL)))
		return
	}
	if r.Code != OK {
		t.describeCode(c, r)
		return
	}
	var p *storyClient
	for _, one := range t.clients {
		if one.secret() == c.Secret {
			p = one
		}
	}
	one, alive := t.m.Session(r.Session)
	if uint64(r.Session) != r.Index {
		t.addf("%s has that session already, alive until %v", p.name, formatTime(one.Deadline))
		require.Equal(t.t, p.id, r.Session)
		return
	}
	p.id, p.lastTicket, p.ttl = r.Session, 0, r.TTL
	p.sent = make(map[uint64]*Acquire)
	t.names[r.Session] = p.name
	require.True(t.t, alive)
	t.addf("%s opens a session, alive until %v", p.name, formatTime(one.Deadline))
}

func (t *transcript) describeAcquired(c *Acquire, r Result) {
	t.t.Helper()
	ref := TicketRef{c.Session, c.Ticket}
	who, what := t.ownerName(ref), t.lockList(c.Items)
	if r.Session != 0 {
		require.Equal(t.t, c.Session, r.Session)
		require.Equal(t.t, t.clients[t.clientName(c.Session)].ttl, r.TTL)
	}
	switch {
	case r.Code == OK && r.State == Granted && r.Token == r.Index:
		e, ok := t.takeEvent(EvGranted, r.Index, ref)
		require.True(t.t, ok, "a grant was answered and did not happen")
		require.Equal(t.t, r.HoldUntil, e.HoldUntil)
		t.describeEvent(e)
	case r.Code == OK && r.State == Granted:
		t.addf("%s is answered again: %s is held, token %d", who, what, r.Token)
	case r.Code == OK && r.State == Waiting:
		t.describeWaiting(c, r)
	case r.Code == TicketEnded:
		t.addf("%s is answered: ticket %d is over (%s)", who, c.Ticket, reasonText(r.Reason, ""))
	case r.Reason != 0 && r.Code == r.Reason.code():
		if e, first := t.takeEvent(EvRefused, r.Index, ref); first {
			require.Equal(t.t, c.Items, e.Items)
			t.describeRefused(c, r)
		} else {
			t.addf("%s is answered again: ticket %d was refused (%s)", who, c.Ticket,
				reasonText(r.Reason, ""))
		}
	default:
		t.describeCode(c, r)
	}
}

func (t *transcript) describeWaiting(c *Acquire, r Result) {
	ref := TicketRef{c.Session, c.Ticket}
	view, _ := t.m.Ticket(ref)
	word := "waits"
	if view.Enqueued != r.Index {
		word = "is answered again: it waits"
	}
	t.addf("%s %s for %s%s%s", t.ownerName(ref), word, t.lockList(c.Items),
		formatUntil(view.WaitUntil, ", until %v at most"), t.queuePositions(ref))
}

// queuePositions says where a waiting ticket stands; nothing if its wait is over.
func (s *story) queuePositions(ref TicketRef) string {
	view, _ := s.m.Ticket(ref)
	if view.State != Waiting {
		return ""
	}
	var all []string
	for _, it := range view.Items {
		lock, _ := s.m.LockView(it.Name)
		position, ahead := 0, ""
		for i, other := range lock.Queue {
			if other.TicketRef == ref {
				position = i + 1
				break
			}
			ahead = ", behind " + s.ownerName(other.TicketRef)
		}
		if position == 1 {
			ahead = s.blockedBy(lock)
		}
		name := ""
		if len(view.Items) > 1 {
			name = " for " + it.Name
		}
		all = append(all, fmt.Sprintf("%s in the queue%s%s", ordinal(position), name, ahead))
	}
	return ": " + strings.Join(all, "; ")
}

// blockedBy says why the first in a queue may have to wait.
func (s *story) blockedBy(lock LockView) string {
	output := formatUntil(lock.DelayedUntil, ", closed until %v")
	for i, holder := range lock.HeldBy {
		word := ", held by "
		if i > 0 {
			word = " and "
		}
		output += fmt.Sprintf("%s%s (token %d)", word, s.ownerName(holder.TicketRef), holder.Token)
	}
	if output == "" {
		return ", free"
	}
	return output
}

func (t *transcript) describeRefused(c *Acquire, r Result) {
	who, what := t.ownerName(TicketRef{c.Session, c.Ticket}), t.lockList(c.Items)
	switch r.Code {
	case Deadlock:
		t.addf("%s is refused %s: a deadlock", who, what)
		for i, link := range r.Detail.Cycle[:len(r.Detail.Cycle)-1] {
			if next := r.Detail.Cycle[i+1]; link.State == Waiting && next.State == Granted {
				t.addf("  %s would wait for %s, held by %s", t.ownerName(link.TicketRef), link.Name,
					t.ownerName(next.TicketRef))
			} else if link.State == Waiting {
				t.addf("  %s would wait for %s behind %s", t.ownerName(link.TicketRef), link.Name,
					t.ownerName(next.TicketRef))
			}
		}
	case LockKindMismatch:
		kind := "a mutex"
		if r.Detail.Of > 0 {
			kind = fmt.Sprintf("%d permits", r.Detail.Of)
		}
		t.addf("%s is refused %s: %s is in use as %s", who, what, r.Detail.Field, kind)
	case LimitExceeded:
		t.addf("%s is refused %s: over the limit (%s)", who, what, r.Detail.Field)
	default:
		t.addf("%s is refused %s: %s", who, what,
			strings.Join(t.describeBlockers(r.Detail.Blockers), "; "))
	}
}

func (s *story) describeBlockers(all []Blocker) []string {
	var output []string
	for _, b := range all {
		switch {
		case b.By == ByWaiter && b.Name == "": // the ticket for which an owner waits already
			output = append(output, s.ownerName(b.TicketRef)+" waits already")
		case b.By == ByHolder:
			output = append(output, fmt.Sprintf("%s holds %s (token %d)", s.ownerName(b.TicketRef),
				b.Name, b.Token))
		case b.By == ByWaiter:
			output = append(output, fmt.Sprintf("%s waits for %s", s.ownerName(b.TicketRef),
				b.Name))
		case b.By == ByHoldOff:
			output = append(output, fmt.Sprintf("nothing is granted before %v",
				formatTime(b.Until)))
		default:
			output = append(output, fmt.Sprintf("%s is closed until %v", b.Name,
				formatTime(b.Until)))
		}
	}
	return output
}

func (t *transcript) describeDropped(c *Drop, r Result) {
	t.t.Helper()
	ref := TicketRef{c.Session, c.Ticket}
	if r.Code != OK {
		t.describeCode(c, r)
		return
	}
	require.Equal(t.t, Ended, r.State)
	if e, ok := t.takeEvent(EvReleased, r.Index, ref); ok {
		require.Equal(t.t, r.Token, e.Token)
		require.Equal(t.t, Dropped, r.Reason)
		t.describeEvent(e)
		return
	}
	t.addf("%s's ticket %d has ended (%s)", t.clientName(c.Session), c.Ticket,
		reasonText(r.Reason, ""))
}

func stateName(r Result) string {
	switch r.State {
	case Waiting:
		return "it waits"
	case Ended:
		return "it has ended (" + reasonText(r.Reason, "") + ")"
	case Granted:
		return "there is nothing to share in permits"
	default:
		return "it was never seen"
	}
}

// formatUntil puts a moment into a sentence, if there is one.
func formatUntil(at clock.Time, format string) string {
	if at == 0 {
		return ""
	}
	return fmt.Sprintf(format, formatTime(at))
}

// formatTime prints a time as people write it: 1h, not 1h0m0s.
func formatTime(at clock.Time) string {
	text := at.String()
	for _, zero := range []string{"0s", "0m"} {
		if cut, ok := strings.CutSuffix(text, zero); ok && cut != "" &&
			!strings.ContainsAny(cut[len(cut)-1:], ".0123456789") {
			text = cut
		}
	}
	return text
}

func ordinal(n int) string {
	switch {
	case n%100/10 == 1:
		return fmt.Sprintf("%dth", n)
	case n%10 == 1:
		return fmt.Sprintf("%dst", n)
	case n%10 == 2:
		return fmt.Sprintf("%dnd", n)
	case n%10 == 3:
		return fmt.Sprintf("%drd", n)
	default:
		return fmt.Sprintf("%dth", n)
	}
}
