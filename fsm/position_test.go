package fsm

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

func TestQueuePosition(t *testing.T) {
	m := New()
	apply := func(commands ...Command) Applied {
		a, err := m.Apply(1, (&Entry{Version: 1, Commands: commands}).Append(nil))
		require.NoError(t, err)
		return a
	}
	apply(&LeaderStart{Node: "n1", Nonce: 1, Cluster: ClusterID{1}})
	id := apply(&OpenSession{Secret: session.Hash{1},
		Settings: session.Settings{TTL: clock.Minute}}).Results[0].Session
	ref := func(ticket uint64) TicketRef { return TicketRef{id, ticket} }
	ask := func(ticket uint64, names ...string) {
		c := &Acquire{Session: id, Ticket: ticket, Wait: Forever}
		for _, name := range names {
			c.Items = append(c.Items, Item{Name: name, Mode: Exclusive})
		}
		require.Equal(t, OK, apply(c).Results[0].Code)
	}
	ask(1, "a")
	ask(2, "b")
	ask(3, "a")
	ask(4, "b", "a")
	assert.Equal(t, []TicketRef{ref(1)}, slices.Collect(m.Holders("a")))
	assert.Equal(t, []TicketRef{ref(3), ref(4)}, slices.Collect(m.Waiters("a")))
	assert.Empty(t, slices.Collect(m.Waiters("c")))
	assert.Empty(t, slices.Collect(m.Holders("c")))
	contention := func(ticket uint64) int { n, _ := m.Contention(ref(ticket)); return n }
	assert.Equal(t, 2, contention(1))
	assert.Equal(t, 1, contention(2))
	assert.Zero(t, contention(3), "it holds nothing")
	assert.Zero(t, contention(9))

	position := func(ticket uint64) (string, int) {
		name, ahead, waits := m.QueuePosition(ref(ticket))
		require.True(t, waits)
		return name, ahead
	}
	name, ahead := position(4)
	assert.Equal(t, "b", name)
	assert.Zero(t, ahead)
	apply(&Drop{Session: id, Ticket: 2})
	name, ahead = position(4)
	assert.Equal(t, "a", name, "b is open to it now")
	assert.Equal(t, 1, ahead)
	_, _, waits := m.QueuePosition(ref(1))
	assert.False(t, waits)
	_, _, waits = m.QueuePosition(ref(9))
	assert.False(t, waits)
	for range m.Waiters("a") {
		break // a reader may stop
	}
}

// The reported place is the one that a walk over the queue finds, or above PositionExactMax one
// that is not too small.
func TestQueuePositionMatchesScan(t *testing.T) {
	const tickets = 900
	chance := rand.New(rand.NewPCG(1, 2))
	m := New()
	apply := func(commands ...Command) Applied {
		a, err := m.Apply(1, (&Entry{Version: 1, Commands: commands}).Append(nil))
		require.NoError(t, err)
		return a
	}
	apply(&LeaderStart{Node: "n1", Nonce: 1, Cluster: ClusterID{1}})
	id := apply(&OpenSession{Secret: session.Hash{1},
		Settings: session.Settings{TTL: clock.Minute}}).Results[0].Session
	for ticket := range uint64(tickets) {
		c := &Acquire{Session: id, Ticket: ticket + 1, Wait: Forever}
		for _, i := range chance.Perm(4)[:1+chance.IntN(3)] {
			c.Items = append(c.Items, Item{Name: string(rune('a' + i)), Mode: Exclusive})
		}
		require.Equal(t, OK, apply(c).Results[0].Code)
	}
	var exact, above int
	for m.Counts().Waiting > 0 {
		for key, one := range m.tickets.All() {
			name, ahead := positionByScan(m, one, key)
			require.Equal(t, name, m.BlockedLock(key))
			lockName, position, waits := m.QueuePosition(key)
			require.Equal(t, name != "", waits)
			require.Equal(t, name, lockName)
			switch {
			case ahead <= PositionExactMax:
				require.Equal(t, ahead, position)
				exact++
			default:
				require.GreaterOrEqual(t, position, ahead)
				lock, _ := m.Lock(name)
				require.Less(t, position, lock.Waiters)
				above++
			}
		}
		for range 40 { // from anywhere, and one from the front
			apply(&Drop{Session: id, Ticket: 1 + chance.Uint64N(tickets)})
		}
		for holder := range m.Holders("a") {
			apply(&Drop{Session: id, Ticket: holder.Ticket})
			break
		}
	}
	require.NoError(t, m.Check())
	require.Greater(t, exact, tickets)
	require.Greater(t, above, tickets)
}

// positionByScan is the place of a ticket, found the long way: the first of its locks in which
// another ticket is before it, or holds, since all of them are exclusive here. "": it does not
// wait.
func positionByScan(m *Machine, one *ticket, ref TicketRef) (name string, ahead int) {
	if one.state != Waiting {
		return "", 0
	}
	for _, item := range one.items {
		ahead := slices.Index(slices.Collect(m.Waiters(item.Name)), ref)
		lock, _ := m.Lock(item.Name)
		if ahead > 0 || lock.Holders > 0 {
			return item.Name, ahead
		}
	}
	panic("it could be granted")
}
