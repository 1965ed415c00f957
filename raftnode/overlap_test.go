package raftnode

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A leader does not wait for its disk before it sends a command to the followers, and acknowledges
// it when its own disk and one of theirs have it.
func TestALeaderWritesWhileTheFollowersWrite(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.quietLeader()
		leader.disk.hang()
		require.ErrorIs(b, b.fence(leader), ErrUnknown, "its disk has not got it")
		r := leader.runs.latest.Load().raft
		for _, n := range b.others(leader) {
			assert.Equal(b, r.LastIndex(), n.runs.latest.Load().raft.LastIndex(), "its disk has")
			assert.Less(b, n.runs.latest.Load().raft.CommitIndex(), r.LastIndex())
		}
		leader.disk.heal()
		require.NoError(b, b.fence(leader))
	})
}

// Raft takes a configuration into force as soon as it is in the log: so it is on the disk by then.
func TestAConfigurationIsOnTheLeadersDiskFirst(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		r, before := leader.runs.latest.Load().raft, leader.runs.latest.Load().raft.LastIndex()
		leader.disk.hang()
		future := r.AddNonvoter("n9@00000000000000000000000000000009", "h9:1", 0, 0)
		time.Sleep(time.Second)
		for _, n := range b.nodes {
			assert.Equal(b, before, n.runs.latest.Load().raft.LastIndex())
		}
		leader.disk.heal()
		require.NoError(b, future.Error())
	})
}

// A majority of one is complete without a follower, whose answer could be held back.
func TestASingleVoterWaitsForItsDisk(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		r := leader.runs.latest.Load().raft
		for _, n := range b.others(leader) {
			require.NoError(b, r.DemoteVoter(n.Node.self.ID(), 0, 0).Error())
		}
		require.NoError(b, b.fence(leader))
		before := leader.Status().Applied
		leader.disk.hang()
		require.ErrorIs(b, b.fence(leader), ErrUnknown)
		assert.Equal(b, before, leader.Status().Applied)
		leader.disk.heal()
		require.NoError(b, b.fence(leader))
	})
}

// Raft ends though the disk hangs, and the next run of it begins when what was pending is on the
// disk.
func TestTheNextRunOfRaftWaitsForWhatIsPending(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		leader.disk.hang()
		require.ErrorIs(b, b.fence(leader), ErrUnknown)
		old, reopened := leader.runs.latest.Load(), make(chan struct{})
		last := old.raft.LastIndex()
		go func() {
			defer close(reopened)
			leader.runs.restart(old)
		}()
		ended, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		select {
		case <-old.over:
		case <-ended.Done():
			b.Fatal("raft does not end")
		}
		time.Sleep(time.Second)
		require.Same(b, old, leader.runs.latest.Load())
		leader.disk.heal()
		<-reopened
		run := leader.runs.latest.Load()
		require.NotSame(b, old, run)
		assert.GreaterOrEqual(b, run.raft.LastIndex(), last)
		assert.NotEqual(b, raft.Shutdown, run.raft.State())
	})
}

// No other node holds a follower's answer back. It is given when the follower's disk has the
// entries.
func TestAFollowerAnswersWhenItsDiskHasTheEntries(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		before := leader.Status().Applied
		for _, n := range b.others(leader) {
			n.disk.hang()
		}
		require.ErrorIs(b, b.fence(leader), ErrUnknown)
		assert.Equal(b, before, leader.Status().Applied)
		for _, n := range b.others(leader) {
			n.disk.heal()
		}
		require.NoError(b, b.fence(leader))
	})
}
