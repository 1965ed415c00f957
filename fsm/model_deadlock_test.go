package fsm_test

import "zamok/fsm"

// modelEdge says that from can't continue before to does: it waits for it at the lock name, or,
// name being empty, it is held by the owner who waits with to.
type modelEdge struct {
	from, to fsm.TicketRef
	name     string
}

// edges are the whole graph of waiting.
func (m *model) edges() (edges []modelEdge) {
	for _, t := range m.tickets {
		if t.state == fsm.Granted {
			for _, u := range m.tickets {
				if u.state == fsm.Waiting && u.sameOwner(t) {
					edges = append(edges, modelEdge{t.TicketRef, u.TicketRef, ""})
				}
			}
			continue
		}
		for _, item := range t.items {
			var ahead *modelTicket
			for u := range m.users(item.Name) {
				if u.state == fsm.Granted && conflict(item, u.item) {
					edges = append(edges, modelEdge{t.TicketRef, u.TicketRef, item.Name})
				}
				if u.state == fsm.Waiting && u.enqueued < t.enqueued {
					ahead = u.modelTicket // the last of them is just ahead
				}
			}
			if ahead != nil {
				edges = append(edges, modelEdge{t.TicketRef, ahead.TicketRef, item.Name})
			}
		}
	}
	return edges
}

// sameOwner reports whether one logical thread asked for both tickets. Tickets without owner have
// none in common.
func (t *modelTicket) sameOwner(u *modelTicket) bool {
	return t.session == u.session && t.request.Owner == u.request.Owner && t.request.Owner != ""
}

// reaches reports whether the edges lead from one ticket to another, in one step or more.
func reaches(edges []modelEdge, from, to fsm.TicketRef) bool {
	seen := map[fsm.TicketRef]bool{}
	var visit func(at fsm.TicketRef) bool
	visit = func(at fsm.TicketRef) bool {
		for _, e := range edges {
			if e.from != at || seen[e.to] {
				continue
			}
			seen[e.to] = true
			if e.to == to || visit(e.to) {
				return true
			}
		}
		return false
	}
	return visit(from)
}
