package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/api/zamokpb"
)

// Get says for how long tickets have held a lock or waited for it.
func TestGetHasAges(t *testing.T) {
	c := startCluster(t, 1, nil)
	n := c.leader()
	ctx := soon(t)
	s, other := openSession(t, ctx, call(t, n)), openSession(t, ctx, call(t, n))
	held := s.hold("a")
	waiting := other.next("a", -1)
	go other.Acquire(ctx, waiting) // ends with its drop
	var lock *zamokpb.GetResponse
	require.Eventually(t, func() bool {
		var err error
		lock, err = s.Get(ctx, &zamokpb.GetRequest{Name: "a"})
		return err == nil && len(lock.Queue) == 1
	}, patience, 5*time.Millisecond)
	holder, waiter := lock.Holders[0], lock.Queue[0]
	require.Positive(t, holder.GrantedAt)
	require.Positive(t, holder.EnqueuedAt)
	require.Zero(t, waiter.GrantedAt)
	require.Positive(t, waiter.EnqueuedAt)
	require.LessOrEqual(t, waiter.EnqueuedAt, lock.Stamp.Time)
	require.Greater(t, holder.LeaseUntil, lock.Stamp.Time)
	all, err := s.ListSessions(ctx, &zamokpb.ListSessionsRequest{})
	require.NoError(t, err)
	require.Len(t, all.Sessions, 2)
	require.Positive(t, all.Sessions[0].Opened)
	require.EqualValues(t, 1, all.Sessions[0].Tickets)
	other.drop(waiting.Acquire.Ticket)
	s.drop(held.Ticket)
}
