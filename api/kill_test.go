package api

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/fsm"
)

// The end of a node cancels its calls, and does not drop what they wait for: their tickets keep
// their positions, and the callers request the same tickets from the next leader.
func TestAKilledNodeDropsNoWaitingTicket(t *testing.T) {
	takesTime(t)
	const waiters, sessions = 100, 10
	c := startCluster(t, 3, nil)
	leader := c.leader()
	ctx := soon(t)
	openSession(t, ctx, call(t, leader)).hold("k")
	for range sessions {
		s := openSession(t, ctx, call(t, leader))
		for range waiters / sessions {
			s.acquire(ctx, s.next("k", fsm.Forever))
		}
	}
	waiting := func(n *Node) (count int) {
		n.Raft().View(func(m *fsm.Machine) {
			for range m.Waiters("k") {
				count++
			}
		})
		return count
	}
	require.Eventually(t, func() bool { return waiting(leader) == waiters }, 10*time.Second,
		10*time.Millisecond)
	require.NoError(t, leader.Kill())
	c.nodes = slices.DeleteFunc(c.nodes, func(n *Node) bool { return n == leader })
	next := c.leader()
	require.Eventually(t, func() bool { return waiting(next) == waiters }, 5*time.Second,
		10*time.Millisecond)
}
