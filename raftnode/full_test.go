package raftnode

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zamok/fsm"
)

// When every disk is full no node can begin an epoch. The nodes wait for room, without deposing
// each other all the time, and continue by themselves soon after there is some.
func TestFullDisksEverywhereAreWaitedOut(t *testing.T) {
	inBubble(t, func(b *bubble) {
		require.NoError(b, b.fence(b.leader(b.nodes...)))
		for _, n := range b.nodes {
			require.NoError(b, n.disk.become("full"))
		}
		time.Sleep(5 * time.Second) // until all have seen it
		before := b.nodes[0].Status().Term
		const minutes = 10
		time.Sleep(minutes * time.Minute)
		after := b.nodes[0].Status().Term
		b.Logf("terms: %d, and %d after %d minutes", before, after, minutes)
		require.LessOrEqual(b, after-before, uint64(minutes*time.Minute/cautious)+5)
		for _, n := range b.nodes {
			require.Empty(b, n.ended)
			n.disk.heal()
		}
		began := time.Now()
		require.NoError(b, b.fence(b.leader(b.nodes...)))
		b.Logf("an epoch opens %v after there is room", time.Since(began))
		require.Less(b, time.Since(began), 2*maintenanceTick+4*timeoutMin)
	})
}

// A leader whose disk gets full gives way, and does not come back while there is no room. What it
// could not keep was not done.
func TestALeaderWithoutRoomGivesWay(t *testing.T) {
	inBubble(t, func(b *bubble) {
		full := b.leader(b.nodes...)
		require.NoError(b, b.fence(full))
		require.NoError(b, full.disk.become("full"))
		began := time.Now()
		var notLeader *NotLeaderError
		require.ErrorAs(b, b.fence(full), &notLeader, "nothing of it is in any log")
		next := b.leader(b.others(full)...)
		require.NoError(b, b.fence(next))
		b.Logf("another leads after %v", time.Since(began))
		term := next.Status().Term
		for range 60 {
			time.Sleep(time.Second)
			require.NotEqual(b, full.self.ID, full.Status().Leader)
			require.NoError(b, b.fence(next))
		}
		require.Equal(b, term, next.Status().Term)
		full.disk.heal()
		time.Sleep(5 * time.Second)
		require.Equal(b, next.Status().Applied, full.Status().Applied)
	})
}

// A follower whose disk is full takes no entries, and its leader does not take that for a log that
// differs: it would go back in its own, entry by entry, and in the end send a snapshot to one that
// lacks nothing but the latest.
func TestAFollowerWithoutRoomIsAskedForTheSameAgain(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		full := b.others(leader)[0]
		require.NoError(b, full.disk.become("full"))
		leader.diary.new()
		for range 60 {
			require.NoError(b, b.fence(leader))
			time.Sleep(time.Second)
		}
		said := strings.Join(leader.diary.new(), "")
		require.NotContains(b, said, "sending older logs")
		require.NotContains(b, said, "snapshot on")
		require.Contains(b, said, "rejects entries")
		full.disk.heal()
		require.NoError(b, b.fence(leader))
		time.Sleep(11 * time.Second) // longer than raft waits before it sends again
		require.Equal(b, leader.Status().Applied, full.Status().Applied)
	})
}

// Before a disk is full there is a mark. Below it the node tells the others, whose leader refuses
// what only adds if too few have room, and makes a snapshot while there is room for one. Entries
// continue: renewals and drops are the cure.
func TestADiskThatGetsFullIsAnnounced(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		low := b.others(leader)[0]
		announced := func() fsm.MemberRecord {
			var m fsm.MemberRecord
			leader.View(func(machine *fsm.Machine) { m, _ = machine.Member(low.self.ID) })
			return m
		}
		time.Sleep(2 * maintenanceTick)
		require.Greater(b, announced().FreeBytes, announced().LowSpaceThreshold)
		require.NoError(b, low.disk.become("low"))
		time.Sleep(2 * maintenanceTick)
		require.Less(b, announced().FreeBytes, announced().LowSpaceThreshold)
		require.True(b, low.store.IsLowSpace())
		snapshots, err := low.store.Snapshots().List()
		require.NoError(b, err)
		require.Len(b, snapshots, 1)
		for range 10 {
			require.NoError(b, b.fence(leader))
		}
		low.disk.heal()
		time.Sleep(2 * maintenanceTick)
		require.Greater(b, announced().FreeBytes, announced().LowSpaceThreshold)
		require.Equal(b, leader.Status().Applied, low.Status().Applied)
	})
}

// A leader sends its heartbeats as often as its lease demands, however long it would not campaign.
func TestACautiousLeaderSendsHeartbeats(t *testing.T) {
	inBubble(t, func(b *bubble) {
		run := &raftRun{runs: &b.leader(b.nodes...).runs, shortest: timeoutMin,
			cautiousUntil: time.Now().Add(cautious)}
		heartbeat, election := run.raftTimeouts()
		require.Equal(b, []time.Duration{cautious, cautious}, []time.Duration{heartbeat, election})
		run.leadership.Store(&leadership{})
		heartbeat, _ = run.raftTimeouts()
		require.Equal(b, timeoutMin, heartbeat)
	})
}
