package fsm

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/session"
)

func TestPlaces(t *testing.T) {
	m := New()
	apply := func(commands ...Command) Applied {
		a, err := m.Apply(1, (&Entry{Rules: 1, Commands: commands}).Append(nil))
		require.NoError(t, err)
		return a
	}
	apply(&LeaderStart{Node: "n1", Nonce: 1, Cluster: ClusterID{1}})
	id := apply(&OpenSession{Secret: session.Hash{1}, TTL: clock.Minute}).Results[0].Session
	ref := func(ticket uint64) TicketRef { return TicketRef{id, ticket} }
	ask := func(ticket uint64, names ...string) {
		c := &Acquire{Session: id, Ticket: ticket, WaitFor: Forever}
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
	assert.Equal(t, 2, m.Crowd(ref(1)))
	assert.Equal(t, 1, m.Crowd(ref(2)))
	assert.Zero(t, m.Crowd(ref(3)), "it holds nothing")
	assert.Zero(t, m.Crowd(ref(9)))

	place := func(ticket uint64) (string, int) {
		name, ahead, waits := m.Place(ref(ticket))
		require.True(t, waits)
		return name, ahead
	}
	name, ahead := place(4)
	assert.Equal(t, "b", name)
	assert.Zero(t, ahead)
	apply(&Drop{Session: id, Ticket: 2})
	name, ahead = place(4)
	assert.Equal(t, "a", name, "b is open to it now")
	assert.Equal(t, 1, ahead)
	_, _, waits := m.Place(ref(1))
	assert.False(t, waits)
	_, _, waits = m.Place(ref(9))
	assert.False(t, waits)
	for range m.Waiters("a") {
		break // a reader may stop
	}
}
