package raftnode

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/raftnode/store"
)

// A follower's log loses its last write, in a way that looks like one torn by a power failure. The leader,
// which has the follower's acknowledgement, sends it nothing more and notifies it, and it ends its process.
func TestAFollowerIsNotifiedThatItLostWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	inBubbleOn(t, store.WAL, func(b *bubble) {
		leader := b.leader(b.nodes...)
		for range 10 {
			require.NoError(b, b.fence(leader))
		}
		time.Sleep(time.Second)
		bad := b.others(leader)[0]
		segments, err := filepath.Glob(filepath.Join(bad.dir, "log", "*.wal"))
		require.NoError(b, err)
		require.Len(b, segments, 1)
		table := filepath.Join(bad.dir, "log", "wal-meta.db")
		running, err := os.ReadFile(table)
		require.NoError(b, err)
		b.kill(bad)
		// As it was before the process ended in order.
		require.NoError(b, os.WriteFile(table, running, 0o600))
		content, err := os.ReadFile(segments[0])
		require.NoError(b, err)
		end := len(bytes.TrimRight(content, "\x00"))
		clear(content[end-40 : end])
		require.NoError(b, os.WriteFile(segments[0], content, 0o600))

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
