package fsm_test

import (
	"fmt"
	"slices"

	"zamok/clock"
	"zamok/fsm"
	"zamok/session"
)

// observer reads commands, results and events, as any observer of the log could, and reports the
// first that breaks a promise: holders always fit beside each other, tokens rise, nobody
// overtaken, no grant to the dead or within a delay, each ticket acts once, no lease ends early. It
// shares nothing with the model, so what machine and model both misread is still caught here.
type observer struct {
	time           clock.Time
	stamp          clock.Stamp
	sessions       map[session.ID]*observedSession
	tickets        map[fsm.TicketRef]*observedTicket // of living sessions, live and ended
	live           []*observedTicket
	delayedUntil   map[string]clock.Time        // no grant before
	exclusiveToken map[string]uint64            // the greatest token of an exclusive grant, ever
	holdOffUntil   clock.Time                   // no grant before, on any lock
	firstSent      map[*fsm.ForceRelease]uint64 // the index of the entry that said it first
}

type observedSession struct {
	settings     *fsm.OpenSession
	renewedTime  clock.Time
	renewedIndex uint64
	attachment   uint64
}

type observedTicket struct {
	fsm.TicketRef
	enqueued uint64
	items    []fsm.Item
	state    fsm.State
	token    uint64
	grants   int
}

func newObserver() *observer {
	return &observer{
		sessions:       map[session.ID]*observedSession{},
		tickets:        map[fsm.TicketRef]*observedTicket{},
		delayedUntil:   map[string]clock.Time{},
		exclusiveToken: map[string]uint64{},
		firstSent:      map[*fsm.ForceRelease]uint64{},
	}
}

// startHistory notes that a backup began another history, in which the tokens of this one still
// count.
func (w *observer) startHistory(m *fsm.Machine) error {
	if w.stamp.Index > m.Stamp().Index || m.Time() < w.time {
		return fmt.Errorf("after %v, %v a new history begins at %v, %v", w.stamp, w.time, m.Stamp(),
			m.Time())
	}
	before := w.exclusiveToken
	*w = *newObserver()
	w.exclusiveToken, w.stamp, w.time, w.holdOffUntil = before, m.Stamp(), m.Time(),
		m.HoldOffUntil()
	return nil
}

// observe takes in one entry and what it did.
func (w *observer) observe(e *fsm.Entry, a *fsm.Applied) error {
	if !w.stamp.Before(a.Stamp) || a.Time < w.time {
		return fmt.Errorf("after %v, %v comes %v, %v", w.stamp, w.time, a.Stamp, a.Time)
	}
	w.stamp, w.time = a.Stamp, a.Time
	if a.Refused != fsm.OK {
		if len(a.Results)+len(a.Events)+len(a.Unrenewed) > 0 {
			return fmt.Errorf("a refused entry did something")
		}
		return nil
	}
	w.recordRenewals(e, a)
	events := a.Events
	if events = w.skipIndex(events, a.Index); len(events) < len(a.Events) {
		if err := w.observeStep(nil, a.Events[:len(a.Events)-len(events)]); err != nil {
			return err
		}
	}
	for i, c := range e.Commands {
		r := &a.Results[i]
		w.beforeEvents(c, r, a)
		rest := w.skipIndex(events, r.Index)
		if err := w.observeStep(c, events[:len(events)-len(rest)]); err != nil {
			return err
		}
		if err := w.checkResult(c, r); err != nil {
			return err
		}
		events = rest
	}
	if len(events) > 0 {
		return fmt.Errorf("an event of index %d, which no step took", events[0].Index)
	}
	return nil
}

// skipIndex cuts off the events of one index and returns those that follow.
func (w *observer) skipIndex(events []fsm.Event, index uint64) []fsm.Event {
	n := 0
	for n < len(events) && events[n].Index == index {
		n++
	}
	return events[n:]
}

// recordRenewals notes who was heard in the entry, as its clients would.
func (w *observer) recordRenewals(e *fsm.Entry, a *fsm.Applied) {
	renew := func(id session.ID) {
		if s := w.sessions[id]; s != nil {
			s.renewedTime, s.renewedIndex = a.Time, a.Index
		}
	}
	for _, id := range e.Renewals {
		renew(id)
	}
	for _, c := range e.Commands {
		switch c := c.(type) {
		case *fsm.OpenSession:
			for id, s := range w.sessions {
				if s.settings.Secret == c.Secret {
					renew(id)
				}
			}
		case *fsm.Attach:
			if s := w.sessions[c.Session]; s != nil && s.settings.Secret == c.Secret {
				renew(c.Session)
			}
		case *fsm.Acquire:
			renew(c.Session)
		case *fsm.Drop:
			renew(c.Session)
		case *fsm.Downgrade:
			renew(c.Session)
		case *fsm.CloseSession:
			renew(c.Session)
		}
	}
}

