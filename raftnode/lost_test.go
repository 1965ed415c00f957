package raftnode

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// loseEntries gives a follower of a leader an older copy of its log, without its last entries. It
// does not run then.
func loseEntries(b *bubble, leader *bubbleNode) (bad *bubbleNode) {
	require.NoError(b, b.fence(leader))
	time.Sleep(time.Second)
	bad = b.others(leader)[0]
	log, older := filepath.Join(bad.dir, "log"), filepath.Join(bad.dir, "older")
	require.NoError(b, os.CopyFS(older, os.DirFS(log)))
	for range 10 {
		require.NoError(b, b.fence(leader))
	}
	time.Sleep(time.Second)
	b.kill(bad)
	require.NoError(b, os.RemoveAll(log))
	require.NoError(b, os.Rename(older, log))
	return bad
}

// A follower's log is an older copy, without its last entries, and its node can't know. The leader,
// which has the follower's acknowledgement, has it owe that, and sends it again.
func TestAFollowerIsNotifiedThatItLostWhatItAcknowledged(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		bad := loseEntries(b, leader)
		require.NoError(b, b.open(bad))
		time.Sleep(10 * time.Second)
		assert.True(b, bad.logged("ALARM: the disk of this node lost entries"))
		b.awaitNothingOwed(bad)
		b.kill(b.others(leader)[1]) // bad is needed now
		require.NoError(b, b.fence(leader))
		require.NoError(b, b.open(b.others(leader)[1]))
		for _, n := range b.nodes {
			assert.Empty(b, n.ended)
		}
	})
}

// The same, but the follower starts once more just when the leader has noticed, before it owes
// anything.
func TestAFollowerThatStartsAgainBeforeItOwes(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		bad := loseEntries(b, leader)
		require.NoError(b, b.open(bad))
		for !leader.logged("a node lost entries that it acknowledged") {
			time.Sleep(time.Millisecond)
		}
		b.kill(bad)
		require.NoError(b, b.open(bad))
		for range 20 {
			time.Sleep(time.Second)
			require.NoError(b, b.fence(leader))
		}
		b.awaitNothingOwed(bad)
		assert.NotEmpty(b, bad.Status().Leader)
		assert.Greater(b, bad.store.Tail().Log.Index+10, leader.store.Tail().Log.Index)
	})
}
