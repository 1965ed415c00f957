package fsm

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"zamok/clock"
)

// tellAnswer says how a command was answered. What happened at the same index and says the same is
// taken from the events.
func (t *teller) tellAnswer(c Command, r Result) {
	t.t.Helper()
	switch c := c.(type) {
	case *OpenSession:
		t.tellOpened(c, r)
	case *Acquire:
		t.tellAcquired(c, r)
	case *Drop:
		t.tellDropped(c, r)
	case *Downgrade:
		if r.Code == OK && !t.happens(EvDowngraded, r.Index) {
			t.say("%s's ticket %d has nothing left to downgrade", t.client(c.Session), c.Ticket)
		} else if r.Code == NotHeld {
			t.say("%s's ticket %d can't be downgraded: %s", t.client(c.Session), c.Ticket, stateName(r))
		} else {
			t.tellCode(c, r)
		}
	case *Attach:
		if r.Code == OK {
			require.True(t.t, t.happens(EvAttached, r.Index))
		}
		t.tellCode(c, r)
	case *Detached:
		if r.Code == OK && !t.happens(EvEnded, r.Index) {
			t.say("there was a renewal: nothing happens")
		}
		t.tellCode(c, r)
	case *ForceRelease:
		if r.Code == OK && len(r.Detail.Ended) == 0 {
			t.say("nobody holds %s with a token up to %d: nothing happens", c.Name, c.Token)
		}
		t.tellCode(c, r)
	case *Member:
		if r.Code == OK {
			t.say("%s is known, with disk %s", c.ID, strings.TrimRight(string(c.Incarnation[:]), "\x00"))
		} else {
			t.tellCode(c, r)
		}
	default:
		t.tellCode(c, r)
	}
}

// happens looks for an event of this kind at this index.
func (t *teller) happens(kind EventKind, index uint64) bool {
	for _, e := range t.events {
		if e.Kind == kind && e.Index == index {
			return true
		}
	}
	return false
}

// takes removes the event of a ticket that an answer speaks for.
func (t *teller) takes(kind EventKind, index uint64, ref TicketRef) (Event, bool) {
	for i, e := range t.events {
		if e.Kind == kind && e.Index == index && e.TicketRef == ref {
			t.events = append(t.events[:i:i], t.events[i+1:]...)
			return e, true
		}
	}
	return Event{}, false
}

// tellCode says what any command may be answered.
func (t *teller) tellCode(c Command, r Result) {
	t.t.Helper()
	who := t.speaker(c)
	switch r.Code {
	case OK:
	case Invalid:
		t.say("%s is refused: invalid %s", who, r.Detail.Field)
	case NoSession:
		reason := ""
		if r.Reason == Restored {
			reason = ", a backup was restored"
		}
		t.say("%s is told: there is no such session%s", who, reason)
	case WrongSecret:
		t.say("%s is refused: that is not the session's secret", who)
	case Superseded:
		t.say("%s is refused: a later attempt took effect before", who)
	case LimitExceeded:
		t.say("%s is refused: over the limit (%s)", who, r.Detail.Field)
	default:
		t.t.Fatalf("%T was answered with code %d: %+v", c, r.Code, r)
	}
}

func (t *teller) tellOpened(c *OpenSession, r Result) {
	t.t.Helper()
	if r.Code != OK {
		t.tellCode(c, r)
		return
	}
	var p *person
	for _, one := range t.people {
		if secretOf(one.name) == c.Secret {
			p = one
		}
	}
	one, alive := t.m.Session(r.Session)
	if uint64(r.Session) != r.Index {
		t.say("%s has that session already, alive until %v", p.name, moment(one.Deadline))
		require.Equal(t.t, p.id, r.Session)
		return
	}
	p.id, p.last, p.ttl = r.Session, 0, r.TTL
	p.sent = make(map[uint64]*Acquire)
	t.named[r.Session] = p.name
	require.True(t.t, alive)
	t.say("%s opens a session, alive until %v", p.name, moment(one.Deadline))
}

func (t *teller) tellAcquired(c *Acquire, r Result) {
	t.t.Helper()
	ref := TicketRef{c.Session, c.Ticket}
	who, what := t.holder(ref), t.locks(c.Items)
	if r.Session != 0 {
		require.Equal(t.t, c.Session, r.Session)
		require.Equal(t.t, t.people[t.client(c.Session)].ttl, r.TTL)
	}
	switch {
	case r.Code == OK && r.State == Granted && r.Token == r.Index:
		e, ok := t.takes(EvGranted, r.Index, ref)
		require.True(t.t, ok, "a grant was answered and did not happen")
		require.Equal(t.t, r.HoldUntil, e.HoldUntil)
		t.tellEvent(e)
	case r.Code == OK && r.State == Granted:
		t.say("%s is told again: %s is held, token %d", who, what, r.Token)
	case r.Code == OK && r.State == Waiting:
		t.tellWaiting(c, r)
	case r.Code == TicketEnded:
		t.say("%s is told: ticket %d is over (%s)", who, c.Ticket, because(r.Reason, ""))
	case r.Reason != 0 && r.Code == r.Reason.code():
		if e, first := t.takes(EvRefused, r.Index, ref); first {
			require.Equal(t.t, c.Items, e.Items)
			t.tellRefused(c, r)
		} else {
			t.say("%s is told again: ticket %d was refused (%s)", who, c.Ticket, because(r.Reason, ""))
		}
	default:
		t.tellCode(c, r)
	}
}