// beforeEvents notes, before the events of a command, what it begins.
func (w *observer) beforeEvents(c fsm.Command, r *fsm.Result, a *fsm.Applied) {
	switch c := c.(type) {
	case *fsm.OpenSession:
		if r.Code == fsm.OK && w.sessions[r.Session] == nil {
			w.sessions[r.Session] = &observedSession{settings: c, renewedTime: a.Time,
				renewedIndex: r.Index}
		}
	case *fsm.Acquire:
		ref := fsm.TicketRef{Session: c.Session, Ticket: c.Ticket}
		// its number is below one that a quota refused
		refusedBefore := r.Reason == fsm.TooMany && r.Detail == nil
		if r.State != 0 && r.Code != fsm.TicketEnded && !refusedBefore && w.tickets[ref] == nil {
			t := &observedTicket{TicketRef: ref, enqueued: r.Index, items: slices.Clone(c.Items),
				state: fsm.Waiting}
			w.tickets[ref], w.live = t, append(w.live, t)
		}
	case *fsm.ForceRelease:
		if w.firstSent[c] == 0 {
			w.firstSent[c] = a.Index
		}
	}
}

// checkResult holds the result of a command against what is known of its ticket after its events.
func (w *observer) checkResult(c fsm.Command, r *fsm.Result) error {
	var ref fsm.TicketRef
	switch c := c.(type) {
	case *fsm.Acquire:
		ref = fsm.TicketRef{Session: c.Session, Ticket: c.Ticket}
	case *fsm.Drop:
		ref = fsm.TicketRef{Session: c.Session, Ticket: c.Ticket}
	case *fsm.DropUnrenewed:
		ref = fsm.TicketRef{Session: c.Session, Ticket: c.Ticket}
	case *fsm.Downgrade:
		ref = fsm.TicketRef{Session: c.Session, Ticket: c.Ticket}
	}
	if r.State == 0 {
		return nil
	}
	t := w.tickets[ref]
	if t == nil { // a Drop of what was never seen, or an answer to what was acknowledged
		t = &observedTicket{TicketRef: ref, state: fsm.Ended}
		w.tickets[ref] = t
	}
	if r.State == fsm.Ended && t.state == fsm.Waiting && t.enqueued == r.Index {
		return fmt.Errorf("ticket %v was refused without an event", ref)
	}
	if t.state != r.State || (r.State == fsm.Granted && r.Token != t.token) {
		return fmt.Errorf("ticket %v is reported as %d with token %d, but is %d with %d", ref,
			r.State, r.Token, t.state, t.token)
	}
	return nil
}

// observeStep takes in the events of one step or command; c is nil for the entry's own step.
func (w *observer) observeStep(c fsm.Command, events []fsm.Event) error {
	for i := range events {
		if err := w.observeEvent(c, &events[i]); err != nil {
			return fmt.Errorf("%s: %w", show(events[i]), err)
		}
	}
	return nil
}

func (w *observer) observeEvent(c fsm.Command, e *fsm.Event) error {
	switch e.Kind {
	case fsm.EvAttached:
		w.sessions[e.Session].attachment = e.Index
		return w.checkAttached(e)
	case fsm.EvGranted:
		return w.checkGranted(e)
	case fsm.EvRefused, fsm.EvLost, fsm.EvReleased:
		return w.checkEnded(c, e)
	case fsm.EvDowngraded:
		t := w.tickets[e.TicketRef]
		if t == nil || t.state != fsm.Granted {
			return fmt.Errorf("it is not held")
		}
		t.items = slices.Clone(t.items)
		for i := range t.items {
			if t.items[i].Mode == fsm.Exclusive {
				t.items[i].Mode = fsm.Shared
			}
		}
	case fsm.EvSessionEnded:
		return w.checkSessionEnded(c, e)
	}
	return nil
}

// checkAttached compares the state that a session receives with the events before it.
func (w *observer) checkAttached(e *fsm.Event) error {
	reported := map[uint64]bool{}
	for i, state := range e.Tickets {
		if i > 0 && e.Tickets[i-1].Ticket >= state.Ticket {
			return fmt.Errorf("its tickets are not in order")
		}
		t := w.tickets[fsm.TicketRef{Session: e.Session, Ticket: state.Ticket}]
		if t == nil || t.state != state.State ||
			(t.state == fsm.Granted && t.token != state.Token) {
			return fmt.Errorf("ticket %d is reported otherwise than its events", state.Ticket)
		}
		reported[state.Ticket] = true
	}
	for _, t := range w.live {
		if t.Session == e.Session && !reported[t.Ticket] {
			return fmt.Errorf("live ticket %d is not reported", t.Ticket)
		}
	}
	return nil
}

