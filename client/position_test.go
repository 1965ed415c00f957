package client

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
)

// Positions that keep coming, each while the last one is being reported, do not hide the end of the
// context (L4).
func TestAContextEndsAWaitWhosePositionsKeepComing(t *testing.T) {
	b := newBare(t)
	ctx, cancel := context.WithCancel(t.Context())
	reports := 0
	var r *request
	position := func() {
		b.receive(&zamokpb.ServerMessage{
			Message: &zamokpb.ServerMessage_Position{
				Position: &zamokpb.QueuePosition{Ticket: 1, Name: "x", Ahead: 1}}})
	}
	r = newRequest([]Item{ExclusiveItem("x")}, []Option{OnPosition(func(Position) {
		reports++
		require.Less(t, reports, 3, "reports continue after the end of the context")
		cancel()
		position()
	})})
	one := b.enqueue(r)
	b.outgoing()
	position()
	lock, err := one.wait(ctx, r)
	require.Nil(t, lock)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, reports)
	sent, _ := b.outgoing()
	require.Equal(t, []string{"drop 1"}, sent)
}
