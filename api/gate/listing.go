package gate

import (
	"zamok/api/gate/rules"
	"zamok/fsm"
	"zamok/session"
)

// partMax is how many sessions, or names and prefixes of the rules, one part of a listing looks at.
const partMax = 1000

// Locks returns a function that adds to a page of the locks behind after, with a prefix, that a
// caller may read. Other locks do not count, so a page does not reveal how many there are between
// them. Each call looks at a part of the state machine, and reports whether more calls are needed,
// between which entries may be applied.
func (c client) Locks(prefix, after string, limit int,
	page *[]fsm.LockSummary) (part func(m *fsm.Machine) (more bool)) {
	ranges := c.gate.Rules().Readable(c.caller.forRules(), rules.Read, prefix)
	return func(m *fsm.Machine) (more bool) {
		some := ranges[:min(len(ranges), partMax)]
		ranges = ranges[len(some):]
		for _, r := range some {
			left := limit - len(*page)
			if left == 0 {
				return false
			}
			if r.Name == "" {
				*page = append(*page, m.Locks(r.Prefix, after, left)...)
			} else if found := m.Locks(r.Name, after, 1); len(found) > 0 &&
				found[0].Name == r.Name {
				*page = append(*page, found...)
			}
		}
		return len(ranges) > 0 && len(*page) < limit
	}
}

// Sessions is Locks for the sessions that a caller may see: those of its identity; an operator sees
// all.
func (c client) Sessions(after session.ID, limit int,
	page *[]session.Session) (part func(m *fsm.Machine) (more bool)) {
	v := view{c.gate.Rules(), c.caller}
	all := v.operates()
	return func(m *fsm.Machine) (more bool) {
		some := m.Sessions(after, partMax)
		for _, s := range some {
			after = s.ID
			if all || v.isOwn(s.Identity) {
				*page = append(*page, s)
			}
			if len(*page) == limit {
				return false
			}
		}
		return len(some) == partMax
	}
}

// Watches returns a function that reports whether a caller may get events of a lock, and with ""
// whether it may get the ends of sessions; and the rules in force, by which it decides.
func (c client) Watches() (inForce any, may func(name string) bool) {
	v := view{c.gate.Rules(), c.caller}
	return v.set, func(name string) bool {
		if name == "" {
			return v.operates()
		}
		return v.may(rules.Watch, name)
	}
}
