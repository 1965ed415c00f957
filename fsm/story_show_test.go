package fsm

import (
	"fmt"
	"strings"
)

// answer answers a question of the script from what the machine's queries say.
func (s *story) answer(question string, l *line) []string {
	s.t.Helper()
	switch question {
	case "why":
		return s.reason(l)
	case "index":
		return []string{fmt.Sprintf("the index is %d", s.m.index)}
	case "next":
		if at, ok := s.m.NextDue(); ok {
			return []string{fmt.Sprintf("something is due at %v", moment(at))}
		}
		return []string{"nothing is waiting for time to pass"}
	}
	switch what := l.next(); what {
	case "locks":
		return s.showLocks(l.option("prefix", ""))
	case "members":
		return s.showMembers()
	case "member":
		return s.showMember(l.next())
	case "reports":
		return s.showReports("")
	case "report":
		return s.showReports(l.next())
	default:
		if p := s.people[what]; p != nil {
			return s.showSession(p)
		}
		return s.showLock(what)
	}
}

func (s *story) showLock(name string) []string {
	lock, ok := s.m.Lock(name, everything)
	if !ok {
		return []string{name + ": nobody uses it"}
	}
	kind := ""
	if lock.Limit > 0 {
		kind = fmt.Sprintf(" (%d permits)", lock.Limit)
	}
	var queue []string
	for _, waiter := range lock.Queue {
		queue = append(queue, s.holder(waiter.TicketRef))
	}
	said := fmt.Sprintf("%s%s: %s", name, kind, strings.TrimPrefix(s.closed(lock), ", "))
	if len(queue) > 0 {
		said += "; queue: " + strings.Join(queue, ", ")
	}
	return []string{said}
}

func (s *story) showLocks(prefix string) []string {
	var said []string
	for _, lock := range s.m.Locks(prefix, "", everything) {
		said = append(said, s.showLock(lock.Name)...)
	}
	if said == nil {
		return []string{"no locks"}
	}
	return said
}

func (s *story) showSession(p *person) []string {
	one, alive := s.m.Session(p.id)
	if !alive {
		return []string{p.name + ": no session"}
	}
	live, gone := 0, 0
	for _, state := range s.m.ticketStates(p.id) {
		if state.State == Ended {
			gone++
		} else {
			live++
		}
	}
	return []string{fmt.Sprintf("%s: alive until %v; floor %d, tickets in hand %d, gone ones remembered %d",
		p.name, moment(one.Deadline), one.AckedThrough, live, gone)}
}

func (s *story) showMembers() []string {
	var said []string
	for _, record := range s.m.Members() {
		said = append(said, s.showMember(record.ID)...)
	}
	return said
}

// showReports shows the report of one node, or with "" all of them.
func (s *story) showReports(node string) []string {
	var said []string
	for _, r := range s.m.Reports() {
		if node == "" || r.Node == node {
			said = append(said, fmt.Sprintf("%s: digest %d at index %d", r.Node, r.Value, r.Index))
		}
	}
	if said == nil {
		return []string{node + ": no report"}
	}
	return said
}

func (s *story) showMember(name string) []string {
	record, known := s.m.Member(name)
	if !known {
		return []string{name + ": not on record"}
	}
	said := fmt.Sprintf("%s: disk %s, knows versions %d to %d; announced at index %d", name,
		strings.TrimRight(string(record.Incarnation[:]), "\x00"), record.StateVersionMin, record.StateVersionMax, record.Announced)
	if record.Replaced != 0 {
		said += fmt.Sprintf(", on another disk since %v", moment(record.Replaced))
	}
	return []string{said}
}

// waiting is the ticket that waits for a client, or for its owner: "alice", "alice's x" as "alice x".
func (s *story) waiting(l *line) TicketRef {
	s.t.Helper()
	p, owner := l.person(), ""
	if len(l.words) > 0 {
		owner = l.next()
	}
	for _, state := range s.m.ticketStates(p.id) {
		ref := TicketRef{p.id, state.Ticket}
		if view, _ := s.m.Ticket(ref); state.State == Waiting && (owner == "" || view.Owner == owner) {
			return ref
		}
	}
	return TicketRef{Session: p.id}
}

func (s *story) reason(l *line) []string {
	s.t.Helper()
	ref := s.waiting(l)
	said := s.blockers(s.m.Blockers(ref))
	if said == nil {
		return []string{fmt.Sprintf("nothing stands before %s", s.holder(ref))}
	}
	return said
}

// speaker is who sent a command.
func (s *story) speaker(c Command) string {
	switch c := c.(type) {
	case *Attach:
		return s.client(c.Session)
	case *CloseSession:
		return s.client(c.Session)
	case *Acquire:
		return s.client(c.Session)
	case *Drop:
		return s.client(c.Session)
	case *Downgrade:
		return s.client(c.Session)
	case *OpenSession:
		return "who opens"
	case *ForceRelease, *ExpireSession:
		return "the operator"
	default:
		return "the leader"
	}
}
