package fsm

import (
	"iter"
	"slices"
	"strings"

	"zamok/clock"
	"zamok/session"
)

// Queries return copies, which may be kept, changed and read on any goroutine. Queries may run
// concurrently, but not with Apply, Freeze or NextDue.

// Stamp is the replicated clock's order: the term and index of what was applied last.
func (m *Machine) Stamp() clock.Stamp { return clock.Stamp{Term: m.term, Index: m.index} }

// Time is cluster time.
func (m *Machine) Time() clock.Time { return m.time }

// Epoch is the number of the current epoch, 0 before the first.
func (m *Machine) Epoch() uint64 { return m.epoch }

// Version is the version that entries must be encoded for.
func (m *Machine) Version() uint32 { return m.version }

// Cluster is the cluster's id, zero before the first epoch.
func (m *Machine) Cluster() ClusterID { return m.cluster }

// HoldOffUntil is when the restore hold-off ends.
func (m *Machine) HoldOffUntil() clock.Time { return m.holdOffUntil }

// HoldOff is what is left of the restore hold-off; 0 = it has ended, or there was none.
func (m *Machine) HoldOff() clock.Span { return max(m.holdOffUntil.Sub(m.time), 0) }

// LongestTTL is the longest ttl that a session may be opened with.
func (m *Machine) LongestTTL() clock.Span { return m.longestTTL }

// RestoreHoldOff is how long a history that begins with this state grants nothing, unless the
// operator knows a shorter time: the longest lease and delay that a client can have been given, at
// any time until now. It does not know of what becomes possible after the state was saved.
func (m *Machine) RestoreHoldOff() clock.Span { return m.highestTTL + DelayMax }

// Quotas returns the quotas.
func (m *Machine) Quotas() Quotas { return m.quotas }

// Used is the usage of all clients together.
func (m *Machine) Used() Amounts {
	return Amounts{uint64(m.sessions.Len()), uint64(m.live[Waiting] + m.live[Granted]), m.bytes}
}

// UsedBy is the usage of one identity.
func (m *Machine) UsedBy(identity string) Amounts {
	if used := m.identities[identity]; used != nil {
		return used.Amounts
	}
	return Amounts{}
}

// IdentityUsage is the usage of an identity.
type IdentityUsage struct {
	Identity string
	Amounts
}

// Usages is the usage of all identities, in no order.
func (m *Machine) Usages() []IdentityUsage {
	all := make([]IdentityUsage, 0, len(m.identities))
	for identity, used := range m.identities {
		all = append(all, IdentityUsage{identity, used.Amounts})
	}
	return all
}

// Counts is how much there is of everything.
type Counts struct {
	Sessions, Locks, Granted, Waiting, Delayed int
}

// Counts returns how much there is of everything, in constant time.
func (m *Machine) Counts() Counts {
	return Counts{m.sessions.Len(), m.locks.Len(), m.live[Granted], m.live[Waiting], m.delays.Len()}
}

// TicketView is a live ticket, or an ended one that is remembered.
type TicketView struct {
	TicketRef
	TicketState
	Enqueued  uint64
	WaitUntil clock.Time // 0 = it waits without limit, or not at all
	Owner     string
	Meta      string
	Items     []Item
}

func (t *ticket) stateOf(key TicketRef) TicketState {
	return TicketState{Ticket: key.Ticket, State: t.state, Reason: t.reason, Token: t.token,
		HoldUntil: t.holdUntil}
}

func (t *ticket) view(key TicketRef) TicketView {
	return TicketView{
		TicketRef: key, TicketState: t.stateOf(key), Enqueued: t.enqueued, WaitUntil: t.waitUntil,
		Owner: t.owner, Meta: t.meta, Items: slices.Clone(t.items),
	}
}

// LockSummary is a lock without its tickets.
type LockSummary struct {
	Name string
	// Of is how many permits it has; 0 = a mutex.
	Of               uint32
	Holders, Waiters int
	DelayedUntil     clock.Time // 0 = no delay
	// ReservedUntil is when the lease of the first holder ends, if its session never attached;
	// otherwise 0.
	ReservedUntil clock.Time
}

func (m *Machine) summary(lk *lock) LockSummary {
	s := LockSummary{Name: lk.name, Holders: lk.holders.len, Waiters: lk.waiters.len,
		DelayedUntil: lk.delay}
	if lk.inUse() {
		s.Of = lk.of
	}
	if first := lk.holders.first; first != nil {
		if holder, _ := m.sessions.Get(first.key.Session); holder.Attachment == 0 {
			s.ReservedUntil = holder.Deadline
		}
	}
	return s
}

// Lock returns a lock; false: the name is not in use.
func (m *Machine) Lock(name string) (LockSummary, bool) {
	lk := m.lockOf(name)
	return m.summary(lk), lk.inUse() || lk.delay != 0
}

// Locks lists at most so many locks whose names have the prefix and sort behind after, by name.
func (m *Machine) Locks(prefix, after string, limit int) []LockSummary {
	var list []LockSummary
	for name, lk := range m.locks.From(max(prefix, after)) {
		if name == after && after != "" {
			continue
		}
		if len(list) >= limit || !strings.HasPrefix(name, prefix) {
			break
		}
		list = append(list, m.summary(*lk))
	}
	return list
}

