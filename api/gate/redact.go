package gate

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"zamok/api/gate/rules"
	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// redact removes from the response to a request, or from its error, what the caller may not see:
// tickets and sessions of others, and the sessions that block an acquisition. A hidden blocker
// keeps its kind and duration.
func (g *Gate) redact(ctx context.Context, d *Request, response proto.Message, err error) {
	set := g.Rules()
	if set == nil {
		return
	}
	v := view{set, CallerOf(ctx)}
	if err != nil {
		if e := (*wire.Error)(nil); errors.As(err, &e) {
			v.info(e.Info)
		}
		return
	}
	if response != nil && d.hide != nil {
		d.hide(v, response)
	}
}

func hideGet(v view, response proto.Message) {
	r := response.(*zamokpb.GetResponse)
	r.Holders, r.Queue = v.tickets(r.Holders), v.tickets(r.Queue)
}

func hideList(v view, response proto.Message) {
	r := response.(*zamokpb.ListResponse)
	r.Locks = slices.DeleteFunc(r.Locks,
		func(l *zamokpb.LockSummary) bool { return !v.may(rules.Read, l.Name) })
}

func hideSessions(v view, response proto.Message) {
	r := response.(*zamokpb.ListSessionsResponse)
	r.Sessions = slices.DeleteFunc(r.Sessions,
		func(s *zamokpb.SessionInfo) bool { return !v.isOwn(s.Identity) && !v.operates() })
}

func hideSettings(v view, response proto.Message) {
	if !v.operates() {
		response.(*zamokpb.SettingsResponse).Identities = nil
	}
}

// hideFrame hides in a frame to a session's stream.
func hideFrame(v view, response proto.Message) {
	for _, message := range response.(*zamokpb.ServerFrame).Messages {
		if p := message.GetPosition(); p != nil {
			p.Blockers = v.blockers(p.Blockers)
		}
		v.info(message.GetAnswer().GetError())
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

// isOwn reports whether the caller opened a session; never for an anonymous one.
func (v view) isOwn(opened string) bool {
	return !isAnonymous(opened) && opened == v.caller.Identity
}

// items returns those for which the caller has a verb.
func (v view) items(verb rules.Verb, items []*zamokpb.Item) []*zamokpb.Item {
	return slices.DeleteFunc(items, func(it *zamokpb.Item) bool { return !v.may(verb, it.Name) })
}

// tickets removes from tickets of a lock that the caller may read what it may not: locks of others'
// tickets, and what blocks any ticket. The caller's own ticket keeps all of its locks.
func (v view) tickets(tickets []*zamokpb.Ticket) []*zamokpb.Ticket {
	for _, t := range tickets {
		if !v.isOwn(t.Identity) {
			t.Items = v.items(rules.Read, t.Items)
		}
		t.Blockers = v.blockers(t.Blockers)
	}
	return tickets
}

// blockers hides session and owner of blockers at locks that the caller may not read, and the name
// as well unless the caller may lock it, since then it can find out. A blocker without a name has
// no lock: it is a restore, or the caller's own owner. The blockers may be shared with messages to
// other callers, so they are cloned.
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
