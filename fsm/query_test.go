package fsm

import (
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

func TestLocksByPrefix(t *testing.T) {
	b := newHarness(t)
	s := b.open(1, clock.Minute)
	for i, name := range []string{"b/2", "a", "b", "b/1", "c", "b/10"} {
		b.do(0, &Acquire{Session: s, Ticket: uint64(i + 1), Items: exclusive(name), Wait: 0})
	}
	names := func(prefix, after string, most int) (names []string) {
		for _, l := range b.m.Locks(prefix, after, most) {
			names = append(names, l.Name)
		}
		return names
	}
	require.Equal(t, []string{"a", "b", "b/1", "b/10", "b/2", "c"}, names("", "", 100))
	require.Equal(t, []string{"b", "b/1", "b/10", "b/2"}, names("b", "", 100))
	require.Equal(t, []string{"b/1", "b/10"}, names("b/", "", 2))
	require.Equal(t, []string{"b/2"}, names("b/", "b/10", 2), "the next page")
	require.Empty(t, names("b/", "b/2", 2))
	require.Empty(t, names("zz", "", 2))
	require.Empty(t, names("", "", 0))
}

func TestHolds(t *testing.T) {
	b := newHarness(t)
	s := b.open(1, clock.Minute)
	a := b.do(0,
		&Acquire{Session: s, Ticket: 1, Items: exclusive("x"), Wait: 0},
		&Acquire{Session: s, Ticket: 2, Items: []Item{{Name: "r", Mode: Shared}}, Wait: 0},
		&Acquire{Session: s, Ticket: 3, Items: []Item{{Name: "r", Mode: Shared}}, Wait: 0},
	)
	x, r := a.Results[0].Token, a.Results[1].Token
	require.True(t, b.m.Holds("x", x, TicketRef{}))
	require.True(t, b.m.Holds("x", x, TicketRef{s, 1}))
	require.False(t, b.m.Holds("x", x+1, TicketRef{}))
	require.False(t, b.m.Holds("x", x, TicketRef{s, 2}), "another's ticket")
	require.False(t, b.m.Holds("y", x, TicketRef{}))
	require.False(t, b.m.Holds("r", r, TicketRef{}), "a shared token alone names no holder")
	require.True(t, b.m.Holds("r", r, TicketRef{s, 2}))
	require.False(t, b.m.Holds("r", r, TicketRef{s, 1}))

	b.do(0, &Drop{Session: s, Ticket: 1})
	require.False(t, b.m.Holds("x", x, TicketRef{}))
	require.False(t, b.m.Holds("x", x, TicketRef{s, 1}))
}

func TestSessionsPaging(t *testing.T) {
	b := newHarness(t)
	var ids []session.ID
	for i := range byte(5) {
		ids = append(ids, b.open(i+1, clock.Minute))
	}
	first := b.m.Sessions(0, 2)
	require.Len(t, first, 2)
	require.Equal(t, ids[1], first[1].ID)
	rest := b.m.Sessions(first[1].ID, 100)
	require.Len(t, rest, 3)
	require.Equal(t, ids[2], rest[0].ID)

	s, ok := b.m.SessionBySecret(session.Hash{4})
	require.True(t, ok)
	require.Equal(t, ids[3], s.ID)
	_, ok = b.m.SessionBySecret(session.Hash{9})
	require.False(t, ok)
	_, ok = b.m.Session(ids[4] + 1)
	require.False(t, ok)
}

// What a query returned stays as it was, and changing it changes nothing.
func TestQueriesReturnCopies(t *testing.T) {
	b := newHarness(t)
	s := b.open(1, clock.Minute)
	b.do(0, &Acquire{Session: s, Ticket: 1, Items: exclusive("x"), Wait: 0})
	view, ok := b.m.LockView("x")
	require.True(t, ok)
	ticket, _ := b.m.Ticket(TicketRef{s, 1})
	view.HeldBy[0].Items[0].Mode = Shared
	ticket.Items[0].Name = "y"
	list := b.m.Sessions(0, 1)
	list[0].AckedThrough = 99
	require.NoError(t, b.m.Check())

	b.do(0, &Downgrade{Session: s, Ticket: 1}, &Drop{Session: s, Ticket: 1})
	require.Equal(t, Granted, ticket.State)
	require.Equal(t, 1, view.Holders)
	_, ok = b.m.Lock("x")
	require.False(t, ok)
}

// Results and events of an entry stay as they were when the next one is applied.
func TestAppliedIsImmutable(t *testing.T) {
	b := newHarness(t)
	s := b.open(1, clock.Minute)
	a := b.do(0, &Acquire{Session: s, Ticket: 1, Items: exclusive("x", "y"), Wait: 0})
	granted := a.Events[0]
	require.Equal(t, "y", granted.Items[1].Name)
	for i := range uint64(50) {
		b.do(0, &Downgrade{Session: s, Ticket: 1},
			&Acquire{Session: s, Ticket: i + 2, Items: exclusive("other", "names"), Wait: Forever},
			&Attach{Session: s, Secret: session.Hash{1}})
	}
	require.Equal(t, exclusive("x", "y"), granted.Items)
	require.Equal(t, Granted, a.Results[0].State)
	require.Len(t, a.Events, 1)
}

func TestMembersAreSortedByID(t *testing.T) {
	b := newHarness(t)
	b.do(0, &Member{ID: "n2", StateVersionMin: 1, StateVersionMax: 1},
		&Member{ID: "n1", StateVersionMin: 1, StateVersionMax: 1})
	require.Equal(t, "n1", b.m.Members()[0].ID)
	require.Equal(t, "n2", b.m.Members()[1].ID)
	_, ok := b.m.Member("n3")
	require.False(t, ok)
	require.Equal(t, ClusterID{1}, b.m.Cluster())
	require.Zero(t, b.m.HoldOffUntil())
}

// LockView is all about one lock, in order.
type LockView struct {
	LockSummary
	HeldBy, Queue []TicketView
}

// LockView returns a lock with its tickets; false: the name is not in use.
func (m *Machine) LockView(name string) (LockView, bool) {
	views := func(refs iter.Seq[TicketRef]) (all []TicketView) {
		for ref := range refs {
			t, _ := m.Ticket(ref)
			all = append(all, t)
		}
		return all
	}
	lock, used := m.Lock(name)
	return LockView{lock, views(m.Holders(name)), views(m.Waiters(name))}, used
}
