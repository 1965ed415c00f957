package peer

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A snapshot comes to who has everything in it, since an answer was lost or the network kept it for long. The
// leader's log may hold a later list of nodes, which raft would not take again: it has the entry.
func TestASnapshotOfWhatIsKnownTakesNothingBack(t *testing.T) {
	for name, ahead := range map[string]uint64{"of this leader": 0, "of the next one": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, all := threeRunning(t)
				defer w.stopAll()
				before, first := all[0].GetConfiguration(), uint64(1)
				leader := w.done(func(leader *process) raft.Future {
					return leader.AddNonvoter("n4-0000000000000000", "h4:5751", 0, time.Second)
				}, all[:]...)
				to := all[0]
				if leader == to {
					to = all[1]
				}
				to.journal.restores = true // if raft installs anything, it goes through
				time.Sleep(time.Second)
				applied := to.AppliedIndex()
				require.Greater(t, applied, first)
				snapshot := func(index uint64) error {
					return installing(leader, to, func(s *raft.InstallSnapshotRequest) {
						s.Configuration, s.ConfigurationIndex = raft.EncodeConfiguration(before.Configuration()), first
						s.Term, s.LastLogIndex, s.LastLogTerm = to.CurrentTerm()+ahead, index, to.CurrentTerm()
					})
				}
				for _, index := range []uint64{first, applied - 1, applied} {
					require.NoError(t, snapshot(index))
					require.Len(t, to.GetConfiguration().Configuration().Servers, 4, "a snapshot up to %d", index)
				}
				assert.Equal(t, applied, to.AppliedIndex())
				assert.Equal(t, acknowledged, to.journal.count("before "))
				w.serves(all, "after ")
			})
		})
	}
}

// A snapshot of who led before is no news either, and its sender is told of the later term.
func TestASnapshotOfAnEarlierLeaderIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, all := threeRunning(t)
		defer w.stopAll()
		leader := w.leader(10*time.Second, all[:]...)
		to := all[0]
		if leader == to {
			to = all[1]
		}
		request := raft.InstallSnapshotRequest{RPCHeader: header(leader), SnapshotVersion: 1, Term: to.CurrentTerm() - 1, LastLogIndex: 1}
		var response raft.InstallSnapshotResponse
		require.NoError(t, leader.trans.InstallSnapshot(to.ID(), raft.ServerAddress(to.address), &request, &response, strings.NewReader("")))
		assert.False(t, response.Success)
		assert.Equal(t, to.CurrentTerm(), response.Term)
	})
}
