package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

// harness is a machine under test with an epoch, to which commands are given as entries.
type harness struct {
	t *testing.T
	m *Machine
}

func newHarness(t *testing.T) *harness {
	b := &harness{t, New()}
	b.do(0, &LeaderStart{Node: "n1", Nonce: 1, Cluster: ClusterID{1}, TokenBase: 100})
	return b
}

// do applies one entry, stamped now in the present epoch, and returns what it did.
func (b *harness) do(now clock.Time, commands ...Command) Applied {
	b.t.Helper()
	e := Entry{Version: b.m.Version(), Reading: clock.Reading{Epoch: b.m.Epoch(), Now: now},
		Commands: commands}
	return b.apply(e)
}

func (b *harness) apply(e Entry) Applied {
	b.t.Helper()
	a, err := b.m.Apply(1, e.Append(nil))
	require.NoError(b.t, err)
	require.NoError(b.t, b.m.Check())
	return a
}

// open opens a session and returns its id.
func (b *harness) open(secret byte, ttl clock.Span) session.ID {
	b.t.Helper()
	return b.openWith(secret, session.Settings{TTL: ttl})
}

// openFor opens a session of an identity.
func (b *harness) openFor(identity string, secret byte) session.ID {
	b.t.Helper()
	return b.openWith(secret, session.Settings{TTL: clock.Hour, Identity: identity})
}

func (b *harness) openWith(secret byte, settings session.Settings) session.ID {
	b.t.Helper()
	a := b.do(b.m.Time(), &OpenSession{Secret: session.Hash{secret}, Settings: settings})
	require.Equal(b.t, OK, a.Results[0].Code)
	return a.Results[0].Session
}

func exclusive(names ...string) []Item {
	var items []Item
	for _, name := range names {
		items = append(items, Item{Name: name, Mode: Exclusive})
	}
	return items
}

func TestHandOff(t *testing.T) {
	b := newHarness(t)
	one, two := b.open(1, 10*clock.Second), b.open(2, 10*clock.Second)

	a := b.do(0, &Acquire{Session: one, Ticket: 1, Items: exclusive("x"), Wait: Forever})
	require.Equal(t, Granted, a.Results[0].State)
	first := a.Results[0].Token
	require.Equal(t, a.Results[0].Index, first)

	a = b.do(0, &Acquire{Session: two, Ticket: 1, Items: exclusive("x"), Wait: Forever})
	require.Equal(t, Waiting, a.Results[0].State)

	a = b.do(0, &Drop{Session: one, Ticket: 1})
	require.Len(t, a.Events, 3)
	require.Equal(t, EvReleased, a.Events[0].Kind)
	require.Equal(t, EvGranted, a.Events[1].Kind)
	require.Equal(t, a.Results[0].Index, a.Events[1].Token)
	require.Greater(t, a.Events[1].Token, first)

	a = b.do(clock.Time(20 * clock.Second))
	require.Equal(t, Counts{}, b.m.Counts())
	require.NotEmpty(t, a.Events)
}

// TestADropUnrenewedProlongsNothing: it releases as a Drop does, in any state of the ticket, and
// its session keeps its deadline.
func TestADropUnrenewedProlongsNothing(t *testing.T) {
	b := newHarness(t)
	id := b.open(1, 10*clock.Second)
	b.do(clock.Time(clock.Second),
		&Acquire{Session: id, Ticket: 1, Items: exclusive("x"), Wait: Forever},
		&Acquire{Session: id, Ticket: 2, Items: exclusive("x"), Wait: Forever},
		&Acquire{Session: id, Ticket: 3, Items: exclusive("y")})
	before, _ := b.m.Session(id)
	for ticket := range uint64(4) { // waiting, granted and unknown ones, and a repetition
		a := b.do(clock.Time(5*clock.Second), &DropUnrenewed{Session: id, Ticket: max(ticket, 1)})
		require.Equal(t, OK, a.Results[0].Code)
		require.Equal(t, Ended, a.Results[0].State)
		require.Zero(t, a.Results[0].Session,
			"its client takes an answer with a session for a renewal")
	}
	after, _ := b.m.Session(id)
	require.Equal(t, before.Deadline, after.Deadline)
	require.Equal(t, before.Renewed, after.Renewed)
	require.Zero(t, after.Live)
	b.do(before.Deadline)
	require.Equal(t, Counts{}, b.m.Counts())
}