func (t *teller) tellWaiting(c *Acquire, r Result) {
	ref := TicketRef{c.Session, c.Ticket}
	view, _ := t.m.Ticket(ref)
	word := "waits"
	if view.Enqueued != r.Index {
		word = "is told again: it waits"
	}
	t.say("%s %s for %s%s%s", t.holder(ref), word, t.locks(c.Items), until(view.WaitUntil, ", until %v at most"), t.places(ref))
}

// places says where a waiting ticket stands; nothing if it no longer waits.
func (s *story) places(ref TicketRef) string {
	view, _ := s.m.Ticket(ref)
	if view.State != Waiting {
		return ""
	}
	var all []string
	for _, it := range view.Items {
		lock, _ := s.m.Lock(it.Name, everything)
		place, ahead := 0, ""
		for i, other := range lock.Queue {
			if other.TicketRef == ref {
				place = i + 1
				break
			}
			ahead = ", behind " + s.holder(other.TicketRef)
		}
		if place == 1 {
			ahead = s.closed(lock)
		}
		name := ""
		if len(view.Items) > 1 {
			name = " for " + it.Name
		}
		all = append(all, fmt.Sprintf("%s in the queue%s%s", ordinal(place), name, ahead))
	}
	return ": " + strings.Join(all, "; ")
}

// closed says why the first in a queue may have to wait.
func (s *story) closed(lock LockView) string {
	said := until(lock.DelayedUntil, ", closed until %v")
	for i, holder := range lock.HeldBy {
		word := ", held by "
		if i > 0 {
			word = " and "
		}
		said += fmt.Sprintf("%s%s (token %d)", word, s.holder(holder.TicketRef), holder.Token)
	}
	if said == "" {
		return ", free"
	}
	return said
}

func (t *teller) tellRefused(c *Acquire, r Result) {
	who, what := t.holder(TicketRef{c.Session, c.Ticket}), t.locks(c.Items)
	switch r.Code {
	case Deadlock:
		t.say("%s is refused %s: a deadlock", who, what)
		for i, link := range r.Detail.Cycle[:len(r.Detail.Cycle)-1] {
			if next := r.Detail.Cycle[i+1]; link.State == Waiting && next.State == Granted {
				t.say("  %s would wait for %s, held by %s", t.holder(link.TicketRef), link.Name, t.holder(next.TicketRef))
			} else if link.State == Waiting {
				t.say("  %s would wait for %s behind %s", t.holder(link.TicketRef), link.Name, t.holder(next.TicketRef))
			}
		}
	case OtherKind:
		kind := "a mutex"
		if r.Detail.Limit > 0 {
			kind = fmt.Sprintf("%d permits", r.Detail.Limit)
		}
		t.say("%s is refused %s: %s is in use as %s", who, what, r.Detail.Field, kind)
	case LimitExceeded:
		t.say("%s is refused %s: over the limit (%s)", who, what, r.Detail.Field)
	default:
		t.say("%s is refused %s: %s", who, what, strings.Join(t.blockers(r.Detail.Blockers), "; "))
	}
}

func (s *story) blockers(all []Blocker) []string {
	var said []string
	for _, b := range all {
		switch {
		case b.By == ByWaiter && b.Name == "": // the ticket for which an owner waits already
			said = append(said, s.holder(b.TicketRef)+" waits already")
		case b.By == ByHolder:
			said = append(said, fmt.Sprintf("%s holds %s (token %d)", s.holder(b.TicketRef), b.Name, b.Token))
		case b.By == ByWaiter:
			said = append(said, fmt.Sprintf("%s waits for %s", s.holder(b.TicketRef), b.Name))
		case b.By == ByHoldOff:
			said = append(said, fmt.Sprintf("nothing is granted before %v", moment(b.Until)))
		default:
			said = append(said, fmt.Sprintf("%s is closed until %v", b.Name, moment(b.Until)))
		}
	}
	return said
}

func (t *teller) tellDropped(c *Drop, r Result) {
	t.t.Helper()
	ref := TicketRef{c.Session, c.Ticket}
	if r.Code != OK {
		t.tellCode(c, r)
		return
	}
	require.Equal(t.t, Ended, r.State)
	if e, ok := t.takes(EvReleased, r.Index, ref); ok {
		require.Equal(t.t, r.Token, e.Token)
		require.Equal(t.t, Dropped, r.Reason)
		t.tellEvent(e)
		return
	}
	t.say("%s's ticket %d is gone (%s)", t.client(c.Session), c.Ticket, because(r.Reason, ""))
}

func stateName(r Result) string {
	switch r.State {
	case Waiting:
		return "it waits"
	case Ended:
		return "it is gone (" + because(r.Reason, "") + ")"
	case Granted:
		return "there is nothing to share in permits"
	default:
		return "it was never seen"
	}
}

// until puts a moment into a sentence, if there is one.
func until(at clock.Time, format string) string {
	if at == 0 {
		return ""
	}
	return fmt.Sprintf(format, moment(at))
}

// moment prints a time as people write it: 1h, not 1h0m0s.
func moment(at clock.Time) string {
	text := at.String()
	for _, zero := range []string{"0s", "0m"} {
		if cut, ok := strings.CutSuffix(text, zero); ok && cut != "" && !strings.ContainsAny(cut[len(cut)-1:], ".0123456789") {
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