// Session returns a living session.
func (m *Machine) Session(id session.ID) (session.Session, bool) { return m.sessions.Get(id) }

// SessionBySecret returns the living session that a secret opened.
func (m *Machine) SessionBySecret(secret session.Hash) (session.Session, bool) {
	return m.sessions.Get(m.bySecret[secret])
}

// Sessions lists at most so many sessions with ids above after, in order.
func (m *Machine) Sessions(after session.ID, limit int) []session.Session {
	var list []session.Session
	for id, s := range m.sessions.From(after) {
		if len(list) >= limit {
			break
		}
		if id > after {
			list = append(list, *s)
		}
	}
	return list
}

// Ticket returns a ticket that is live or remembered, or counts as refused.
func (m *Machine) Ticket(ref TicketRef) (TicketView, bool) {
	s := m.sessions.Peek(ref.Session)
	if s == nil {
		return TicketView{}, false
	}
	t := m.known(s, ref)
	if t == nil {
		return TicketView{}, false
	}
	return t.view(ref), true
}

// ticketIn returns a ticket that is in that state, for reading; any other is empty.
func (m *Machine) ticketIn(state State, ref TicketRef) *ticket {
	if t := m.tickets.Peek(ref); t != nil && t.state == state {
		return t
	}
	return &ticket{}
}

// ticketStates returns the session's tickets, all that are live or above its acknowledged-through,
// by number.
func (m *Machine) ticketStates(id session.ID) []TicketState {
	var states []TicketState
	for key, t := range ticketsOf(m.tickets, TicketRef{Session: id}) {
		states = append(states, t.stateOf(key))
	}
	return states
}

// Holds reports whether name is held with this token now. A token alone identifies an exclusive
// grant; others need the ticket, too.
func (m *Machine) Holds(name string, token uint64, ref TicketRef) bool {
	if ref == (TicketRef{}) {
		lk := m.lockOf(name)
		return lk.exclusive > 0 && m.tickets.Peek(lk.holders.first.key).token == token
	}
	t := m.ticketIn(Granted, ref)
	return t.token == token &&
		slices.ContainsFunc(t.items, func(it Item) bool { return it.Name == name })
}

// Blockers names what blocks a waiting ticket at each of its locks, up to BlockersMax.
func (m *Machine) Blockers(ref TicketRef) []Blocker { return m.blockers(m.ticketIn(Waiting, ref)) }

// LockBlockers names what blocks an exclusive request for a lock, in use or not, beside other
// requests: a delay or the hold-off, and its holders, up to BlockersMax.
func (m *Machine) LockBlockers(name string) []Blocker {
	return m.blockersAt(nil, m.lockOf(name), Item{Mode: Exclusive}, nil)
}

// Members lists the records of nodes, by id.
func (m *Machine) Members() []MemberRecord {
	var list []MemberRecord
	for _, record := range m.members.All() {
		list = append(list, *record)
	}
	return list
}

// Member returns the record of a node.
func (m *Machine) Member(id string) (MemberRecord, bool) { return m.members.Get(id) }

// The queries from here on are for the queue positions and contention that a leader reports to
// clients. Nothing may be applied while a sequence is read.

// Waiters yields the tickets in the queue of a lock, in order.
func (m *Machine) Waiters(name string) iter.Seq[TicketRef] {
	return m.lockOf(name).waiters.refs()
}

// Holders yields the tickets that hold a lock, in order.
func (m *Machine) Holders(name string) iter.Seq[TicketRef] {
	return m.lockOf(name).holders.refs()
}

func (l *list) refs() iter.Seq[TicketRef] {
	return func(yield func(TicketRef) bool) {
		for p := l.first; p != nil && yield(p.key); p = p.next {
		}
	}
}

// PositionExactMax is the number of tickets ahead up to which a queue position is exact.
const PositionExactMax = 100

// BlockedLock is the first lock of a waiting ticket that is closed to it; "": it does not wait.
func (m *Machine) BlockedLock(ref TicketRef) string {
	if at := m.ticketIn(Waiting, ref).blockedAt(); at != nil {
		return at.lock.name
	}
	return ""
}

// QueuePosition returns the first of a waiting ticket's locks that is closed to it, and how many
// tickets wait before it there: exactly up to PositionExactMax. A larger number includes tickets
// that left the middle of the queue, so it may be too large, never too small. The cost does not
// depend on the length of the queue. False: the ticket does not wait.
func (m *Machine) QueuePosition(ref TicketRef) (name string, ahead int, waits bool) {
	at := m.ticketIn(Waiting, ref).blockedAt()
	if at == nil {
		return "", 0, false
	}
	for p := at.prev; p != nil; p = p.prev {
		if ahead++; ahead > PositionExactMax {
			queue := &at.lock.waiters
			return at.lock.name, min(int(at.number()-queue.first.number()), queue.len-1), true
		}
	}
	return at.lock.name, ahead, true
}

// Contention is how many tickets wait for the locks that a ticket holds, and how many locks it
// holds.
func (m *Machine) Contention(ref TicketRef) (waiting, locks int) {
	t := m.ticketIn(Granted, ref)
	for i := range t.slots {
		waiting += t.slots[i].lock.waiters.len
	}
	return waiting, len(t.slots)
}
