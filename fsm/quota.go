package fsm

import (
	"cmp"

	"zamok/session"
	"zamok/session/record"
)

// # Quotas
//
// Quotas bound what clients can make every node keep: all clients together, and each identity alone. They are a setting
// in the state (SetQuotas), since replicas must agree on what they refuse. What is used is counted from the records.
//
// Only a new session and a new ticket need room. A drop, a close, an expiration, a forced release and a setting need
// none: what ends becomes smaller, or goes. So a cluster that is full can always be emptied, and what it knows is
// answered as ever, also where a limit was lowered below what is used.
//
// A ticket that a quota refuses has no record: refusals would fill what is full. Instead its session keeps one number,
// RefusedThrough. Every ticket up to it that is not known counts as refused, so a late copy of the Acquire is refused as
// the first was, although there may be room by then. The price: a lower ticket of that session whose first copy arrives
// later is refused, too.

// Amounts is how much of what a quota bounds there is, or may be.
type Amounts struct {
	Sessions uint64
	Tickets  uint64 // waiting and granted
	Bytes    uint64 // about what sessions, tickets and delays take in the memory of each node
}

// Quotas are what clients may use.
type Quotas struct {
	Amounts        // all clients together
	Share   uint32 // how many percent of each amount one identity may use
}

// QuotasDefault is what a cluster begins with. A node with these bytes runs in 400 MB of memory, and holds them twice
// while it receives a snapshot; the counts are how many small records fit into the bytes.
func QuotasDefault() Quotas {
	return Quotas{Amounts{Sessions: 1 << 17, Tickets: 1 << 18, Bytes: 128 << 20}, 50}
}

// The highest quotas of tickets and of bytes, and the highest share. That of sessions is SessionsMax.
const (
	QuotaTicketsMax = 1 << 32
	QuotaBytesMax   = 1 << 40
	ShareMax        = 100
)

// What a record counts beside the bytes of its texts. It is part of the format. In memory a record takes about as much:
// its fields, in a node of a tree that is half full, and its entries in what is derived. No record becomes larger when
// it ends: EndedBytes is at most TicketBytes, and DelayBytes at most ItemBytes.
const (
	SessionBytes = 512
	TicketBytes  = 256
	ItemBytes    = 256 // an item of a ticket, with its lock
	EndedBytes   = 256 // a ticket that ended and is remembered
	DelayBytes   = 256
)

// delaysDivisor: above this part of the bytes in delays, a session with a lock delay gets no more tickets. Delays count
// for no identity.
const delaysDivisor = 4

func (q *Quotas) code(c *coder) {
	record.Number(&c.Coder, "sessions", &q.Sessions)
	record.Number(&c.Coder, "tickets", &q.Tickets)
	record.Number(&c.Coder, "bytes", &q.Bytes)
	c.Number32("share", &q.Share)
}

// invalid names a quota that is too high; 0 is one too, unless zeroes are left as they are.
func (q *Quotas) invalid() string {
	return firstBroken(
		rule{"sessions", q.Sessions <= SessionsMax},
		rule{"tickets", q.Tickets <= QuotaTicketsMax},
		rule{"bytes", q.Bytes <= QuotaBytesMax},
		rule{"share", q.Share <= ShareMax},
	)
}

// OfIdentity is what one identity may use.
func (q Quotas) OfIdentity() Amounts {
	part := func(all uint64) uint64 { return (all*uint64(q.Share) + ShareMax - 1) / ShareMax }
	return Amounts{part(q.Sessions), part(q.Tickets), part(q.Bytes)}
}

// execute changes the quotas that the command names. What is above a lower one stays.
func (c *SetQuotas) execute(m *Machine) Result {
	if field := c.invalid(); field != "" {
		return invalid(field)
	}
	m.quotas = Quotas{
		Amounts{
			cmp.Or(c.Sessions, m.quotas.Sessions), cmp.Or(c.Tickets, m.quotas.Tickets), cmp.Or(c.Bytes, m.quotas.Bytes),
		},
		cmp.Or(c.Share, m.quotas.Share),
	}
	return Result{}
}

// overQuota returns the name of the quota that more of an identity would exceed, or "".
func (m *Machine) overQuota(identity string, more Amounts) string {
	if name := more.exceeds(m.quotas.Amounts, m.Used()); name != "" {
		return "total_" + name
	}
	if name := more.exceeds(m.quotas.OfIdentity(), m.UsedBy(identity)); name != "" {
		return "identity_" + name
	}
	return ""
}

