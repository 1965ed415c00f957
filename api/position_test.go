package api

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
	"zamok/clock"
	"zamok/session"
)

func (w *wireClient) hubID() session.ID { return session.ID(w.Session) }

// withPosition waits for a lock and wants its position.
func withPosition(ticket uint64, names ...string) *zamokpb.ClientMessage {
	a := &zamokpb.Acquire{Ticket: ticket, Wait: -1, Positions: true}
	for _, name := range names {
		a.Items = append(a.Items, &zamokpb.Item{Name: name, Mode: zamokpb.Mode_MODE_EXCLUSIVE})
	}
	return acquire(a)
}

func (w *wireClient) position() *zamokpb.QueuePosition {
	w.Helper()
	for {
		if q := w.next().GetPosition(); q != nil {
			return q
		}
	}
}

func storyPositions(t *testing.T, n *Node) {
	c := call(t, n)
	holder, first, second := openStream(t, c, settings(clock.Minute)),
		openStream(t, c, settings(clock.Minute)), openStream(t, c, settings(clock.Minute))
	holder.send(exclusive(1, "a lock", 0))
	token := holder.is(1, stateGranted).State.Token
	holder.send(exclusive(2, "b lock", 0))
	holder.is(2, stateGranted) // before the second
	first.send(exclusive(1, "a lock", -1))
	require.Equal(t, stateWaiting, first.answer().State.State)
	second.send(withPosition(1, "a lock", "b lock"))
	require.Equal(t, stateWaiting, second.answer().State.State)

	position := second.position()
	assert.EqualValues(t, 1, position.Ticket)
	assert.Equal(t, "a lock", position.Name)
	assert.EqualValues(t, 1, position.Ahead)
	require.Len(t, position.Blockers, 1)
	assert.Equal(t, token, position.Blockers[0].Token)

	first.send(drop(1))
	position = second.position()
	assert.EqualValues(t, 0, position.Ahead)
	holder.send(drop(1))
	position = second.position()
	assert.Equal(t, "b lock", position.Name, "the first of its locks is open now")
	holder.send(drop(2))
	second.is(1, stateGranted)
}

func storyContended(t *testing.T, n *Node) {
	c := call(t, n)
	holder, other := openStream(t, c, settings(clock.Minute)),
		openStream(t, c, settings(clock.Minute))
	holder.send(exclusive(1, "wanted", 0))
	holder.is(1, stateGranted)
	next := func() uint32 {
		for {
			if m := holder.next().GetContended(); m != nil {
				require.EqualValues(t, 1, m.Ticket)
				return m.Waiting
			}
		}
	}
	until := func(waiting uint32) { // commands of one frame may be applied one after the other
		for now := next(); now != waiting; now = next() {
			require.EqualValues(t, 1, now)
		}
	}
	other.send(exclusive(1, "wanted", -1), exclusive(2, "wanted", -1))
	until(2)
	other.send(drop(1), drop(2))
	until(0)
}
