package fsm

import (
	"cmp"

	"zamok/fsm/record"
	"zamok/session"
)

// # Quotas
//
// Quotas limit what clients can make every node store: all clients together, and each identity
// alone. They are a setting in the state (SetQuotas), since replicas must agree on refusals. Usage
// is counted from the records.
//
// Only a new session and a new ticket are refused. A drop, a close, an expiration, a forced release
// and a setting add nothing: what ends becomes smaller or is removed. So a full cluster can always
// be emptied, and retransmissions for known records are answered as usual, even if a quota was
// lowered below the usage.
//
// A ticket that a quota refuses has no record, since refusals would fill a full cluster. Instead
// its session keeps one number, RefusedThrough: every unknown ticket up to it counts as refused. So
// a late copy of the Acquire is refused like the first one, even if the quota has room by then. The
// price: a lower ticket of that session whose first copy arrives later is refused, too.

// Amounts is a usage or a quota.
type Amounts struct {
	Sessions uint64
	Tickets  uint64 // waiting and granted
	Bytes    uint64 // approximate memory of sessions, tickets and delays on each node
}

// Quotas limit the usage of clients.
type Quotas struct {
	Amounts        // all clients together
	Share   uint32 // percentage of each amount that one identity may use
}

// QuotasDefault are the quotas of a new cluster. They fit nodes with 400 MB of memory, which hold
// the state twice while they receive a snapshot; the counts are how many small records fit into the
// bytes.
func QuotasDefault() Quotas {
	return Quotas{Amounts{Sessions: 1 << 17, Tickets: 1 << 18, Bytes: 128 << 20}, 50}
}

// The highest quotas of tickets and of bytes, and the highest share. That of sessions is
// SessionsMax.
const (
	QuotaTicketsMax = 1 << 32
	QuotaBytesMax   = 1 << 40
	ShareMax        = 100
)

// The cost of a record in bytes, in addition to its texts. It is part of the format. It
// approximates the memory of the record: its fields, in a half-full node of a tree, and its entries
// in derived structures. No record becomes larger when it ends: EndedBytes is at most TicketBytes,
// DelayBytes at most ItemBytes, and EndedSessionBytes at most SessionBytes.
const (
	SessionBytes = 512
	TicketBytes  = 256
	ItemBytes    = 256 // an item of a ticket, with its lock
	EndedBytes   = 256 // a ticket that ended and is remembered
	DelayBytes   = 256
	// EndedSessionBytes is that of a session that ended and is remembered, beside its identity.
	EndedSessionBytes = 256
)

// delaysDivisor is the part of the bytes that delays may use: beyond it, sessions with a lock delay
// get no more tickets. Delays count for no identity.
const delaysDivisor = 4

// endedDivisor is the part of the bytes that ended sessions may use, of all and of each identity.
const endedDivisor = 16

// usage is what an identity uses.
type usage struct {
	Amounts
	ended []uint64 // of its sessions, the numbers of those that ended and are remembered
}

func (q *Quotas) code(c *coder) {
	record.Number(&c.Coder, "sessions", &q.Sessions)
	record.Number(&c.Coder, "tickets", &q.Tickets)
	record.Number(&c.Coder, "bytes", &q.Bytes)
	c.Number32("share", &q.Share)
}

// invalid names a quota above its limit, or "". Zero is valid here: in a command it means
// unchanged.
func (q *Quotas) invalid() string {
	return firstBroken(
		rule{"sessions", q.Sessions <= SessionsMax},
		rule{"tickets", q.Tickets <= QuotaTicketsMax},
		rule{"bytes", q.Bytes <= QuotaBytesMax},
		rule{"share", q.Share <= ShareMax},
	)
}

// OfIdentity is the quota of one identity.
func (q Quotas) OfIdentity() Amounts {
	part := func(all uint64) uint64 { return (all*uint64(q.Share) + ShareMax - 1) / ShareMax }
	return Amounts{part(q.Sessions), part(q.Tickets), part(q.Bytes)}
}

// execute changes the quotas that are not zero. Lowering a quota ends nothing.
func (c *SetQuotas) execute(m *Machine) Result {
	if field := c.invalid(); field != "" {
		return invalid(field)
	}
	m.quotas = Quotas{
		Amounts{
			cmp.Or(c.Sessions, m.quotas.Sessions), cmp.Or(c.Tickets, m.quotas.Tickets),
			cmp.Or(c.Bytes, m.quotas.Bytes),
		},
		cmp.Or(c.Share, m.quotas.Share),
	}
	return Result{}
}

