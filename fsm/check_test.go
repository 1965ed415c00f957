package fsm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// machineToDamage is a machine with two sessions, where one holds a, b and p, and two waits behind
// it, with an owner, a delayed lock, a limited wait and a maximum hold.
func machineToDamage(t *testing.T) (m *Machine, one, two session.ID) {
	b := newHarness(t)
	one, two = b.open(1, clock.Minute), b.open(2, clock.Minute)
	a := b.do(0, &OpenSession{Secret: session.Hash{3},
		Settings: session.Settings{TTL: clock.Minute, LockDelay: clock.Second}})
	expired := a.Results[0].Session
	b.do(0,
		&Acquire{Session: one, Ticket: 1, Items: exclusive("a", "b"), Wait: 0, Owner: "x",
			MaxHold: clock.Hour},
		&Acquire{Session: two, Ticket: 1, Items: exclusive("b"), Wait: clock.Minute, Owner: "y"},
		&Acquire{Session: two, Ticket: 2, Items: exclusive("b"), Wait: Forever},
		&Acquire{Session: one, Ticket: 2, Items: []Item{{"p", Permits, 2, 3}}, Wait: 0},
		&Acquire{Session: two, Ticket: 3, Items: exclusive("gone"), Wait: 0},
		&Drop{Session: two, Ticket: 3},
		&Acquire{Session: expired, Ticket: 1, Items: exclusive("d"), Wait: 0},
		&ExpireSession{Session: expired},
		&OpenSession{Secret: session.Hash{4}, Settings: session.Settings{TTL: clock.Minute}},
		&Member{ID: "n1", StateVersionMin: 1, StateVersionMax: 1},
		&Member{ID: "n2", StateVersionMin: 1, StateVersionMax: 1},
	)
	b.do(0, &CloseSession{Session: b.m.bySecret[session.Hash{4}]})
	return b.m, one, two
}