// exceeds names an amount that, added to what is used, is above the limit.
func (a Amounts) exceeds(limit, used Amounts) string {
	fits := func(more, used, limit uint64) bool { return more == 0 || used+more <= limit }
	return firstBroken(
		rule{"sessions", fits(a.Sessions, used.Sessions, limit.Sessions)},
		rule{"tickets", fits(a.Tickets, used.Tickets, limit.Tickets)},
		rule{"bytes", fits(a.Bytes, used.Bytes, limit.Bytes)},
	)
}

// NeedsRoom reports whether the command would add a session or a ticket, and the quota for which it would be refused
// now, or "". An acquisition that acknowledges tickets that ended may have room by that.
func (m *Machine) NeedsRoom(c Command) (needs bool, quota string) {
	switch c := c.(type) {
	case *OpenSession:
		if m.bySecret[c.Secret] == 0 {
			return true, m.overQuota(c.Identity, sessionAmounts(&c.Settings))
		}
	case *Acquire:
		s := m.sessions.Peek(c.Session)
		switch {
		case s == nil || c.Ticket <= s.AckedThrough || m.known(s, TicketRef{c.Session, c.Ticket}) != nil:
		case m.givesBack(s, c.AckedThrough):
			return true, ""
		default:
			return true, m.overQuota(s.Identity, c.amounts())
		}
	}
	return false, ""
}

// givesBack reports whether tickets that ended are forgotten with that acknowledged-through.
func (m *Machine) givesBack(s *session.Session, through uint64) bool {
	for key, t := range ticketsOf(m.tickets, TicketRef{s.ID, s.AckedThrough + 1}) {
		if key.Ticket > through || t.state == Ended {
			return key.Ticket <= through
		}
	}
	return false
}

// What each record counts.

func sessionAmounts(s *session.Settings) Amounts {
	return Amounts{Sessions: 1, Bytes: SessionBytes + uint64(len(s.Identity)+len(s.Label)+len(s.Metadata))}
}

func (c *Acquire) amounts() Amounts {
	a := Amounts{Tickets: 1, Bytes: TicketBytes + uint64(len(c.Owner)+len(c.Metadata)+len(c.Items)*ItemBytes)}
	for i := range c.Items {
		a.Bytes += uint64(len(c.Items[i].Name))
	}
	return a
}

func (t *ticket) amounts() Amounts {
	if t.state == Ended {
		return Amounts{Bytes: EndedBytes}
	}
	return (&Acquire{Owner: t.owner, Metadata: t.metadata, Items: t.items}).amounts()
}

// gone is the sign of a record that is removed: −1, where sums wrap around.
const gone = ^uint64(0)

// charge counts a record of the identity that comes, with the sign 1, or goes.
func (m *Machine) charge(identity string, a Amounts, sign uint64) {
	m.bytes += sign * a.Bytes
	used := m.identities[identity]
	if used == nil {
		used = new(Amounts)
		m.identities[identity] = used
	}
	used.Sessions += sign * a.Sessions
	used.Tickets += sign * a.Tickets
	used.Bytes += sign * a.Bytes
	if *used == (Amounts{}) {
		delete(m.identities, identity)
	}
}

// chargeDelay counts a delay that comes or goes.
func (m *Machine) chargeDelay(name string, sign uint64) {
	bytes := sign * (DelayBytes + uint64(len(name)))
	m.bytes += bytes
	m.delayBytes += bytes
}

// countTicket counts a ticket that comes or goes: in the digest, and for its identity.
func (m *Machine) countTicket(s *session.Session, key TicketRef, t *ticket, sign uint64) {
	m.sum += record.Sum(sign) * t.sum(key)
	m.charge(s.Identity, t.amounts(), sign)
}

// refusedByQuota is what is known of a ticket up to its session's RefusedThrough that has no record.
var refusedByQuota = ticket{state: Ended, reason: TooMany}

// known returns the ticket, for reading, if it is live or remembered, or counts as refused.
func (m *Machine) known(s *session.Session, key TicketRef) *ticket {
	t := m.tickets.Peek(key)
	if t == nil && key.Ticket > s.AckedThrough && key.Ticket <= s.RefusedThrough {
		return &refusedByQuota
	}
	return t
}

// refuseThrough ends a ticket that no record remembers, with all below it that are not known.
func (m *Machine) refuseThrough(s *session.Session, key TicketRef) {
	m.changeSession(s, func() { s.RefusedThrough, s.Changed = max(s.RefusedThrough, key.Ticket), m.index })
}
