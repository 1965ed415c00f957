package sim

import (
	"zamok/fsm"
	"zamok/session"
)

// checkLog replays the events of the log with a few lines of its own, which know nothing of the
// machine's: every lock excludes, tokens rise, and a ticket is granted once and ends once.
func checkLog(entries []Effect) []string {
	r := &logReplay{
		tickets: map[fsm.TicketRef]*replayedTicket{}, holders: map[string]map[fsm.TicketRef]fsm.Item{},
		tokens: map[string]uint64{}, ended: map[session.ID]bool{},
	}
	for i := range entries {
		for _, ev := range entries[i].Events {
			r.apply(ev)
		}
	}
	return r.found.list()
}

// logReplay is what the events so far add up to.
type logReplay struct {
	found   findingList
	tickets map[fsm.TicketRef]*replayedTicket
	holders map[string]map[fsm.TicketRef]fsm.Item
	tokens  map[string]uint64 // of the latest exclusive grant, by lock
	ended   map[session.ID]bool
}

type replayedTicket struct {
	token uint64 // 0: not granted yet
	ended bool
	items []fsm.Item
}

func (r *logReplay) apply(ev fsm.Event) {
	switch ev.Kind {
	case fsm.EvGranted:
		r.grant(ev)
	case fsm.EvLost, fsm.EvReleased, fsm.EvRefused:
		r.end(ev)
	case fsm.EvDowngraded:
		for _, item := range r.ticket(ev.TicketRef).items {
			if held, still := r.holders[item.Name][ev.TicketRef]; still && held.Mode == fsm.Exclusive {
				held.Mode = fsm.Shared
				r.holders[item.Name][ev.TicketRef] = held
			}
		}
	case fsm.EvSessionEnded:
		if r.ended[ev.Session] {
			r.found.add("session %d ended twice, again at %d", ev.Session, ev.Index)
		}
		r.ended[ev.Session] = true
		for ref, t := range r.tickets {
			if ref.Session != ev.Session {
				continue
			}
			if !t.ended {
				r.found.add("session %d ended at %d and its ticket %d goes on", ev.Session, ev.Index, ref.Ticket)
			}
			delete(r.tickets, ref)
		}
	}
}

func (r *logReplay) ticket(ref fsm.TicketRef) *replayedTicket {
	t := r.tickets[ref]
	if t == nil {
		t = &replayedTicket{}
		r.tickets[ref] = t
	}
	return t
}

func (r *logReplay) grant(ev fsm.Event) {
	t := r.ticket(ev.TicketRef)
	switch {
	case r.ended[ev.Session]:
		r.found.add("%v was granted at %d, and its session had ended", ev.TicketRef, ev.Index)
	case t.token != 0:
		r.found.add("%v was granted twice, with %d and with %d", ev.TicketRef, t.token, ev.Token)
	case t.ended:
		r.found.add("%v was granted at %d after its end", ev.TicketRef, ev.Index)
	}
	t.token, t.items = ev.Token, ev.Items
	for _, item := range ev.Items {
		r.hold(ev, item)
	}
}

// hold looks whether an item fits beside who holds the lock, and whether its token rises.
func (r *logReplay) hold(ev fsm.Event, item fsm.Item) {
	holders := r.holders[item.Name]
	if holders == nil {
		holders = map[fsm.TicketRef]fsm.Item{}
		r.holders[item.Name] = holders
	}
	permits := item.Permits
	for other, held := range holders {
		permits += held.Permits
		if held.Mode != item.Mode || item.Mode == fsm.Exclusive {
			r.found.add("%v and %v both hold %q from %d on", other, ev.TicketRef, item.Name, ev.Index)
		}
	}
	if item.Mode == fsm.Permits && permits > item.Limit {
		r.found.add("%d of %d permits of %q are out from %d on", permits, item.Limit, item.Name, ev.Index)
	}
	holders[ev.TicketRef] = item
	if last := r.tokens[item.Name]; ev.Token <= last {
		r.found.add("the token of %q went from %d to %d", item.Name, last, ev.Token)
	}
	if item.Mode == fsm.Exclusive {
		r.tokens[item.Name] = ev.Token
	}
}

func (r *logReplay) end(ev fsm.Event) {
	t := r.ticket(ev.TicketRef)
	if t.ended {
		r.found.add("%v ended twice, again at %d", ev.TicketRef, ev.Index)
	}
	if t.token != ev.Token {
		r.found.add("%v ended with token %d at %d, and had %d", ev.TicketRef, ev.Token, ev.Index, t.token)
	}
	t.ended = true
	for _, item := range t.items {
		delete(r.holders[item.Name], ev.TicketRef)
	}
}
