package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/fsm"
	"zamok/raftnode"
	"zamok/session"
)

// Entries that a leader has sent to others while its own disk hangs.

// forEachEnd runs a story in which the leader ends in the middle of a write, which is kept or lost.
// The cluster has one session.
func forEachEnd(t *testing.T,
	story func(s *Sim, leader *Node, id session.ID, end func(), kept bool)) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprintf("kept %v", kept), func(t *testing.T) {
			runStarted(t, Config{}, func(s *Sim, leader *Node) {
				id := leader.OpenSession("holder", time.Hour)
				s.AwaitConverged(backoffMax)
				// The nodes announce themselves now. Then nothing is written until the next reading
				// of the clock, a second after the last entry. So the acquisition of a story is the
				// last entry.
				for last := uint64(0); last !=
					leader.Status().RaftIndex; time.Sleep(4 * retryInterval) {
					last = leader.Status().RaftIndex
				}
				end := leader.Kill
				if !kept {
					leader.Disk.forcedOutcome.set(writeLost)
					end = leader.LosePower
				}
				story(s, leader, id, end, kept)
			})
		})
	}
}

// acquirePending lets the disk of the leader hang and requests a lock. Nothing is acknowledged,
// although these nodes have the entry.
func acquirePending(s *Sim, leader *Node, id session.ID, have ...*Node) {
	s.Helper()
	leader.Disk.Stall()
	_, err := leader.Propose(s.Within(retryInterval), acquireExclusive(id, 1, "x"))
	require.ErrorIs(s, err, raftnode.ErrUnknown, "its disk has not got it")
	for _, n := range have {
		require.Equal(s, leader.Status().RaftIndex, n.Status().RaftIndex, "%s has the entry", n.ID)
	}
}

// requireLocks checks that every node has granted the lock once, or that none has.
func requireLocks(s *Sim, granted bool) {
	s.Helper()
	s.AwaitConverged(backoffMax)
	want := fsm.Counts{Sessions: 1}
	if granted {
		want = fsm.Counts{Sessions: 1, Locks: 1, Granted: 1}
	}
	s.AwaitCounts(time.Second, want)
	s.Check()
}

// Both followers have the entry. So the next leader has it, and the old one gets it again.
func TestPendingEntriesSurviveWithTheFollowers(t *testing.T) {
	forEachEnd(t, func(s *Sim, leader *Node, id session.ID, end func(), _ bool) {
		acquirePending(s, leader, id, s.Others(leader)...)
		end()
		s.LeaderOtherThan(leader)
		leader.Start()
		requireLocks(s, true)
	})
}

// One follower has the entry. If it votes in the next election it leads, and the entry survives. If
// it does not vote, and the old leader has lost the entry, an entry of a later term replaces it on
// the follower.
func TestPendingEntriesThatOneFollowerHas(t *testing.T) {
	for _, votes := range []bool{true, false} {
		t.Run(fmt.Sprintf("votes %v", votes), func(t *testing.T) {
			forEachEnd(t, func(s *Sim, leader *Node, id session.ID, end func(), kept bool) {
				has, lacks := s.Others(leader)[0], s.Others(leader)[1]
				lacks.Kill()
				acquirePending(s, leader, id, has)
				end()
				if votes {
					lacks.Start()
					require.Same(s, has, s.LeaderOtherThan(leader))
					leader.Start()
				} else {
					has.Kill()
					lacks.Start()
					leader.Start()
					s.Leader().MustPropose(nil)
					has.Start()
				}
				requireLocks(s, votes || kept)
			})
		})
	}
}

// The leader is isolated, and another node leads in a later term. When the network is back the old
// leader can't write that term before its own pending entry, which the others have or do not have.
func TestATermWaitsForPendingEntries(t *testing.T) {
	for _, sent := range []bool{true, false} {
		t.Run(fmt.Sprintf("sent %v", sent), func(t *testing.T) {
			forEachEnd(t, func(s *Sim, leader *Node, id session.ID, end func(), _ bool) {
				if sent {
					acquirePending(s, leader, id, s.Others(leader)...)
					s.Network.Isolate(leader.Host)
				} else {
					s.Network.Isolate(leader.Host)
					acquirePending(s, leader, id) // it leads for another half of a timeout
				}
				next := s.LeaderOtherThan(leader)
				next.MustPropose(nil)
				s.Network.HealAll()
				time.Sleep(electionTimeMax / 2)
				assert.Less(s, leader.Status().Term, next.Status().Term,
					"the entry before it is not written")
				end()
				next.MustPropose(nil)
				leader.Start()
				requireLocks(s, sent)
			})
		})
	}
}
