package access

import (
	"slices"

	"zamok/api/access/rules"
	"zamok/fsm"
	"zamok/session"
)

// Locks returns a function that makes a page of the locks with a prefix that a caller may read. Other locks do not count, so
// a page does not reveal how many there are between them.
func (g *Guard) Locks(c Caller, prefix string) func(m *fsm.Machine, after string, limit int) []fsm.LockSummary {
	ranges := g.Rules().Readable(c.forRules(), rules.Read, prefix)
	return func(m *fsm.Machine, after string, limit int) (page []fsm.LockSummary) {
		for _, r := range ranges {
			if len(page) == limit {
				break
			}
			if r.Name == "" {
				page = append(page, m.Locks(r.Prefix, after, limit-len(page))...)
			} else if found := m.Locks(r.Name, after, 1); len(found) > 0 && found[0].Name == r.Name {
				page = append(page, found...)
			}
		}
		return page
	}
}

// Sessions returns a function that makes a page of the sessions that a caller may see: those of its identity; an operator sees
// all.
func (g *Guard) Sessions(c Caller) func(m *fsm.Machine, after session.ID, limit int) []session.Session {
	v := view{g.Rules(), c}
	all := v.operates()
	return func(m *fsm.Machine, after session.ID, limit int) (page []session.Session) {
		for some := m.Sessions(after, ListMax); len(some) > 0 && len(page) < limit; some = m.Sessions(after, ListMax) {
			after = some[len(some)-1].ID
			some = slices.DeleteFunc(some, func(s session.Session) bool { return !all && !v.isOwn(s.Identity) })
			page = append(page, some[:min(len(some), limit-len(page))]...)
		}
		return page
	}
}

// Watches returns a function that reports whether a caller may get events of a lock, and with "" whether it may get the ends of
// sessions.
func (g *Guard) Watches(c Caller) func(name string) bool {
	v := view{g.Rules(), c}
	return func(name string) bool {
		if name == "" {
			return v.operates()
		}
		return v.may(rules.Watch, name)
	}
}
