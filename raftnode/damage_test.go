package raftnode

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zamok/clock"
	"zamok/fsm"
	"zamok/raftnode/store"
	"zamok/session"
)

// A lock is held, with nine minutes of its lease left. One bit of its acquisition flips on the disk
// of a follower, which starts again and is made leader. The lock never has two holders.
func TestAFlippedBitMakesNoSecondHolder(t *testing.T) {
	t.Parallel()
	const name = "the lock that is held"
	for _, bit := range []int{0, 5} {
		t.Run(strconv.Itoa(bit), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				leader := b.leader(b.nodes...)
				lock := func(n *bubbleNode, secret byte) fsm.Result {
					opened, err := n.Propose(b.Context(),
						&fsm.OpenSession{Secret: session.Hash{secret},
							Settings: session.Settings{TTL: 10 * clock.Minute}})
					require.NoError(b, err)
					a, err := n.Propose(b.Context(), &fsm.Acquire{
						Session: opened.Result.Session, Ticket: 1,
						Items: []fsm.Item{{Name: name, Mode: fsm.Exclusive}},
					})
					require.NoError(b, err)
					return a.Result
				}
				require.Equal(b, fsm.Granted, lock(leader, 1).State)
				time.Sleep(time.Minute)

				bad := b.others(leader)[0]
				b.kill(bad)
				flip(b, bad.dir, name, bit)
				if err := b.open(bad); err != nil {
					assert.ErrorIs(b, err, store.ErrDamaged)
					assert.ErrorContains(b, err, bad.dir)
					assert.ErrorContains(b, err, "start it with an empty directory")
					b.nodes = b.others(bad)
					second := lock(b.leader(b.nodes...), 2)
					assert.NotEqual(b, fsm.Granted, second.State)
					b.kill(b.nodes...)
					b.nodes = nil
					return
				}
				require.NoError(b, leader.Transfer(b.Context(), bad.self.ID))
				second := lock(b.leader(bad), 2)
				assert.NotEqual(b, fsm.Granted, second.State,
					"two holders, nine minutes before the first one's deadline")
			})
		})
	}
}

// flip flips a bit wherever a text is in the log of a directory: bbolt leaves older copies behind.
func flip(t require.TestingT, dir, text string, bit int) {
	flipped := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasPrefix(path, filepath.Join(dir, "log")) {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for at := 0; ; flipped++ {
			next := bytes.Index(content[at:], []byte(text))
			if next < 0 {
				return os.WriteFile(path, content, 0o600)
			}
			at += next
			content[at] ^= 1 << bit
		}
	}))
	require.Positive(t, flipped)
}

// An entry that fits its place in the log and not its checksum was changed in memory: the process
// ends before the machine has it.
func TestAnEntryThatWasChangedInMemoryIsNotApplied(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		bad := b.others(leader)[0]
		time.Sleep(time.Second)
		before := bad.Status().Applied
		entry := logEntry((&fsm.Entry{Version: 1}).Append(nil))
		entry.Index, entry.Term = bad.Status().RaftIndex+1, bad.Status().Term
		entry.Data = bytes.Clone(entry.Data)
		entry.Data[0] ^= 1
		// ends with the goroutine, as the process would
		go bad.state.ApplyBatch([]*raft.Log{&entry})
		require.ErrorIs(b, b.ends(bad), store.ErrChecksum)
		require.Equal(b, before, bad.Status().Applied)
	})
}

// One that was changed before the leader has it is refused there, and on no disk: the leader gives
// way, and the cluster continues.
func TestAProposalThatWasChangedIsStoredNowhere(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leader := b.leader(b.nodes...)
		require.NoError(b, b.fence(leader))
		entry := logEntry((&fsm.Entry{Version: 1}).Append(nil))
		entry.Extensions[0] ^= 1
		require.Error(b, leader.runs.latest.Load().raft.ApplyLog(entry, 0).Error())
		// the leader takes a moment to give way
		goesOn := func() bool { return b.fence(b.leader(b.nodes...)) == nil }
		for began := time.Now(); !goesOn(); time.Sleep(10 * time.Millisecond) {
			require.Less(b, time.Since(began), time.Minute)
		}
		for _, n := range b.nodes {
			require.Empty(b, n.ended)
		}
	})
}

// logEntry is an entry as a leader proposes it.
func logEntry(entry []byte) raft.Log {
	return raft.Log{Data: entry, Extensions: store.Checksum(entry)}
}
