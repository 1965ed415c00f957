package access

import (
	"errors"
	"slices"

	"zamok/api/access/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// Redact takes out of a response, or of an error, what its caller may not see of others: their tickets, sessions and events,
// and who blocks an acquisition. Of what blocks one, that it does so remains.
func (g *Guard) Redact(c Caller, response any) {
	set := g.Rules()
	if set == nil {
		return
	}
	v := view{set, c}
	switch m := response.(type) {
	case *zamokpb.GetResponse:
		m.Holders, m.Queue = v.tickets(m.Holders), v.tickets(m.Queue)
	case *zamokpb.ListResponse:
		m.Locks = slices.DeleteFunc(m.Locks, func(l *zamokpb.LockSummary) bool { return !v.may(rules.Read, l.Name) })
	case *zamokpb.ListSessionsResponse:
		m.Sessions = slices.DeleteFunc(m.Sessions, func(s *zamokpb.SessionInfo) bool { return !v.isOwn(s.Identity) && !v.operates() })
	case *zamokpb.WatchFrame:
		m.Events = slices.DeleteFunc(m.Events, v.hides)
	case *zamokpb.ServerFrame:
		for _, message := range m.Messages {
			if p := message.GetPosition(); p != nil {
				p.Blockers = v.blockers(p.Blockers)
			}
			v.info(message.GetAnswer().GetError())
		}
	case error:
		if e := (*wire.Error)(nil); errors.As(m, &e) {
			v.info(e.Info)
		}
	}
}

// view is what a caller may see.
type view struct {
	set    *rules.Set
	caller Caller
}

func (v view) may(verb rules.Verb, name string) bool {
	return v.set.May(v.caller.forRules(), verb, name)
}

func (v view) operates() bool { return v.may(rules.Operate, "") }

// isOwn reports whether the caller opened a session, as far as it has an identity.
func (v view) isOwn(opened string) bool { return !isAnonymous(opened) && opened == v.caller.Identity }

// items are those that the caller may do something with.
func (v view) items(verb rules.Verb, items []*zamokpb.Item) []*zamokpb.Item {
	return slices.DeleteFunc(items, func(it *zamokpb.Item) bool { return !v.may(verb, it.Name) })
}

// tickets of a lock that the caller may read may have others that it may not.
func (v view) tickets(tickets []*zamokpb.Ticket) []*zamokpb.Ticket {
	for _, t := range tickets {
		if !v.isOwn(t.Identity) {
			t.Items = v.items(rules.Read, t.Items)
			t.Blockers = v.blockers(t.Blockers)
		}
	}
	return tickets
}

// hides reports whether an event is none of the caller's business, and takes out of others what is not. The end of a
// session has no lock.
func (v view) hides(e *zamokpb.LockEvent) bool {
	if len(e.Items) == 0 {
		return !v.operates()
	}
	e.Items = v.items(rules.Watch, e.Items)
	return len(e.Items) == 0
}

// blockers of a lock that the caller may not read have neither session nor owner; and no name, unless the caller may lock
// it: then it can find out. A blocker without a name is of no lock: a restore, or the caller's own owner. Others may be
// sent the same blockers, so they are copied.
func (v view) blockers(all []*zamokpb.Blocker) (seen []*zamokpb.Blocker) {
	for _, b := range all {
		if b.Name != "" && !v.may(rules.Read, b.Name) {
			hidden := &zamokpb.Blocker{By: b.By, Until: b.Until, Left: b.Left}
			if v.may(rules.Lock, b.Name) {
				hidden.Name = b.Name
			}
			b = hidden
		}
		seen = append(seen, b)
	}
	return seen
}

func (v view) info(info *zamokpb.ErrorInfo) {
	if info == nil {
		return
	}
	info.Blockers = v.blockers(info.Blockers)
	for i, l := range info.Cycle {
		if !v.may(rules.Read, l.Name) {
			hidden := &zamokpb.Link{State: l.State}
			if v.may(rules.Lock, l.Name) {
				hidden.Name = l.Name
			}
			info.Cycle[i] = hidden
		}
	}
}
