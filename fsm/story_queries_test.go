package fsm

import (
	"fmt"
	"strings"
)

// query answers a question of the script from what the machine's queries say.
func (s *story) query(question string, l *scriptLine) []string {
	s.t.Helper()
	switch question {
	case "why":
		return s.reason(l)
	case "index":
		return []string{fmt.Sprintf("the index is %d", s.m.index)}
	case "next":
		if at, ok := s.m.NextDue(); ok {
			return []string{fmt.Sprintf("something is due at %v", formatTime(at))}
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
	case "quotas":
		if identity := l.option("of", ""); identity != "" {
			return []string{fmt.Sprintf("%s uses %s", identity, amountsText(s.m.UsedBy(identity)))}
		}
		return []string{"in use are " + amountsText(s.m.Used())}
	default:
		if p := s.clients[what]; p != nil {
			return s.showSession(p)
		}
		return s.showLock(what)
	}
}

func amountsText(a Amounts) string {
	return fmt.Sprintf("%d sessions, %d tickets, %d bytes", a.Sessions, a.Tickets, a.Bytes)
}

func (s *story) showLock(name string) []string {
	lock, ok := s.m.LockView(name)
	if !ok {
		return []string{name + ": nobody uses it"}
	}
	kind := ""
	if lock.Of > 0 {
		kind = fmt.Sprintf(" (%d permits)", lock.Of)
	}
	var queue []string
	for _, waiter := range lock.Queue {
		queue = append(queue, s.ownerName(waiter.TicketRef))
	}
	output := fmt.Sprintf("%s%s: %s", name, kind, strings.TrimPrefix(s.blockedBy(lock), ", "))
	if len(queue) > 0 {
		output += "; queue: " + strings.Join(queue, ", ")
	}
	return []string{output}
}

func (s *story) showLocks(prefix string) []string {
	var output []string
	for _, lock := range s.m.Locks(prefix, "", unlimited) {
		output = append(output, s.showLock(lock.Name)...)
	}
	if output == nil {
		return []string{"no locks"}
	}
	return output
}

func (s *story) showSession(p *storyClient) []string {
	one, alive := s.m.Session(p.id)
	if e, remembered := s.m.EndedSession(p.secret()); !alive && remembered {
		output := fmt.Sprintf("%s: no session; the last has ended: %s", p.name,
			reasonText(e.Reason, ""))
		if e.Ticket != 0 {
			output += "; its ticket: " + reasonText(e.Ticket, "")
		}
		return []string{output}
	}
	if !alive {
		return []string{p.name + ": no session"}
	}
	live, ended := 0, 0
	for _, state := range s.m.ticketStates(p.id) {
		if state.State == Ended {
			ended++
		} else {
			live++
		}
	}
	return []string{fmt.Sprintf(
		"%s: alive until %v; acknowledged through %d, live tickets %d, ended ones remembered %d",
		p.name, formatTime(one.Deadline), one.AckedThrough, live, ended)}
}

func (s *story) showMembers() []string {
	var output []string
	for _, record := range s.m.Members() {
		output = append(output, s.showMember(record.ID)...)
	}
	return output
}

func (s *story) showMember(name string) []string {
	record, known := s.m.Member(name)
	if !known {
		return []string{name + ": not on record"}
	}
	output := fmt.Sprintf("%s: disk %s, knows versions %d to %d; announced at index %d", name,
		strings.TrimRight(string(record.Incarnation[:]), "\x00"), record.StateVersionMin,
		record.StateVersionMax, record.Announced)
	if record.Replaced != 0 {
		output += fmt.Sprintf(", on another disk since %v", formatTime(record.Replaced))
	}
	return []string{output}
}

// waitingTicket is the ticket that waits for a client, or for its owner: "alice", "alice's x" as
// "alice x".
func (s *story) waitingTicket(l *scriptLine) TicketRef {
	s.t.Helper()
	p, owner := l.storyClient(), ""
	if len(l.words) > 0 {
		owner = l.next()
	}
	for _, state := range s.m.ticketStates(p.id) {
		ref := TicketRef{p.id, state.Ticket}
		if view, _ := s.m.Ticket(ref); state.State == Waiting &&
			(owner == "" || view.Owner == owner) {
			return ref
		}
	}
	return TicketRef{Session: p.id}
}

func (s *story) reason(l *scriptLine) []string {
	s.t.Helper()
	ref := s.waitingTicket(l)
	said := s.describeBlockers(s.m.Blockers(ref))
	if said == nil {
		return []string{fmt.Sprintf("nothing stands before %s", s.ownerName(ref))}
	}
	return said
}

// sender is who sent a command.
func (s *story) sender(c Command) string {
	switch c := c.(type) {
	case *Attach:
		return s.clientName(c.Session)
	case *CloseSession:
		return s.clientName(c.Session)
	case *WithdrawSession:
		return s.clientName(c.Session)
	case *Acquire:
		return s.clientName(c.Session)
	case *Drop:
		return s.clientName(c.Session)
	case *Downgrade:
		return s.clientName(c.Session)
	case *OpenSession:
		return "who opens"
	case *ForceRelease, *ExpireSession, *SetLongestTTL, *SetQuotas:
		return "the operator"
	default:
		return "the leader"
	}
}