// overQuota returns the name of the quota that an identity would exceed with more, or "". Ended
// sessions give way (makeRoom).
func (m *Machine) overQuota(identity string, more Amounts) string {
	all, own := m.Used(), Amounts{}
	all.Bytes -= m.endedBytes
	if used := m.identities[identity]; used != nil {
		own = used.Amounts
		own.Bytes -= used.endedBytes(identity)
	}
	if name := more.exceeds(m.quotas.Amounts, all); name != "" {
		return "total_" + name
	}
	if name := more.exceeds(m.quotas.OfIdentity(), own); name != "" {
		return "identity_" + name
	}
	return ""
}

// exceeds names an amount that, added to the usage, is above the limit.
func (a Amounts) exceeds(limit, used Amounts) string {
	fits := func(more, used, limit uint64) bool { return more == 0 || used+more <= limit }
	return firstBroken(
		rule{"sessions", fits(a.Sessions, used.Sessions, limit.Sessions)},
		rule{"tickets", fits(a.Tickets, used.Tickets, limit.Tickets)},
		rule{"bytes", fits(a.Bytes, used.Bytes, limit.Bytes)},
	)
}

// NeedsRoom reports whether the command would add a session or a ticket, and the quota for which it
// would be refused now, or "". An acquisition that acknowledges tickets that ended may have room by
// that.
func (m *Machine) NeedsRoom(c Command) (needs bool, quota string) {
	switch c := c.(type) {
	case *OpenSession:
		if m.bySecret[c.Secret] == 0 && m.endedBySecret[c.Secret] == 0 {
			return true, m.overQuota(c.Identity, sessionAmounts(&c.Settings))
		}
	case *Acquire:
		s := m.sessions.Peek(c.Session)
		switch {
		case s == nil || c.Ticket <= s.AckedThrough ||
			m.known(s, TicketRef{c.Session, c.Ticket}) != nil:
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
	return Amounts{Sessions: 1,
		Bytes: SessionBytes + uint64(len(s.Identity)+len(s.Label)+len(s.Meta))}
}

func (c *Acquire) amounts() Amounts {
	a := Amounts{Tickets: 1,
		Bytes: TicketBytes + uint64(len(c.Owner)+len(c.Meta)+len(c.Items)*ItemBytes)}
	for i := range c.Items {
		a.Bytes += uint64(len(c.Items[i].Name))
	}
	return a
}

func (t *ticket) amounts() Amounts {
	if t.state == Ended {
		return Amounts{Bytes: EndedBytes}
	}
	return (&Acquire{Owner: t.owner, Meta: t.meta, Items: t.items}).amounts()
}

// gone is the sign of a removed record: −1 in wrapping arithmetic.
const gone = ^uint64(0)

// charge adds a record to the usage of an identity, with sign 1, or removes it.
func (m *Machine) charge(identity string, a Amounts, sign uint64) *usage {
	m.bytes += sign * a.Bytes
	used := m.identities[identity]
	if used == nil {
		used = new(usage)
		m.identities[identity] = used
	}
	used.Sessions += sign * a.Sessions
	used.Tickets += sign * a.Tickets
	used.Bytes += sign * a.Bytes
	if used.Amounts == (Amounts{}) {
		delete(m.identities, identity)
	}
	return used
}

// chargeDelay adds or removes a delay.
func (m *Machine) chargeDelay(name string, sign uint64) {
	bytes := sign * (DelayBytes + uint64(len(name)))
	m.bytes += bytes
	m.delayBytes += bytes
}

// refusedByQuota stands for every ticket up to its session's RefusedThrough that has no record.
var refusedByQuota = ticket{state: Ended, reason: TooMany}

// known returns the ticket, for reading, if it is live or remembered, or counts as refused.
func (m *Machine) known(s *session.Session, key TicketRef) *ticket {
	t := m.tickets.Peek(key)
	if t == nil && key.Ticket > s.AckedThrough && key.Ticket <= s.RefusedThrough {
		return &refusedByQuota
	}
	return t
}

// refuseThrough refuses a ticket without a record, and with it all unknown tickets below it.
func (m *Machine) refuseThrough(s *session.Session, key TicketRef) {
	s.RefusedThrough, s.Changed = max(s.RefusedThrough, key.Ticket), m.index
}

// budget is what an entry may cost of one kind. An identity has at most half of what the others
// left: so one that comes first in every entry does not take all of it.
type budget struct {
	most, used int
	by         map[string]int // of used, by identity
}

func (b *budget) reset() {
	b.used = 0
	clear(b.by)
}

// left is what an identity may still use.
func (b *budget) left(identity string) int {
	own := b.by[identity]
	return (b.most-(b.used-own))/2 - own
}

// spend charges what an identity used. What exceeds its part is not charged, and so not taken from
// others.
func (b *budget) spend(identity string, n int) {
	n = min(n, b.left(identity))
	b.used += n
	b.by[identity] += n
}
