package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/client"
	"zamok/raftnode"
)

// A removed node learns of its removal and ends without disturbing the others; calls in flight are
// answered. A leader transfers the leadership first.
func TestRemovedNodeStops(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"follower", "leader", "leader"} {
		Run(t, Config{}, func(s *Sim) {
			leader := s.Start()
			h := s.Holder("holder", "x", time.Minute)
			load := s.lightLoad()
			removed, next := s.Others(leader)[0], leader
			if which == "leader" {
				removed = leader
			}
			stop := s.attach(removed, h)
			time.Sleep(3 * time.Second)
			err := leader.Running().Remove(s.Within(electionTimeMax), removed.ID)
			if which == "leader" {
				require.ErrorAs(s, err, new(*raftnode.NotLeaderError))
				next = s.LeaderOtherThan(leader)
				err = next.Running().Remove(s.Within(electionTimeMax), removed.ID)
			}
			require.NoError(s, err)
			term := next.Status().Term
			s.Await(electionTimeMax, "it ends", removed.processEnded)
			require.ErrorIs(s, removed.Fatal(), raftnode.ErrRemoved)
			time.Sleep(30 * time.Second)
			assert.Equal(s, term, next.Status().Term, "it disturbed the others")
			assert.Equal(s, []*Node{next}, s.Leaders())
			assert.Len(s, voters(next), 2)
			stop()
			stopAndCheck(s, load)
		})
	}
}

// A leader that is removed transfers the leadership first, so nobody waits for an election. One
// call of an operator does both.
func TestRemovingTheLeaderCostsNoElection(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{2, 3} {
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			runStarted(t, Config{Nodes: nodes}, func(s *Sim, leader *Node) {
				a, operator := s.program("a", nil), s.program("operator", nil)
				held := s.lock(a, "x")
				removed := make(chan error, 1)
				time.AfterFunc(2*time.Second,
					func() { removed <- operator.admin().Remove(s.Within(time.Minute), leader.ID) })
				var longest time.Duration
				for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(
					5 * time.Millisecond) {
					began := time.Now()
					require.NoError(s, s.lock(a, "y").Unlock(s.Within(time.Minute)))
					longest = max(longest, time.Since(began))
				}
				require.NoError(s, <-removed)
				require.NoError(s, held.Err())
				assert.Less(s, longest, 400*time.Millisecond)
				s.Await(electionTimeMax, "it ends", leader.processEnded)
				require.ErrorIs(s, leader.Fatal(), raftnode.ErrRemoved)
				assert.Len(s, voters(s.LeaderOtherThan(leader)), nodes-1)
			})
		})
	}
}

// A refused removal of the leader changes nothing, and it still leads. The outcome of the call is
// exact, even if the leadership was transferred.
func TestARefusedRemovalOfTheLeaderLeavesIt(t *testing.T) {
	Run(t, Config{Nodes: 1}, func(s *Sim) {
		leader := s.Start()
		require.ErrorIs(s, leader.Running().Remove(s.Within(electionTimeMax), leader.ID),
			raftnode.ErrRefused)
		assert.Equal(s, []*Node{leader}, s.Leaders())
	})
	runStarted(t, Config{}, func(s *Sim, leader *Node) {
		operator, others := s.program("operator", nil), s.Others(leader)
		term := leader.Status().Term
		others[0].Kill()
		err := operator.admin().Remove(s.Within(time.Minute), leader.ID)
		require.ErrorIs(s, err, client.ErrRefused)
		require.ErrorContains(s, err, "no majority")
		requireOutcome(s, err, client.NotDone)
		assert.Equal(s, []*Node{leader}, s.Leaders())
		assert.Equal(s, term, leader.Status().Term)
		others[0].Start()
		time.Sleep(5 * time.Second)

		// The node that took over has lost its other voter by the time of the second call.
		var other *raftnode.NotLeaderError
		require.ErrorAs(s, s.Leader().Running().Remove(s.Within(time.Minute), leader.ID), &other)
		next := s.LeaderOtherThan(leader)
		assert.Equal(s, next.ID, other.ID)
		for _, n := range others {
			if n != next {
				n.Kill()
			}
		}
		err = operator.admin().Remove(s.Within(time.Minute), leader.ID)
		require.ErrorIs(s, err, client.ErrRefused)
		requireOutcome(s, err, client.NotDone)
		assert.Len(s, voters(next), 3)
		assert.NoError(s, leader.Fatal())
	})
}
