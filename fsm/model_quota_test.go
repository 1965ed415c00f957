package fsm_test

import (
	"cmp"
	"fmt"

	"zamok/fsm"
)

// What quotas count, added up from the whole state for each question.

func (m *model) setQuotas(c *fsm.SetQuotas) fsm.Result {
	q := &m.quotas
	q.Sessions, q.Tickets = cmp.Or(c.Sessions, q.Sessions), cmp.Or(c.Tickets, q.Tickets)
	q.Bytes, q.Share = cmp.Or(c.Bytes, q.Bytes), cmp.Or(c.Share, q.Share)
	return fsm.Result{}
}

func sessionAmounts(s *fsm.OpenSession) fsm.Amounts {
	return fsm.Amounts{Sessions: 1,
		Bytes: fsm.SessionBytes + uint64(len(s.Identity+s.Label+s.Meta))}
}

func ticketAmounts(t *modelTicket) fsm.Amounts {
	texts := t.request.Owner + t.request.Meta
	for _, item := range t.items {
		texts += item.Name
	}
	return fsm.Amounts{Tickets: 1,
		Bytes: uint64(fsm.TicketBytes + fsm.ItemBytes*len(t.items) + len(texts))}
}

// used is what the sessions that are counted use, and how much of all bytes are those of delays.
func (m *model) used(counts func(*modelSession) bool) (sum fsm.Amounts, delays uint64) {
	add := func(a fsm.Amounts) {
		sum = fsm.Amounts{Sessions: sum.Sessions + a.Sessions, Tickets: sum.Tickets + a.Tickets,
			Bytes: sum.Bytes + a.Bytes}
	}
	for _, s := range m.sessions {
		if counts(s) {
			add(sessionAmounts(s.OpenSession))
			add(fsm.Amounts{Bytes: uint64(len(s.ended)) * fsm.EndedBytes})
		}
	}
	for _, t := range m.tickets {
		if counts(t.session) {
			add(ticketAmounts(t))
		}
	}
	for name := range m.delays {
		delays += fsm.DelayBytes + uint64(len(name))
	}
	return sum, delays
}

func (m *model) usedByAll() fsm.Amounts {
	sum, delays := m.used(func(*modelSession) bool { return true })
	sum.Bytes += delays + m.endedBytes(func(string) bool { return true })
	return sum
}

func (m *model) usedBy(identity string) fsm.Amounts {
	sum, _ := m.used(func(s *modelSession) bool { return s.Identity == identity })
	sum.Bytes += m.endedBytes(func(of string) bool { return of == identity })
	return sum
}

// overQuota names the first quota that something more would exceed.
func (m *model) overQuota(identity string, more fsm.Amounts) string {
	share := func(of uint64) uint64 { return (of*uint64(m.quotas.Share) + 99) / 100 }
	all, own := m.usedByAll(), m.usedBy(identity)
	all.Bytes -= m.endedBytes(func(string) bool { return true }) // they give way
	own.Bytes -= m.endedBytes(func(of string) bool { return of == identity })
	for _, q := range []struct {
		name              string
		more, used, limit uint64
	}{
		{"total_sessions", more.Sessions, all.Sessions, m.quotas.Sessions},
		{"total_tickets", more.Tickets, all.Tickets, m.quotas.Tickets},
		{"total_bytes", more.Bytes, all.Bytes, m.quotas.Bytes},
		{"identity_sessions", more.Sessions, own.Sessions, share(m.quotas.Sessions)},
		{"identity_tickets", more.Tickets, own.Tickets, share(m.quotas.Tickets)},
		{"identity_bytes", more.Bytes, own.Bytes, share(m.quotas.Bytes)},
	} {
		if q.more > 0 && q.used+q.more > q.limit {
			return q.name
		}
	}
	return ""
}

func (m *model) compareQuotas(machine *fsm.Machine) error {
	if machine.Quotas() != m.quotas || machine.Used() != m.usedByAll() {
		return fmt.Errorf("want quotas %+v, of which are used %+v; got %+v, %+v", m.quotas,
			m.usedByAll(), machine.Quotas(), machine.Used())
	}
	for _, identity := range identities {
		if want, got := m.usedBy(identity), machine.UsedBy(identity); want != got {
			return fmt.Errorf("%q uses: want %+v, got %+v", identity, want, got)
		}
	}
	return nil
}

// checkQuotas: nothing becomes more than the quotas allow, except where they were lowered. During
// the hold-off waiting adds a delay to its lock, so there the last ticket may exceed them.
func (p *comparison) checkQuotas(r record, before fsm.Amounts) error {
	if p.machine.HoldOff() > 0 {
		return nil
	}
	limit := p.model.quotas.Amounts
	for _, c := range r.entry.Commands {
		if _, changes := c.(*fsm.SetQuotas); changes {
			return nil
		}
	}
	after := p.machine.Used()
	if after.Sessions > max(limit.Sessions, before.Sessions) ||
		after.Tickets > max(limit.Tickets, before.Tickets) ||
		after.Bytes > max(limit.Bytes, before.Bytes) {
		return fmt.Errorf("of %+v were used %+v, now %+v", limit, before, after)
	}
	return nil
}
