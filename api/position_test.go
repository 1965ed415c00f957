package api

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/session"
)

func (w *talker) hubID() session.ID { return session.ID(w.id) }

// curious waits for a lock and wants to know its place.
func curious(ticket uint64, names ...string) *zamokpb.ClientMessage {
	a := &zamokpb.Acquire{Ticket: ticket, WaitFor: -1, ReportPosition: true}
	for _, name := range names {
		a.Items = append(a.Items, &zamokpb.Item{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE})
	}
	return acquire(a)
}

func (w *talker) place() *zamokpb.QueuePosition {
	w.Helper()
	for {
		if q := w.next().GetPosition(); q != nil {
			return q
		}
	}
}

func tellPlaces(t *testing.T, n *Node) {
	c := call(t, n)
	holder, first, second := talk(t, c, settings(clock.Minute)), talk(t, c, settings(clock.Minute)), talk(t, c, settings(clock.Minute))
	holder.say(exclusive(1, "a place", 0), exclusive(2, "b place", 0))
	token := holder.is(1, stateGranted).State.Token
	holder.is(2, stateGranted) // it may be carried out later, and must not come behind the second
	first.say(exclusive(1, "a place", -1))
	require.Equal(t, stateWaiting, first.answer().State.State)
	second.say(curious(1, "a place", "b place"))
	answer := second.answer()
	require.Equal(t, stateWaiting, answer.State.State)
	require.EqualValues(t, 1, answer.Ahead)

	place := second.place()
	assert.EqualValues(t, 1, place.Ticket)
	assert.Equal(t, "a place", place.Name)
	assert.EqualValues(t, 1, place.Ahead)
	require.Len(t, place.Blockers, 1)
	assert.Equal(t, token, place.Blockers[0].Token)

	first.say(drop(1))
	place = second.place()
	assert.EqualValues(t, 0, place.Ahead)
	holder.say(drop(1))
	place = second.place()
	assert.Equal(t, "b place", place.Name, "the first of its locks is open now")
	holder.say(drop(2))
	second.is(1, stateGranted)
}

func tellContended(t *testing.T, n *Node) {
	c := call(t, n)
	holder, other := talk(t, c, settings(clock.Minute)), talk(t, c, settings(clock.Minute))
	holder.say(exclusive(1, "wanted", 0))
	holder.is(1, stateGranted)
	heard := func() uint32 {
		for {
			if m := holder.next().GetContended(); m != nil {
				require.EqualValues(t, 1, m.Ticket)
				return m.Waiting
			}
		}
	}
	until := func(waiting uint32) { // what was said together may be carried out one after the other
		for now := heard(); now != waiting; now = heard() {
			require.EqualValues(t, 1, now)
		}
	}
	other.say(exclusive(1, "wanted", -1), exclusive(2, "wanted", -1))
	until(2)
	other.say(drop(1), drop(2))
	until(0)
}