func (w *observer) checkGranted(e *fsm.Event) error {
	t := w.tickets[e.TicketRef]
	switch {
	case w.sessions[e.Session] == nil:
		return fmt.Errorf("a grant to the dead")
	case t == nil:
		return fmt.Errorf("a grant without a request")
	case t.state != fsm.Waiting || t.grants > 0:
		return fmt.Errorf("the ticket was in state %d, granted %d times", t.state, t.grants)
	case e.Token != e.Index:
		return fmt.Errorf("the token is not the index of what made the grant")
	case !slices.Equal(t.items, e.Items):
		return fmt.Errorf("other items than asked for: %s", show(t.items))
	}
	t.state, t.token, t.grants = fsm.Granted, e.Token, t.grants+1
	for _, item := range t.items {
		if err := w.checkCompatible(t, item); err != nil {
			return fmt.Errorf("lock %q: %w", item.Name, err)
		}
	}
	return nil
}

// checkCompatible holds one lock of a new grant against everybody else who is at that lock.
func (w *observer) checkCompatible(t *observedTicket, item fsm.Item) error {
	if w.time < w.holdOffUntil {
		return fmt.Errorf("granted in the quiet after a restore, which ends at %v", w.holdOffUntil)
	}
	if w.time < w.delayedUntil[item.Name] {
		return fmt.Errorf("granted within the lock delay, which ends at %v",
			w.delayedUntil[item.Name])
	}
	if item.Mode == fsm.Exclusive {
		if t.token <= w.exclusiveToken[item.Name] {
			return fmt.Errorf("exclusive token %d after %d", t.token, w.exclusiveToken[item.Name])
		}
		w.exclusiveToken[item.Name] = t.token
	}
	permits := uint64(item.Permits)
	for _, other := range w.live {
		for _, theirs := range other.items {
			switch {
			case other == t || theirs.Name != item.Name:
			case other.state == fsm.Waiting && other.enqueued < t.enqueued:
				return fmt.Errorf("it overtook %v", other.TicketRef)
			case other.state == fsm.Granted && theirs.Of != item.Of:
				return fmt.Errorf("beside %v, who holds it as another kind", other.TicketRef)
			case other.state == fsm.Granted && item.Of == 0 &&
				(item.Mode == fsm.Exclusive || theirs.Mode == fsm.Exclusive):
				return fmt.Errorf("beside %v, one of the two exclusive", other.TicketRef)
			case other.state == fsm.Granted:
				permits += uint64(theirs.Permits)
			}
		}
	}
	if permits > uint64(item.Of) {
		return fmt.Errorf("%d permits of %d", permits, item.Of)
	}
	return nil
}

func (w *observer) checkEnded(c fsm.Command, e *fsm.Event) error {
	t, s := w.tickets[e.TicketRef], w.sessions[e.Session]
	if t == nil || s == nil || t.state == fsm.Ended {
		return fmt.Errorf("it was not alive")
	}
	wasHeld := t.state == fsm.Granted
	if wasHeld != (e.Token != 0) || (wasHeld && e.Kind == fsm.EvRefused) ||
		(!wasHeld && e.Kind == fsm.EvLost) {
		return fmt.Errorf("it was in state %d", t.state)
	}
	if force, ok := c.(*fsm.ForceRelease); ok &&
		(e.Token > force.Token || e.Token >= w.firstSent[force]) {
		return fmt.Errorf("forced by one who saw tokens up to %d at index %d", force.Token,
			w.firstSent[force])
	}
	t.state = fsm.Ended
	w.live = slices.DeleteFunc(w.live, func(o *observedTicket) bool { return o == t })
	if e.Kind == fsm.EvLost && s.settings.LockDelay > 0 {
		for _, item := range t.items {
			w.delayedUntil[item.Name] = max(w.delayedUntil[item.Name],
				w.time.Add(s.settings.LockDelay))
		}
	}
	return nil
}

func (w *observer) checkSessionEnded(c fsm.Command, e *fsm.Event) error {
	s := w.sessions[e.Session]
	if s == nil {
		return fmt.Errorf("it was not alive")
	}
	if release, ok := c.(*fsm.ReleaseOnDisconnect); ok &&
		(s.attachment != release.Attachment || s.renewedIndex > release.Index) {
		return fmt.Errorf("attachment %d, heard at %d", s.attachment, s.renewedIndex)
	}
	if end := s.renewedTime.Add(s.settings.TTL); e.Reason == fsm.Expired && w.time < end {
		return fmt.Errorf("at %v, but the lease lasts to %v", w.time, end)
	}
	for _, t := range w.live {
		if t.Session == e.Session {
			return fmt.Errorf("ticket %d outlives it", t.Ticket)
		}
	}
	for ref := range w.tickets {
		if ref.Session == e.Session {
			delete(w.tickets, ref) // ids are never used twice
		}
	}
	delete(w.sessions, e.Session)
	return nil
}
