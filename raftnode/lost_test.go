package raftnode

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/store"
)

// A follower's log is an older copy, without its last entries. The leader, which has the follower's
// acknowledgement, sends it nothing more and notifies it, and it ends its process.
func TestAFollowerIsNotifiedThatItLostWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		time.Sleep(time.Second)
		bad := b.others(leader)[0]
		log, older := filepath.Join(bad.dir, "log"), filepath.Join(bad.dir, "older")
		require.NoError(b, os.CopyFS(older, os.DirFS(log)))
		for range 10 {
			require.NoError(b, b.fence(leader))
		}
		time.Sleep(time.Second)
		b.kill(bad)
		require.NoError(b, os.RemoveAll(log))
		require.NoError(b, os.Rename(older, log))

		require.NoError(b, b.open(bad))
		ended := b.ends(bad)
		require.ErrorIs(b, ended, store.ErrDamaged)
		assert.ErrorContains(b, ended, "has this node's acknowledgement of entry")
		require.NoError(b, b.fence(leader))
		for _, n := range b.others(bad) {
			assert.Empty(b, n.ended)
		}
	})
}