// Each of damages breaks an invariant of the package comment.
var damages = []struct {
	want   string // the invariant
	damage func(m *Machine, one, two session.ID)
}{
	{"M1", func(m *Machine, _, _ session.ID) {
		lk, _ := m.locks.Get("p")
		m.tickets.Ref(lk.holders.first.key).items[0].Permits, lk.permits = 4, 4
	}},
	{"M2", func(m *Machine, _, _ session.ID) {
		lk, _ := m.locks.Get("b")
		lk.holders.remove(lk.holders.first)
		lk.exclusive--
	}},
	{"M3", func(m *Machine, one, _ session.ID) {
		m.tickets.Ref(TicketRef{one, 1}).token = m.index + 1
	}},
	{"M3", func(m *Machine, _, two session.ID) { m.tickets.Ref(TicketRef{two, 1}).token = 1 }},
	{"M4", func(m *Machine, one, _ session.ID) { m.sessions.Delete(one) }},
	{"M4", func(m *Machine, one, _ session.ID) {
		m.tickets.Ref(TicketRef{one, 1}).slots[0].at++
	}},
	{"M4", func(m *Machine, one, _ session.ID) { m.tickets.Ref(TicketRef{one, 1}).state = 0 }},
	{"M4", func(m *Machine, _, two session.ID) {
		m.tickets.Ref(TicketRef{two, 3}).slots = make([]slot, 1)
	}},
	{"M4", func(m *Machine, _, _ session.ID) { lk, _ := m.locks.Get("b"); lk.waiters.len++ }},
	{"M4", func(m *Machine, _, _ session.ID) {
		lk, _ := m.locks.Get("b")
		lk.waiters.last.prev = nil
	}},
	{"M4", func(m *Machine, _, _ session.ID) { m.locks.Delete("a") }},
	{"M5", func(m *Machine, _, two session.ID) {
		m.tickets.Ref(TicketRef{two, 2}).enqueued = m.tickets.Peek(TicketRef{two, 1}).enqueued
	}},
	{"M6", func(m *Machine, _, _ session.ID) { m.locks.Set("z", &lock{name: "z"}) }},
	{"M6", func(m *Machine, _, _ session.ID) { lk, _ := m.locks.Get("d"); lk.delay++ }},
	{"M6", func(m *Machine, _, _ session.ID) { m.delays.Set("nobody", 5) }},
	{"M7", func(m *Machine, _, _ session.ID) { lk, _ := m.locks.Get("a"); lk.permits++ }},
	{"M7", func(m *Machine, _, _ session.ID) { lk, _ := m.locks.Get("a"); lk.of = 7 }},
	{"M7", func(m *Machine, _, _ session.ID) {
		lk, _ := m.locks.Get("a")
		lk.queueChanged = true
	}},
	{"M7", func(m *Machine, _, _ session.ID) { m.live[Waiting]++ }},
	{"M8", func(m *Machine, one, _ session.ID) {
		m.owned.Delete(ownedKey{session: one, owner: "x", state: Granted, ticket: 1})
	}},
	{"M8", func(m *Machine, one, _ session.ID) {
		m.owned.Set(ownedKey{session: one, owner: "x", state: Granted, ticket: 2}, struct{}{})
	}},
	{"M8", func(m *Machine, _, two session.ID) {
		m.tickets.Ref(TicketRef{two, 2}).owner = "y"
	}},
	{"M9", func(m *Machine, _, two session.ID) {
		m.sessions.Ref(two).AckedThrough = 3
	}},
	{"M9", func(m *Machine, _, two session.ID) {
		m.tickets.Set(TicketRef{two, TicketWindow + 1}, ticket{state: Ended, reason: Dropped})
	}},
	{"M9", func(m *Machine, one, _ session.ID) { m.sessions.Ref(one).Live++ }},
	{"M9", func(m *Machine, one, _ session.ID) {
		m.sessions.Ref(one).Deadline++
	}},
	{"M10", func(m *Machine, one, _ session.ID) { m.sessions.Ref(one).Scheduled++ }},
	{"M10", func(m *Machine, one, _ session.ID) {
		m.tickets.Ref(TicketRef{one, 1}).holdUntil++
	}},
	{"M10", func(m *Machine, _, two session.ID) {
		m.tickets.Ref(TicketRef{two, 1}).waitUntil = 0
	}},
	{"M10", func(m *Machine, _, _ session.ID) {
		lk, _ := m.locks.Get("d")
		m.due.Delete(dueKey{lk.delay, dueDelay, 0, "d"})
	}},
	{"M11", func(m *Machine, one, _ session.ID) {
		m.tickets.Ref(TicketRef{one, 1}).items = nil
	}},
	{"M11", func(m *Machine, _, _ session.ID) { m.highestTTL = clock.Second }},
	{"M11", func(m *Machine, _, _ session.ID) {
		for i := range MembersMax {
			m.members.Set(fmt.Sprint(i), MemberRecord{})
		}
	}},
	{"M13", func(m *Machine, _, _ session.ID) { m.members.Ref("n1").ID = "n2" }},
	{"M13", func(m *Machine, _, _ session.ID) { m.members.Ref("n1").Announced = m.index + 1 }},
	{"M13", func(m *Machine, _, _ session.ID) { m.members.Ref("n1").Announced = 0 }},
	{"M13", func(m *Machine, _, _ session.ID) { m.members.Ref("n1").Announced++ }},
	{"M13", func(m *Machine, _, _ session.ID) { m.members.Ref("n1").Replaced = m.time + 1 }},
	{"M14", func(m *Machine, one, _ session.ID) { m.sessions.Ref(one).ID = 5 }},
	{"M14", func(m *Machine, _, _ session.ID) { delete(m.bySecret, session.Hash{1}) }},
	{"M14", func(m *Machine, _, _ session.ID) { m.bySecret[session.Hash{9}] = 9 }},
	{"M14", func(m *Machine, one, _ session.ID) { m.sessions.Ref(one).Opened++ }},
	{"M15", func(m *Machine, _, _ session.ID) { m.bytes++ }},
	{"M15", func(m *Machine, _, _ session.ID) { m.delayBytes++ }},
	{"M15", func(m *Machine, _, _ session.ID) { m.identities[""].Tickets-- }},
	{"M15", func(m *Machine, _, _ session.ID) { m.identities["nobody"] = &usage{} }},
	{"M9", func(m *Machine, one, _ session.ID) {
		m.sessions.Ref(one).RefusedThrough = 2 * TicketWindow
	}},
	{"M15", func(m *Machine, _, _ session.ID) { m.endedBytes++ }},
	{"M16", func(m *Machine, _, _ session.ID) { m.ends-- }},
	{"M16", func(m *Machine, one, _ session.ID) { m.ended.Ref(1).ID = one }},
	{"M16", func(m *Machine, _, _ session.ID) { m.ended.Ref(2).ID = session.ID(m.index + 1) }},
	{"M16", func(m *Machine, _, _ session.ID) { delete(m.endedBySecret, session.Hash{4}) }},
	{"M16", func(m *Machine, _, _ session.ID) { m.ended.Ref(2).Reason = 0 }},
	{"M16", func(m *Machine, _, _ session.ID) { slices.Reverse(m.identities[""].ended) }},
}

// Each invariant of the package comment is broken in turn, and Check names it.
func TestCheckNamesBrokenInvariant(t *testing.T) {
	for _, c := range damages {
		m, one, two := machineToDamage(t)
		require.NoError(t, m.Check())
		c.damage(m, one, two)
		require.ErrorContains(t, m.Check(), c.want)
	}
}
